# Runs nvcc once and keeps what ptxas says about registers and spills beside the build (cmake -P; see device.cmake).
foreach(path IN ITEMS "${OUTPUT}" "${LOG}")
    get_filename_component(folder "${path}" DIRECTORY)
    file(MAKE_DIRECTORY "${folder}")
endforeach()
set(options "")
if(KIND STREQUAL "cubin")
    set(options --resource-usage)
endif()
execute_process(
    COMMAND "${NVCC}" -std=c++17 -x cu "-${KIND}" "-arch=${ARCH}" "-I${INCLUDE}" ${options}
            -MD -MF "${OUTPUT}.d" -MT "${OUTPUT}" -o "${OUTPUT}" "${SOURCE}"
    RESULT_VARIABLE status
    OUTPUT_VARIABLE text
    ERROR_VARIABLE text)
file(WRITE "${LOG}" "${text}")
if(NOT status EQUAL 0)
    file(REMOVE "${OUTPUT}")
    message(FATAL_ERROR "nvcc ${ARCH} ${SOURCE}:\n${text}")
endif()
if(text MATCHES "warning")
    message("${text}")
endif()
