// The extension module fastspec._fastspec: the public C++ surface, under the same names. Holds no logic.
#include <fastspec/fingerprint.h>
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
  module.def("model_fingerprint", &fastspec::model_fingerprint, pybind11::arg("directory"),
             pybind11::call_guard<pybind11::gil_scoped_release>(),
             "16 hexadecimal digits that change with the weights in a model's directory: 64-bit FNV-1a over the header "
             "of each *.safetensors file and a sample of its data.");
}
