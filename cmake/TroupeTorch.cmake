# Finds LibTorch: a Torch_DIR given by the user, else the PyPI wheel that scripts/install-deps puts into .deps.
# Makes Torch::cpu (libtorch_cpu, libc10). The wheel's own CMake package is not used: it insists on a CUDA toolkit even for programs that only touch the CPU.
if(Torch_DIR)
  get_filename_component(TROUPE_TORCH_ROOT "${Torch_DIR}/../../.." ABSOLUTE)
elseif(TROUPE_TORCH_ROOT_DEFAULT)
  set(TROUPE_TORCH_ROOT "${TROUPE_TORCH_ROOT_DEFAULT}")
else()
  set(TROUPE_TORCH_ROOT "${PROJECT_SOURCE_DIR}/.deps/python/torch")
endif()
if(NOT EXISTS "${TROUPE_TORCH_ROOT}/include/ATen/ATen.h")
  message(FATAL_ERROR "LibTorch not found in ${TROUPE_TORCH_ROOT}: run scripts/install-deps, or give -DTorch_DIR=.../share/cmake/Torch")
endif()
get_filename_component(TROUPE_TORCH_PARENT "${TROUPE_TORCH_ROOT}" DIRECTORY)
set(TROUPE_TORCH_RPATH "${TROUPE_TORCH_ROOT}/lib")
foreach(folder cu13/lib cudnn/lib cusparselt/lib nccl/lib nvshmem/lib)
  if(EXISTS "${TROUPE_TORCH_PARENT}/nvidia/${folder}")
    list(APPEND TROUPE_TORCH_RPATH "${TROUPE_TORCH_PARENT}/nvidia/${folder}")
  endif()
endforeach()
if(NOT TARGET Torch::cpu)
  add_library(Torch::cpu INTERFACE IMPORTED)
  target_include_directories(Torch::cpu SYSTEM INTERFACE
    "${TROUPE_TORCH_ROOT}/include" "${TROUPE_TORCH_ROOT}/include/torch/csrc/api/include")
  # The wheel's libraries ask for CUDA run-time libraries that resolve at load time through the rpath.
  target_link_libraries(Torch::cpu INTERFACE
    "${TROUPE_TORCH_ROOT}/lib/libtorch_cpu.so" "${TROUPE_TORCH_ROOT}/lib/libc10.so" -Wl,--allow-shlib-undefined)
endif()
