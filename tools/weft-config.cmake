# find_package(weft): the imported target weft::weft, for C++ programs. Installed in the wheel as
# weft/share/cmake/weft/weft-config.cmake; finds the rest of the wheel, and torch, as its neighbours.
# WEFT_TORCH_ROOT names the torch package's folder where it lies elsewhere.
#
# Not by find_package(Torch): that asks for the CUDA toolkit whenever torch came with CUDA, and
# Weft's programs need none.
get_filename_component(_weft_root "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
if(NOT DEFINED WEFT_TORCH_ROOT)
  get_filename_component(WEFT_TORCH_ROOT "${_weft_root}/../torch" ABSOLUTE)
endif()
if(NOT EXISTS "${WEFT_TORCH_ROOT}/lib/libtorch_cpu.so")
  set(weft_FOUND FALSE)
  set(weft_NOT_FOUND_MESSAGE "there is no torch in ${WEFT_TORCH_ROOT}; set WEFT_TORCH_ROOT to its folder")
  return()
endif()

if(NOT TARGET weft::weft)
  add_library(weft::weft SHARED IMPORTED)
  set_target_properties(weft::weft PROPERTIES
    IMPORTED_LOCATION "${_weft_root}/libweft.so"
    INTERFACE_INCLUDE_DIRECTORIES
      "${_weft_root}/include;${WEFT_TORCH_ROOT}/include;${WEFT_TORCH_ROOT}/include/torch/csrc/api/include"
    # As torch itself was compiled: its headers show the RPC classes only then.
    INTERFACE_COMPILE_DEFINITIONS "USE_DISTRIBUTED;USE_RPC"
    INTERFACE_COMPILE_FEATURES cxx_std_20
    INTERFACE_LINK_LIBRARIES
      "${WEFT_TORCH_ROOT}/lib/libtorch_cpu.so;${WEFT_TORCH_ROOT}/lib/libc10.so;pthread")
endif()
set(weft_FOUND TRUE)
