# The CUDA half of the build (TROUPE_WITH_CUDA): one target, troupe_cuda, holds the kernels and the NCCL collectives, so
# that everything else is compiled once for both builds. Programs call troupe::register_cuda() at start-up
# (parallel/cuda/register.h), which fills the tables that the CPU rooms look into.
#   TROUPE_CUDA_ARCHITECTURES  compute capabilities to compile for: 80 A100, 90 H100/H200, 100 B200
set(TROUPE_CUDA_ARCHITECTURES "80;90;100" CACHE STRING "Compute capabilities that the CUDA kernels are compiled for")

function(troupe_cuda_missing what remedy)
  message(FATAL_ERROR "TROUPE_WITH_CUDA is ON, but ${what} was not found.\n"
    "  ${remedy}\n  Without a CUDA toolkit use the preset `release` (TROUPE_WITH_CUDA=OFF).")
endfunction()

if(NOT CMAKE_CUDA_COMPILER)
  find_program(TROUPE_NVCC nvcc HINTS ENV CUDACXX ENV CUDA_HOME ENV CUDA_PATH ${CUDAToolkit_ROOT} PATHS /usr/local/cuda
    PATH_SUFFIXES bin)
  if(NOT "$ENV{CUDACXX}" STREQUAL "")
    set(CMAKE_CUDA_COMPILER "$ENV{CUDACXX}")
  elseif(TROUPE_NVCC)
    set(CMAKE_CUDA_COMPILER "${TROUPE_NVCC}")
  else()
    troupe_cuda_missing("a CUDA toolkit (its compiler nvcc)"
      "Install CUDA 13.0, which LibTorch was built with, or name the compiler: CUDACXX=/path/to/bin/nvcc or -DCMAKE_CUDA_COMPILER=...")
  endif()
endif()
set(CMAKE_CUDA_ARCHITECTURES "${TROUPE_CUDA_ARCHITECTURES}")
if(CMAKE_CXX_COMPILER_LAUNCHER AND NOT CMAKE_CUDA_COMPILER_LAUNCHER)
  set(CMAKE_CUDA_COMPILER_LAUNCHER "${CMAKE_CXX_COMPILER_LAUNCHER}")
endif()
enable_language(CUDA)
if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 13.0 OR CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL 14.0)
  message(FATAL_ERROR "CUDA toolkit ${CMAKE_CUDA_COMPILER_VERSION} (${CMAKE_CUDA_COMPILER}) does not fit LibTorch, which links the run-time library of CUDA 13: install CUDA 13.x")
endif()

# The toolkit's own folders; the wheel's libraries (scripts/install-deps --cuda) come second.
get_filename_component(troupe_cuda_bin "${CMAKE_CUDA_COMPILER}" DIRECTORY)
get_filename_component(troupe_cuda_root "${troupe_cuda_bin}" DIRECTORY)
find_path(TROUPE_CUDA_INCLUDE_DIR cuda_runtime_api.h HINTS "${troupe_cuda_root}/include" ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES})
find_library(TROUPE_CUDART_LIBRARY NAMES cudart HINTS "${troupe_cuda_root}/lib64" "${troupe_cuda_root}/lib"
  "${troupe_cuda_root}/targets/x86_64-linux/lib")
find_path(TROUPE_NCCL_INCLUDE_DIR nccl.h HINTS "${troupe_cuda_root}/include" "${TROUPE_TORCH_PARENT}/nvidia/nccl/include"
  ENV NCCL_HOME PATH_SUFFIXES include)
find_library(TROUPE_NCCL_LIBRARY NAMES nccl libnccl.so.2 HINTS "${troupe_cuda_root}/lib64" "${troupe_cuda_root}/lib"
  "${TROUPE_TORCH_PARENT}/nvidia/nccl/lib" ENV NCCL_HOME PATH_SUFFIXES lib)
if(NOT TROUPE_CUDA_INCLUDE_DIR OR NOT TROUPE_CUDART_LIBRARY)
  troupe_cuda_missing("the CUDA run-time library (cuda_runtime_api.h, libcudart.so) beside ${CMAKE_CUDA_COMPILER}"
    "Install the toolkit's development package (cuda-cudart-dev), or run scripts/install-deps --cuda.")
endif()
if(NOT TROUPE_NCCL_INCLUDE_DIR OR NOT TROUPE_NCCL_LIBRARY)
  troupe_cuda_missing("NCCL (nccl.h, libnccl.so)"
    "Run scripts/install-deps --cuda, or install libnccl-dev, or set NCCL_HOME.")
endif()
foreach(library torch_cuda c10_cuda)
  if(NOT EXISTS "${TROUPE_TORCH_ROOT}/lib/lib${library}.so")
    troupe_cuda_missing("lib${library}.so in ${TROUPE_TORCH_ROOT}/lib" "The LibTorch there is a CPU-only one; use the PyPI wheel (scripts/install-deps).")
  endif()
endforeach()

# torch_cuda registers its operators when it is loaded, though nothing of ours refers to it: keep it among the needed.
add_library(Torch::cuda INTERFACE IMPORTED)
target_include_directories(Torch::cuda SYSTEM INTERFACE "${TROUPE_CUDA_INCLUDE_DIR}")
target_link_libraries(Torch::cuda INTERFACE Torch::cpu
  "-Wl,--no-as-needed,${TROUPE_TORCH_ROOT}/lib/libtorch_cuda.so,${TROUPE_TORCH_ROOT}/lib/libc10_cuda.so,--as-needed"
  "${TROUPE_CUDART_LIBRARY}" -Wl,--allow-shlib-undefined)

# nvcc sees the kernels only, never torch. C++17, as CMake 3.25 cannot name C++20 for CUDA.
file(GLOB kernels CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/models/kernels/cuda/*.cu")
add_library(troupe_cuda_kernels OBJECT ${kernels})
set_target_properties(troupe_cuda_kernels PROPERTIES CUDA_RUNTIME_LIBRARY None CUDA_STANDARD 17)
target_compile_options(troupe_cuda_kernels PRIVATE --expt-relaxed-constexpr -Xcompiler=-Wall,-Wextra)
target_include_directories(troupe_cuda_kernels PRIVATE "${PROJECT_SOURCE_DIR}")

file(GLOB sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/models/kernels/cuda/*.cpp" "${PROJECT_SOURCE_DIR}/parallel/cuda/*.cpp")
add_library(troupe_cuda STATIC ${sources} $<TARGET_OBJECTS:troupe_cuda_kernels>)
set_target_properties(troupe_cuda PROPERTIES CUDA_RUNTIME_LIBRARY None LINKER_LANGUAGE CXX)
target_precompile_headers(troupe_cuda REUSE_FROM troupe_torch_pch)
target_include_directories(troupe_cuda SYSTEM PRIVATE "${TROUPE_NCCL_INCLUDE_DIR}")
target_link_libraries(troupe_cuda PRIVATE $<BUILD_INTERFACE:troupe_flags>
  PUBLIC troupe_parallel Torch::cuda "${TROUPE_NCCL_LIBRARY}")

# troupe_use_cuda(PROGRAM): links the CUDA half and tells PROGRAM's own main() to register it.
function(troupe_use_cuda program)
  target_link_libraries(${program} PRIVATE troupe_cuda)
  target_compile_definitions(${program} PRIVATE TROUPE_WITH_CUDA)
endfunction()
