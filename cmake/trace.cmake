# libfoxhunt_trace.so: a forwarding libcuda.so.1 that counts calls (cuda_src/trace/trace.cpp). Its names are those of cuda.h.
if(NOT FOXHUNT_HOST OR NOT CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$")
    return()
endif()

# With __CUDA_API_VERSION_INTERNAL the header declares every form of every entry point, also those of older versions.
set(cuda_h "${FOXHUNT_CUDA_INCLUDE}/cuda.h")
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${cuda_h}")
execute_process(
    COMMAND "${CMAKE_CXX_COMPILER}" -E -P -x c -D__CUDA_API_VERSION_INTERNAL "${cuda_h}"
    OUTPUT_VARIABLE declarations
    COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCHALL "[^A-Za-z0-9_]cu[A-Z][A-Za-z0-9_]* *\\(" names "${declarations}")
list(TRANSFORM names REPLACE "[^A-Za-z0-9_]" "")
list(REMOVE_DUPLICATES names)
list(SORT names)
list(TRANSFORM names REPLACE "(.+)" "ENTRY(\\1)\n")
string(JOIN "" entry_points ${names})
file(CONFIGURE OUTPUT "${CMAKE_CURRENT_BINARY_DIR}/trace/entry_points.inc" CONTENT "${entry_points}" @ONLY)

add_library(foxhunt_trace SHARED "${device_root}/trace/trace.cpp")
set_target_properties(foxhunt_trace PROPERTIES NO_SONAME TRUE LIBRARY_OUTPUT_DIRECTORY "${output_root}")
target_compile_options(foxhunt_trace PRIVATE -std=c++20 -O2 -Wall -Wextra -fvisibility=hidden -fno-gnu-unique
    -fno-lto -fno-toplevel-reorder)
target_include_directories(foxhunt_trace PRIVATE "${CMAKE_CURRENT_BINARY_DIR}/trace")
target_link_options(foxhunt_trace PRIVATE -Wl,-soname,libcuda.so.1)
target_link_libraries(foxhunt_trace PRIVATE ${CMAKE_DL_LIBS})
