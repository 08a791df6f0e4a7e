// What the files of the extension module offer one another. Sees <fastspec/...> and pybind11, nothing else of the
// engine.
#pragma once

#include <pybind11/pybind11.h>

namespace fastspec::python {

/// Turns fastspec::Error into the classes of fastspec.errors.
void bind_errors(pybind11::module_& module);
/// DrafterConfig, SpeculationConfig, EngineConfig.
void bind_config(pybind11::module_& module);
/// SamplingParams, RequestSpeculation, Request.
void bind_request(pybind11::module_& module);
/// TokenLogprob, PositionLogprobs, OutputStats, Output, StepReport, EngineStats, EngineInfo.
void bind_results(pybind11::module_& module);
/// Tokenizer and its Stream.
void bind_tokenizer(pybind11::module_& module);
/// Engine.
void bind_engine(pybind11::module_& module);
/// ShapeBenchmarkConfig, ShapePoint, ShapeBenchmark, shape_json.
void bind_shape_benchmark(pybind11::module_& module);

}  // namespace fastspec::python
