# hostsim and the kernel images it runs. The reason for each flag: docs/hostsim.md.
if(NOT FOXHUNT_HOST)
    return()
endif()
find_package(Threads REQUIRED)

file(GLOB hostsim_sources CONFIGURE_DEPENDS "${device_root}/hostsim/*.cpp" "${device_root}/hostsim/*.S")
if(hostsim_sources MATCHES "\\.S")
    enable_language(ASM)
endif()

set(sanitize_flags "")
if(FOXHUNT_SANITIZE)
    set(sanitize_flags "-fsanitize=${FOXHUNT_SANITIZE}" -fno-omit-frame-pointer -g)
endif()

add_library(foxhunt_hostsim SHARED ${hostsim_sources})
set_target_properties(foxhunt_hostsim PROPERTIES NO_SONAME TRUE LIBRARY_OUTPUT_DIRECTORY "${output_root}")
target_compile_options(foxhunt_hostsim PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-std=c++20> -O3 -Wall -Wextra -Wno-restrict
    -fvisibility=hidden $<$<COMPILE_LANGUAGE:CXX>:-fno-gnu-unique> ${sanitize_flags})
if(FOXHUNT_SANITIZE)  # instrumented, -O3 takes minutes to compile; the kernels keep theirs
    target_compile_options(foxhunt_hostsim PRIVATE -O1)
endif()
target_include_directories(foxhunt_hostsim PRIVATE "${device_root}")
target_include_directories(foxhunt_hostsim SYSTEM PRIVATE "${FOXHUNT_CUDA_INCLUDE}")
# cuda-python dlopens libcuda.so.1, and glibc answers by SONAME from what is loaded already.
target_link_options(foxhunt_hostsim PRIVATE -Wl,-soname,libcuda.so.1 ${sanitize_flags})
target_link_libraries(foxhunt_hostsim PRIVATE Threads::Threads ${CMAKE_DL_LIBS})

set(image_flags -std=c++20 -O3 -fvisibility=hidden -fno-gnu-unique -fno-math-errno -fno-trapping-math
    -fno-exceptions -Wall -Wno-unknown-pragmas -Wno-unused-function -Wframe-larger-than=4096 ${sanitize_flags})
set(wide_flags "")
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$")
    # Not gnu2: in glibc before 2.40 the slow path of a TLS descriptor (a thread's first access after any dlopen) does not
    # preserve vector registers (BZ 31372), so a kernel lost floats it had loaded before it touched its __shared__ arrays.
    list(APPEND image_flags -mtls-dialect=gnu)
    set(wide_flags -march=x86-64-v3)
endif()

# One shared object per .cu: hostsim's "cubin". Its DT_NEEDED is libcuda.so.1, the library loaded already.
function(add_host_images variant march)
    foreach(source IN LISTS kernel_sources)
        get_filename_component(stem "${source}" NAME_WE)
        set(target "${variant}_${stem}")
        set_source_files_properties("${source}" PROPERTIES LANGUAGE CXX)
        add_library(${target} MODULE "${source}")
        set_target_properties(${target} PROPERTIES PREFIX "" OUTPUT_NAME "${stem}"
            LIBRARY_OUTPUT_DIRECTORY "${output_root}/${variant}" SKIP_BUILD_RPATH TRUE)
        target_compile_options(${target} PRIVATE ${image_flags} ${march})
        target_include_directories(${target} PRIVATE "${device_root}")
        target_link_options(${target} PRIVATE ${sanitize_flags})
        target_link_libraries(${target} PRIVATE -Wl,--push-state,--no-as-needed foxhunt_hostsim -Wl,--pop-state)
    endforeach()
endfunction()

add_host_images(host "${wide_flags}")
if(FOXHUNT_HOST_BASELINE AND wide_flags)
    add_host_images(host-baseline "-march=x86-64")
endif()
