# cuBLASLt: the CUDA toolkit's, or, where that has none, the one that a Python package brings (torch built for CUDA
# depends on it; else: pip install nvidia-cublas). Offers the target fastspec_cublas and sets FASTSPEC_CUBLAS_RPATH.
# Included by the top CMakeLists.txt after python_packages.cmake.

set(FASTSPEC_CUBLAS_ROOT "" CACHE PATH "Folder with include/cublasLt.h and lib/libcublasLt.so*; empty: looked for")

# NVIDIA's Python packages, for CUPTI too. -I: of the environment to install into, not that of an isolated build.
execute_process(
  COMMAND "${Python_EXECUTABLE}" -I -c "import nvidia; print(';'.join(nvidia.__path__))"
  OUTPUT_VARIABLE nvidia_packages OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)

add_library(fastspec_cublas INTERFACE)
set(FASTSPEC_CUBLAS_RPATH "")
if(TARGET CUDA::cublasLt AND NOT FASTSPEC_CUBLAS_ROOT)
  target_link_libraries(fastspec_cublas INTERFACE CUDA::cublasLt)
  set(FASTSPEC_CUBLAS_RPATH "${CUDAToolkit_LIBRARY_DIR}")
else()
  set(cublas_roots ${FASTSPEC_CUBLAS_ROOT})
  set(cublas_library "")
  foreach(folder IN LISTS nvidia_packages)
    list(APPEND cublas_roots "${folder}/cu${CUDAToolkit_VERSION_MAJOR}" "${folder}/cublas")
  endforeach()
  foreach(root IN LISTS cublas_roots)
    file(GLOB found "${root}/lib*/libcublasLt.so.${CUDAToolkit_VERSION_MAJOR}")
    if(found AND EXISTS "${root}/include/cublasLt.h")
      list(GET found 0 cublas_library)
      set(cublas_include "${root}/include")
      break()
    endif()
  endforeach()
  if(NOT cublas_library)
    message(FATAL_ERROR " fastspec: the CUDA toolkit in ${CUDAToolkit_BIN_DIR} has no cuBLASLt, and no Python package of "
      "${Python_EXECUTABLE} has it: ${Python_EXECUTABLE} -m pip install nvidia-cublas, or name its folder in FASTSPEC_CUBLAS_ROOT")
  endif()
  message(STATUS "cuBLASLt: ${cublas_library}")
  target_include_directories(fastspec_cublas SYSTEM INTERFACE "${cublas_include}")
  target_link_libraries(fastspec_cublas INTERFACE "${cublas_library}")
  get_filename_component(cublas_folder "${cublas_library}" DIRECTORY)
  set(FASTSPEC_CUBLAS_RPATH "$ORIGIN/../nvidia/cu${CUDAToolkit_VERSION_MAJOR}/lib" "$ORIGIN/../nvidia/cublas/lib" "${cublas_folder}")
endif()
