// ShapeBenchmark: what decoding of a shape costs, with random weights.
#include <fastspec/shape_benchmark.h>

#include "bind.h"
#include "record.h"

namespace py = pybind11;

namespace fastspec::python {

void bind_shape_benchmark(py::module_& module) {
  Record<ShapeBenchmarkConfig> config(module, "ShapeBenchmarkConfig", R"(What a ShapeBenchmark measures.

shape: qwen2.5-7b, llama-3.1-8b, qwen3-8b, or the path of a config.json
max_batch, max_length, max_num_slots: of the largest point; a length counts its decoded tokens, see growth()
synthetic_rows, synthetic_acceptance: speculative steps verify this many drafted tokens a sequence, and this many of
    them are accepted in the mean: a SYNTHETIC acceptance, everything else of the step is real
synthetic_ranking: how often an accepted token's confidence is above a refused one's (AUC); 0: no confidences
dflash_layers: of a DFlash drafter with random weights that does its work before its proposals give way; 0: none
longspec, draft_vocabulary: a LongSpec drafter likewise, and the tokens that it may propose (0: all)
sparse: sparse passes of speculative steps: streaming, history or dustin (which takes longspec))");
  config.field("shape", &ShapeBenchmarkConfig::shape, "str")
      .field("device", &ShapeBenchmarkConfig::device, "str")
      .property(
          "dtype", "str", [](const ShapeBenchmarkConfig& self) { return py::str(to_string(self.dtype)); },
          [](ShapeBenchmarkConfig& self, const py::object& value) {
            self.dtype = parse_dtype(from_python<std::string>(value));
          })
      .field("page_size", &ShapeBenchmarkConfig::page_size, "int")
      .field("num_threads", &ShapeBenchmarkConfig::num_threads, "int")
      .field("max_batch", &ShapeBenchmarkConfig::max_batch, "int")
      .field("max_length", &ShapeBenchmarkConfig::max_length, "int")
      .field("max_num_slots", &ShapeBenchmarkConfig::max_num_slots, "int")
      .field("synthetic_rows", &ShapeBenchmarkConfig::synthetic_rows, "int")
      .field("synthetic_acceptance", &ShapeBenchmarkConfig::synthetic_acceptance, "float")
      .field("synthetic_ranking", &ShapeBenchmarkConfig::synthetic_ranking, "float")
      .field("dflash_layers", &ShapeBenchmarkConfig::dflash_layers, "int")
      .field("longspec", &ShapeBenchmarkConfig::longspec, "bool")
      .field("draft_vocabulary", &ShapeBenchmarkConfig::draft_vocabulary, "int")
      .field("sparse", &ShapeBenchmarkConfig::sparse, "SparseConfig")
      .finish_options([](const ShapeBenchmarkConfig& self) { self.validate(); });
  config.python_class().def("growth", &ShapeBenchmarkConfig::growth, py::arg("steps"), py::arg("repetitions"),
                            "Tokens that a sequence may grow by in measure().");

  Record<ShapePoint> point(module, "ShapePoint", R"(What one point cost.

context: tokens of a sequence when the first timed step begins, mean over the batch
milliseconds: a step, of each run; weight_bytes and kv_bytes are read in a step
stats: EngineStats of the timed steps only)");
  point.readonly("batch", &ShapePoint::batch)
      .readonly("context", &ShapePoint::context)
      .readonly("synthetic_rows", &ShapePoint::synthetic_rows)
      .readonly("milliseconds", &ShapePoint::milliseconds)
      .computed("median_milliseconds", &ShapePoint::median_milliseconds)
      .computed("tokens_per_second", &ShapePoint::tokens_per_second)
      .computed("host_gap_milliseconds", &ShapePoint::host_gap_milliseconds)
      .readonly("weight_bytes", &ShapePoint::weight_bytes)
      .readonly("kv_bytes", &ShapePoint::kv_bytes)
      .readonly("stats", &ShapePoint::stats)
      .finish_results();

  py::class_<ShapeBenchmark> benchmark(module, "ShapeBenchmark", R"(Decoding of a shape without a model's files.

ShapeBenchmark(config) makes random weights on the device and a KV cache that holds noise.)");
  refuse_unfilled(benchmark);
  benchmark.def(py::init<const ShapeBenchmarkConfig&>(), py::arg("config"), py::call_guard<py::gil_scoped_release>())
      .def("measure", &ShapeBenchmark::measure, py::arg("batch"), py::arg("context"), py::arg("steps"),
           py::arg("repetitions"), py::arg("speculative") = false, py::call_guard<py::gil_scoped_release>(),
           "Decodes `batch` sequences from `context` tokens on, a few steps untimed, then `repetitions` runs of "
           "`steps`; "
           "returns a ShapePoint.")
      .def("set_row_budget", &ShapeBenchmark::set_row_budget, py::arg("row_budget"),
           py::call_guard<py::gil_scoped_release>(), "Of speculative measurements from now on: off, auto or fixed:RHO.")
      .def("trace", &ShapeBenchmark::trace, py::arg("batch"), py::arg("context"), py::arg("steps"),
           py::arg("speculative") = false, py::call_guard<py::gil_scoped_release>(),
           "Records `steps` such steps kernel by kernel, in a run of its own; returns a StepTrace. Raises "
           "UnsupportedError where there can be no record: on a CPU, without CUPTI.")
      .def_property_readonly("info", &ShapeBenchmark::info, py::return_value_policy::copy, "EngineInfo.");
  module.def("shape_json", &shape_json, py::arg("shape"),
             "config.json of a shape: of a name that ShapeBenchmarkConfig knows, or the text of the file at a path.");
}

}  // namespace fastspec::python
