// The extension module fastspec._fastspec: the public C++ surface, under the same names. Holds no logic.
#include <fastspec/version.h>

#include "bind.h"

PYBIND11_MODULE(_fastspec, module) {
  module.doc() = "The C++ engine of fastspec. Use it through the package fastspec.";
  module.attr("__version__") = fastspec::version();
  fastspec::python::bind_errors(module);
  fastspec::python::bind_tokenizer(module);
  fastspec::python::bind_config(module);
  fastspec::python::bind_request(module);
  fastspec::python::bind_results(module);
  fastspec::python::bind_engine(module);
  fastspec::python::bind_shape_benchmark(module);
}
