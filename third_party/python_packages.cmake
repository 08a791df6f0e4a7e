# Dependencies that come as Python packages: libtorch and pybind11. The interpreter is $Python_EXECUTABLE where given
# (scikit-build-core does), else an active or local virtual environment's, else the system's.
# Offers the targets fastspec_torch_headers, fastspec_torch, fastspec_python_headers and, with a torch for CUDA, fastspec_torch_cuda. Included by
# the top CMakeLists.txt, whose scope needs what find_package(Python) sets. Sets FASTSPEC_TORCH_INSTALL_RPATH and, for a wheel, FASTSPEC_PYTHON_SITE_FROM_SCRIPTS.

if(NOT Python_EXECUTABLE AND NOT DEFINED ENV{VIRTUAL_ENV} AND EXISTS "${PROJECT_SOURCE_DIR}/.venv/bin/python")
  set(Python_EXECUTABLE "${PROJECT_SOURCE_DIR}/.venv/bin/python" CACHE FILEPATH "Python interpreter")
endif()
set(Python_FIND_VIRTUALENV FIRST)
find_package(Python 3.10 COMPONENTS Interpreter QUIET)
if(NOT Python_Interpreter_FOUND)
  message(FATAL_ERROR " fastspec: Python >= 3.10 not found: apt-get install python3, or set Python_EXECUTABLE")
endif()

