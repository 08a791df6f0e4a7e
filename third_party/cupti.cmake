# CUPTI's headers, for the record of kernels that `bench` prints: the CUDA toolkit's, or those of the Python package
# nvidia-cuda-cupti (torch built for CUDA depends on it). Only types and constants come from them; the library is loaded
# when it is first asked for. Without them all is built, and bench says so. Included after cublas.cmake, which finds the
# packages.

set(cupti_folders ${CUDAToolkit_INCLUDE_DIRS} "${CUDAToolkit_LIBRARY_ROOT}/extras/CUPTI/include")
foreach(folder IN LISTS nvidia_packages)
  list(APPEND cupti_folders "${folder}/cu${CUDAToolkit_VERSION_MAJOR}/include" "${folder}/cuda_cupti/include")
endforeach()
find_path(FASTSPEC_CUPTI_INCLUDE_DIR cupti.h PATHS ${cupti_folders} NO_DEFAULT_PATH)
add_library(fastspec_cupti INTERFACE)
if(FASTSPEC_CUPTI_INCLUDE_DIR)
  # Behind the toolkit's own folders: a package's may hold headers of another CUDA.
  target_compile_options(fastspec_cupti INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:SHELL:-idirafter ${FASTSPEC_CUPTI_INCLUDE_DIR}>")
  message(STATUS "CUPTI: ${FASTSPEC_CUPTI_INCLUDE_DIR}")
else()
  message(STATUS "CUPTI: no headers; bench prints no record of kernels")
endif()
