# Cubins and PTX. CMake's own CUDA language is not used: it wants a device link and a runtime library, and it has no
# output that is one cubin per source and architecture.
if((FOXHUNT_CUDA_ARCHS OR FOXHUNT_PTX_ARCHS) AND NOT FOXHUNT_NVCC)
    message(FATAL_ERROR "architectures are named but no nvcc is given: set FOXHUNT_NVCC")
endif()

function(add_device_image source arch kind output)
    get_filename_component(stem "${output}" NAME_WE)
    set(target "sm_${arch}")
    if(kind STREQUAL "ptx")
        set(target "compute_${arch}")
    endif()
    set(log "${CMAKE_CURRENT_BINARY_DIR}/logs/${target}/${stem}.txt")
    add_custom_command(
        OUTPUT "${output}"
        BYPRODUCTS "${log}"
        COMMAND "${CMAKE_COMMAND}" "-DNVCC=${FOXHUNT_NVCC}" "-DKIND=${kind}" "-DARCH=${target}"
                "-DINCLUDE=${device_root}" "-DSOURCE=${source}" "-DOUTPUT=${output}" "-DLOG=${log}"
                -P "${CMAKE_CURRENT_SOURCE_DIR}/cmake/nvcc.cmake"
        DEPENDS "${source}" "${CMAKE_CURRENT_SOURCE_DIR}/cmake/nvcc.cmake" "${FOXHUNT_NVCC}"
        DEPFILE "${output}.d"
        COMMENT "nvcc ${target} ${stem}"
        VERBATIM)
    set_property(GLOBAL APPEND PROPERTY foxhunt_device_images "${output}")
endfunction()

foreach(source IN LISTS kernel_sources)
    get_filename_component(stem "${source}" NAME_WE)
    foreach(arch IN LISTS FOXHUNT_CUDA_ARCHS)
        add_device_image("${CMAKE_CURRENT_SOURCE_DIR}/${source}" ${arch} cubin "${output_root}/sm_${arch}/${stem}.cubin")
    endforeach()
    foreach(arch IN LISTS FOXHUNT_PTX_ARCHS)
        add_device_image("${CMAKE_CURRENT_SOURCE_DIR}/${source}" ${arch} ptx "${output_root}/ptx_${arch}/${stem}.ptx")
    endforeach()
endforeach()

# One architecture is enough: a struct's layout does not depend on it.
if(FOXHUNT_LAYOUT_CHECK AND FOXHUNT_CUDA_ARCHS)
    list(GET FOXHUNT_CUDA_ARCHS 0 arch)
    add_device_image("${FOXHUNT_LAYOUT_CHECK}" ${arch} cubin "${CMAKE_CURRENT_BINARY_DIR}/layout_check/layout_check.cubin")
endif()

get_property(device_images GLOBAL PROPERTY foxhunt_device_images)
if(device_images)
    add_custom_target(device_images ALL DEPENDS ${device_images})
endif()