# Prints "<version>;<directory>" of the torch that `python ARGN` would import, without importing it.
function(fastspec_locate_torch out)
  execute_process(
    COMMAND "${Python_EXECUTABLE}" ${ARGN} "${PROJECT_SOURCE_DIR}/tools/locate_torch.py"
    OUTPUT_VARIABLE located OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  set(${out} "${located}" PARENT_SCOPE)
endfunction()

# -I looks past an isolated build environment into the one that the package will be installed in, so that the library is
# linked to the torch that it will run with. Only where that has none does the build environment's count.
fastspec_locate_torch(torch -I)
set(torch_is_installed ON)
if(NOT torch)
  fastspec_locate_torch(torch)
  set(torch_is_installed OFF)
endif()
if(NOT torch)
  message(FATAL_ERROR " fastspec: torch not found for ${Python_EXECUTABLE}: ${Python_EXECUTABLE} -m pip install torch")
endif()
list(GET torch 0 torch_version)
list(GET torch 1 torch_dir)
if(torch_version VERSION_LESS 2.7)
  message(FATAL_ERROR " fastspec: torch ${torch_version} in ${torch_dir} is too old: fastspec needs torch >= 2.7")
endif()
message(STATUS "torch ${torch_version} in ${torch_dir}")

# Own targets, not find_package(Torch): that one asks for a CUDA toolkit wherever torch was built for CUDA.
add_library(fastspec_torch_headers INTERFACE)
target_include_directories(fastspec_torch_headers SYSTEM INTERFACE
  "${torch_dir}/include" "${torch_dir}/include/torch/csrc/api/include")
add_library(fastspec_torch INTERFACE)
foreach(library torch_cpu c10)
  find_library(FASTSPEC_${library} ${library} PATHS "${torch_dir}/lib" NO_DEFAULT_PATH NO_CACHE REQUIRED)
  target_link_libraries(fastspec_torch INTERFACE ${FASTSPEC_${library}})
endforeach()

# Only where torch was built for CUDA. Its operations register themselves when the library is loaded, so it is linked
# whether or not a symbol is used.
if(EXISTS "${torch_dir}/lib/libtorch_cuda.so")
  add_library(fastspec_torch_cuda INTERFACE)
  target_link_options(fastspec_torch_cuda INTERFACE "LINKER:--no-as-needed")
  target_link_libraries(fastspec_torch_cuda INTERFACE fastspec_torch)
  foreach(library torch_cuda c10_cuda)
    find_library(FASTSPEC_${library} ${library} PATHS "${torch_dir}/lib" NO_DEFAULT_PATH NO_CACHE REQUIRED)
    target_link_libraries(fastspec_torch_cuda INTERFACE ${FASTSPEC_${library}})
  endforeach()
endif()

# In a wheel torch is a neighbour; elsewhere its place on this machine is written down.
set(FASTSPEC_TORCH_INSTALL_RPATH "$ORIGIN;$ORIGIN/../torch/lib")
if(torch_is_installed)
  list(APPEND FASTSPEC_TORCH_INSTALL_RPATH "${torch_dir}/lib")
endif()

add_library(fastspec_python_headers INTERFACE)
if(FASTSPEC_BUILD_PYTHON)
  # tools/bootstrap.sh unpacks Python.h here where the system lacks it; the distribution's copy includes pyconfig.h from
  # the folder above.
  set(unpacked_include "${PROJECT_SOURCE_DIR}/.deps/usr/include")
  set(unpacked_python "${unpacked_include}/python${Python_VERSION_MAJOR}.${Python_VERSION_MINOR}")
  if(EXISTS "${unpacked_python}/Python.h")
    set(Python_INCLUDE_DIR "${unpacked_python}" CACHE PATH "Folder of Python.h")
    target_include_directories(fastspec_python_headers SYSTEM INTERFACE "${unpacked_include}")
  endif()
  find_package(Python 3.10 COMPONENTS Interpreter Development.Module QUIET)
  if(NOT Python_Development.Module_FOUND)
    message(FATAL_ERROR " fastspec: Python.h of ${Python_EXECUTABLE} (${Python_VERSION}) not found: "
      "apt-get install python3-dev (without root: bash tools/bootstrap.sh)")
  endif()
  if(NOT pybind11_DIR)
    execute_process(COMMAND "${Python_EXECUTABLE}" -m pybind11 --cmakedir
      OUTPUT_VARIABLE pybind11_dir OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    if(pybind11_dir)
      set(pybind11_ROOT "${pybind11_dir}")
    endif()
  endif()
  set(PYBIND11_FINDPYTHON ON)
  find_package(pybind11 2.12 CONFIG QUIET GLOBAL)
  if(NOT pybind11_FOUND)
    message(FATAL_ERROR " fastspec: pybind11 (>= 2.12) not found: ${Python_EXECUTABLE} -m pip install pybind11")
  endif()
  # A compiler with a C++ library of its own in every module crashes a process that has torch's, too ("free(): invalid
  # pointer" was seen): such a library does not need the shared one.
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_READELF)
    set(probe "${PROJECT_BINARY_DIR}/cxx_library_probe")
    file(WRITE "${probe}.cpp" "#include <string>\nstd::string probe(int value) { return std::to_string(value); }\n")
    execute_process(COMMAND "${CMAKE_CXX_COMPILER}" -shared -fPIC "${probe}.cpp" -o "${probe}.so" COMMAND_ERROR_IS_FATAL ANY)
    execute_process(COMMAND "${CMAKE_READELF}" -d "${probe}.so" OUTPUT_VARIABLE needed COMMAND_ERROR_IS_FATAL ANY)
    if(NOT needed MATCHES "libstdc\\+\\+")
      message(FATAL_ERROR " fastspec: ${CMAKE_CXX_COMPILER} links the C++ library statically, and torch brings another one "
        "into the same Python process: name another compiler with CXX (and CUDAHOSTCXX), for instance CXX=/usr/bin/g++")
    endif()
  endif()
  # Where a wheel puts packages, seen from where it puts programs: in an environment, and for "pip install --user".
  execute_process(
    COMMAND "${Python_EXECUTABLE}" -I -c
      "import os, sysconfig as s; print(os.path.relpath(s.get_path('platlib'), s.get_path('scripts')), os.path.relpath(s.get_path('platlib', 'posix_user'), s.get_path('scripts', 'posix_user')), sep=';')"
    OUTPUT_VARIABLE FASTSPEC_PYTHON_SITE_FROM_SCRIPTS OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  list(REMOVE_DUPLICATES FASTSPEC_PYTHON_SITE_FROM_SCRIPTS)
endif()
