// The record of kernels that bench makes after its timed runs, where the device is a GPU.
#pragma once

#include <fastspec/engine.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace fastspec::cli {

/// A record, or why there is none.
struct Traced {
  std::optional<StepTrace> trace;
  std::string why_not;
};

/// Runs `make` and turns its kUnsupported into a reason.
Traced try_trace(const std::function<StepTrace()>& make);

/// Runs the prompts as run_bench does and records `steps` of the decoding steps, or as many as there are.
StepTrace trace_decoding(Engine& engine, const std::vector<std::vector<TokenId>>& prompts, int max_tokens, int steps,
                         bool speculative);

std::string trace_heading();
/// @param mode plain or how drafts came.
std::string trace_lines(int batch, int context, const std::string& mode, const Traced& traced);
nlohmann::ordered_json to_json(const Traced& traced);

}  // namespace fastspec::cli
