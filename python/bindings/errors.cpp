// Errors that cross into Python. The classes themselves are plain Python (fastspec/errors.py), so that they pickle and
// have one home; this file only picks the one for a code.
#include <fastspec/error.h>

#include "bind.h"

namespace py = pybind11;

namespace fastspec::python {

void bind_errors(py::module_&) {
  py::register_exception_translator([](std::exception_ptr pointer) {
    if (!pointer) return;
    try {
      std::rethrow_exception(pointer);
    } catch (const Error& error) {
      try {
        const py::object exception =
            py::module_::import("fastspec.errors").attr("error_from_code")(to_string(error.code()), error.what());
        PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(exception.ptr())), exception.ptr());
      } catch (py::error_already_set& failure) {
        failure.restore();
      }
    }
  });
}

}  // namespace fastspec::python
