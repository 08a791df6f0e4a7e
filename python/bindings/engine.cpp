// The engine itself. Releases the interpreter lock around everything that computes, and looks at signals in callbacks.
#include <fastspec/engine.h>
#include <pybind11/functional.h>
#include <pybind11/stl.h>

#include <exception>

#include "bind.h"
#include "convert.h"

namespace py = pybind11;

namespace fastspec::python {
namespace {

/// Raises KeyboardInterrupt (or what a handler raises) if a signal is waiting. Needs the interpreter lock.
void check_signals() {
  if (PyErr_CheckSignals() != 0) throw py::error_already_set();
}

std::unique_ptr<Engine> create(const EngineConfig& config, const py::object& progress) {
  const LoadProgressCallback callback = [&progress](std::size_t done, std::size_t total) {
    const py::gil_scoped_acquire acquire;
    check_signals();
    if (!progress.is_none()) progress(done, total);
  };
  const py::gil_scoped_release release;
  return Engine::create(config, callback);
}

std::vector<Output> generate(Engine& engine, const std::vector<Request>& requests, const py::object& callback) {
  // An exception of Python must not fly through the engine's loop: the requests are cancelled first.
  std::exception_ptr failure;
  const OutputCallback on_output = [&](const Output& output) {
    if (failure) return false;
    const py::gil_scoped_acquire acquire;
    try {
      check_signals();
      return callback.is_none() || !callback(output).is(py::bool_(false));
    } catch (...) {
      failure = std::current_exception();
      return false;
    }
  };
  std::vector<Output> outputs;
  {
    const py::gil_scoped_release release;
    outputs = engine.generate(requests, on_output);
  }
  if (failure) std::rethrow_exception(failure);
  return outputs;
}

int step_into(Engine& engine, py::list& outputs) {
  StepReport report;
  {
    const py::gil_scoped_release release;
    report = engine.step();
  }
  for (Output& output : report.outputs) outputs.append(std::move(output));
  return report.num_sequences;
}

}  // namespace

void bind_engine(py::module_& module) {
  py::class_<Engine> engine(module, "Engine", R"(The engine under fastspec.LLM: submit requests, step, read outputs.

Engine(config, progress=None) loads the model; progress(bytes_done, bytes_total) is called while weights load.
submit() and cancel() may be called from any thread, step() and generate() from one at a time.)");
  refuse_unfilled(engine);
  engine.def(py::init(&create), py::arg("config"), py::arg("progress") = py::none())
      .def("submit", &Engine::submit, py::arg("request"), py::call_guard<py::gil_scoped_release>(),
           "Queues a request and returns its id. Raises InvalidArgumentError for one that can never run.")
      .def("cancel", &Engine::cancel, py::arg("request"), py::call_guard<py::gil_scoped_release>(),
           "Ends a request at the next step. Unknown or finished ids are ignored.")
      .def("has_work", &Engine::has_work, py::call_guard<py::gil_scoped_release>(),
           "True while a request waits or runs.")
      .def("step", &Engine::step, py::call_guard<py::gil_scoped_release>(),
           "One pass over the running sequences; returns a StepReport at once when there is nothing to do.")
      .def("step_into", &step_into, py::arg("outputs"),
           "step(), with its outputs appended to a list before an interrupt can be raised, so that none is lost. "
           "Returns the number of sequences in the pass.")
      .def(
          "generate", &generate, py::arg("requests"), py::arg("callback") = py::none(),
          "Submits all, steps until they are done and returns one whole Output a sample. The callback sees the deltas; "
          "returning False cancels that request.")
      .def("set_row_budget", &Engine::set_row_budget, py::arg("row_budget"), py::call_guard<py::gil_scoped_release>(),
           "Changes the row budget, as SpeculationConfig spells it, between requests; what was learned stays.")
      .def("stats", &Engine::stats, py::call_guard<py::gil_scoped_release>(), "EngineStats. Safe from any thread.")
      .def("reset_stats", &Engine::reset_stats, py::call_guard<py::gil_scoped_release>())
      .def("start_trace", &Engine::start_trace, py::call_guard<py::gil_scoped_release>(),
           "From here to stop_trace() every kernel that the GPU runs is recorded. Raises UnsupportedError where there "
           "can be no record: on a CPU, without CUPTI.")
      .def("stop_trace", &Engine::stop_trace, py::arg("max_steps"), py::call_guard<py::gil_scoped_release>(),
           "StepTrace of the last `max_steps` whole steps since start_trace().")
      .def_property_readonly("info", &Engine::info, py::return_value_policy::copy, "EngineInfo.")
      .def_property_readonly("config", &Engine::config, py::return_value_policy::copy, "A copy of the EngineConfig.")
      .def_property_readonly(
          "tokenizer", [](const Engine& self) { return std::const_pointer_cast<Tokenizer>(self.tokenizer()); },
          "Tokenizer, or None when the directory has no tokenizer.json.");
}

}  // namespace fastspec::python
