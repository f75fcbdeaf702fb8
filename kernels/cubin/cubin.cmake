# Kernels in a C++ program of one's own, compiled when it is built, without a GPU:
#
#   include(<this repository>/kernels/cubin/cubin.cmake)       # at the top level: it enables the language ASM
#   fused_kernels_cubin(act TRITON my_package.kernels:act ARCHITECTURES 80 90 100
#       ARGUMENTS x_ptr=*fp32:16 out_ptr=*fp32:16 n=i32 CONSTANTS BLOCK=1024 NUM_WARPS 4)
#   fused_kernels_cubin(scale NVCC scale.cu ARCHITECTURES 80 90 FLAGS -lineinfo)        # or NVRTC scale.cu
#   fused_kernels_embed(my_images CUBINS ${act_CUBINS} ${scale_CUBINS})
#   target_link_libraries(program PRIVATE my_images)           # #include "my_images.h"
#
# FUSED_KERNELS_PYTHON: a Python with this repository's requirements. FUSED_KERNELS_EMBED_ARRAYS: bytes as C++ arrays, for
# an assembler that knows no .incbin and no section groups (found out where it is not set).
include_guard(GLOBAL)
enable_language(ASM)
find_program(FUSED_KERNELS_PYTHON NAMES python3 DOC "A Python with the requirements of fused kernels")
cmake_path(GET CMAKE_CURRENT_LIST_DIR PARENT_PATH FUSED_KERNELS_DIR)
cmake_path(GET FUSED_KERNELS_DIR PARENT_PATH fused_kernels_root)
cmake_path(GET FUSED_KERNELS_DIR FILENAME fused_kernels_package)  # kernels, or where it is installed fused_kernels
set(FUSED_KERNELS_CUBIN_COMMAND ${CMAKE_COMMAND} -E env --modify PYTHONPATH=path_list_prepend:${fused_kernels_root}
    ${FUSED_KERNELS_PYTHON} -m ${fused_kernels_package}.cubin)

if(NOT DEFINED FUSED_KERNELS_EMBED_ARRAYS)
    set(probe ${CMAKE_CURRENT_BINARY_DIR}/fused_kernels_probe.S)
    file(WRITE ${probe} "    .section .rodata.a,\"aG\",%progbits,a,comdat\n    .globl a\n    .hidden a\na:\n    .incbin \"${probe}\"\n    .if . - a == 0\n    .error \"empty\"\n    .endif\n")
    set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)
    try_compile(assembles ${CMAKE_CURRENT_BINARY_DIR}/fused_kernels_probe SOURCES ${probe})
    unset(CMAKE_TRY_COMPILE_TARGET_TYPE)
    set(arrays ON)
    if(assembles)
        set(arrays OFF)
    endif()
    set(FUSED_KERNELS_EMBED_ARRAYS ${arrays} CACHE BOOL "Embed images as C++ arrays")
endif()

# ${name}_CUBINS = the images, one for each architecture.
function(fused_kernels_cubin name)
    cmake_parse_arguments(PARSE_ARGV 1 given "" "TRITON;NVCC;NVRTC;NUM_WARPS;NUM_STAGES"
                          "ARCHITECTURES;ARGUMENTS;CONSTANTS;FLAGS")
    set(source "")
    foreach(compiler TRITON NVCC NVRTC)
        if(DEFINED given_${compiler})
            string(TOLOWER ${compiler} by)
            list(APPEND source ${by} ${given_${compiler}})
        endif()
    endforeach()
    list(LENGTH source words)
    if(given_UNPARSED_ARGUMENTS OR NOT words EQUAL 2 OR NOT given_ARCHITECTURES)
        message(FATAL_ERROR "fused_kernels_cubin(${name} …): one of TRITON, NVCC and NVRTC, and ARCHITECTURES; "
                            "unknown: ${given_UNPARSED_ARGUMENTS}")
    endif()
    if(NOT by STREQUAL triton)
        list(GET source 1 file)
        cmake_path(ABSOLUTE_PATH file BASE_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR} NORMALIZE)
        set(source ${by} ${file})
    endif()
    set(options "")
    if(given_ARGUMENTS)
        list(APPEND options --argument ${given_ARGUMENTS})
    endif()
    if(given_CONSTANTS)
        list(APPEND options --constant ${given_CONSTANTS})
    endif()
    if(DEFINED given_NUM_WARPS)
        list(APPEND options --num-warps ${given_NUM_WARPS})
    endif()
    if(DEFINED given_NUM_STAGES)
        list(APPEND options --num-stages ${given_NUM_STAGES})
    endif()
    foreach(flag IN LISTS given_FLAGS)
        list(APPEND options --flag=${flag})
    endforeach()
    set(images "")
    set(descriptions "")
    foreach(architecture IN LISTS given_ARCHITECTURES)
        list(APPEND images ${CMAKE_CURRENT_BINARY_DIR}/${name}.sm_${architecture}.cubin)
        if(by STREQUAL triton)
            list(APPEND descriptions ${CMAKE_CURRENT_BINARY_DIR}/${name}.sm_${architecture}.json)
        endif()
    endforeach()
    set(depfile ${CMAKE_CURRENT_BINARY_DIR}/${name}.cubin.d)
    list(JOIN given_ARCHITECTURES ", sm_" architectures)
    add_custom_command(
        OUTPUT ${images} BYPRODUCTS ${descriptions} DEPFILE ${depfile} VERBATIM
        COMMAND ${FUSED_KERNELS_CUBIN_COMMAND} compile ${source} --name ${name} --out ${CMAKE_CURRENT_BINARY_DIR}
                --arch ${given_ARCHITECTURES} ${options} --depfile ${depfile}
        COMMENT "Compiling ${name} for sm_${architectures} by ${by}")
    set(${name}_CUBINS ${images} PARENT_SCOPE)
endfunction()

# A static library with the images, and ${name}.h for what is linked with it.
function(fused_kernels_embed name)
    cmake_parse_arguments(PARSE_ARGV 1 given "" "" "CUBINS")
    if(given_UNPARSED_ARGUMENTS OR NOT given_CUBINS)
        message(FATAL_ERROR "fused_kernels_embed(${name} CUBINS file …); unknown: ${given_UNPARSED_ARGUMENTS}")
    endif()
    set(folder ${CMAKE_CURRENT_BINARY_DIR}/${name})
    set(bytes ${folder}/${name}.S)
    set(array "")
    if(FUSED_KERNELS_EMBED_ARRAYS)
        set(bytes ${folder}/${name}.cpp)
        set(array --array)
    endif()
    add_custom_command(
        OUTPUT ${folder}/${name}.h ${bytes} DEPENDS ${given_CUBINS} VERBATIM
        COMMAND ${FUSED_KERNELS_CUBIN_COMMAND} embed ${given_CUBINS} --name ${name} --out ${folder} ${array}
        COMMENT "Embedding ${name}")
    add_library(${name} STATIC ${bytes} ${folder}/${name}.h)
    # .incbin: the compiler does not see what it reads.
    set_source_files_properties(${bytes} PROPERTIES OBJECT_DEPENDS "${given_CUBINS}")
    target_include_directories(${name} PUBLIC ${folder} ${FUSED_KERNELS_DIR})
    target_compile_features(${name} INTERFACE cxx_std_17)
    target_link_libraries(${name} INTERFACE ${CMAKE_DL_LIBS})
endfunction()
