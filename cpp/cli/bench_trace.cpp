// See bench_trace.h.
#include "cli/bench_trace.h"

#include <algorithm>

#include "cli/bench_measure.h"

namespace fastspec::cli {

Traced try_trace(const std::function<StepTrace()>& make) {
  Traced traced;
  try {
    traced.trace = make();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kUnsupported) throw;
    traced.why_not = error.what();
  }
  return traced;
}

StepTrace trace_decoding(Engine& engine, const std::vector<std::vector<TokenId>>& prompts, int max_tokens, int steps,
                         bool speculative) {
  std::optional<StepTrace> trace;
  int done = 0;
  engine.start_trace();  // the prompts' passes are recorded too, and not counted
  run_bench(engine, prompts, max_tokens, speculative, [&](int decoding_steps) {
    done = decoding_steps;
    if (done == steps) trace = engine.stop_trace(steps);
  });
  return trace ? *trace : engine.stop_trace(std::max(1, done));
}

std::string trace_heading() {
  return "\nKernels, recorded in runs of their own after the timed ones, because recording slows the host:\n";
}

std::string trace_lines(int batch, int context, const std::string& mode, const Traced& traced) {
  const std::string name =
      "\nbatch " + std::to_string(batch) + ", context " + std::to_string(context) + ", " + mode + ": ";
  return name + (traced.trace ? traced.trace->to_string() : "not traced: " + traced.why_not + "\n");
}

nlohmann::ordered_json to_json(const Traced& traced) {
  if (!traced.trace) return {{"not_traced", traced.why_not}};
  const StepTrace& trace = *traced.trace;
  nlohmann::ordered_json kernels = nlohmann::ordered_json::array();
  for (const KernelTime& kernel : trace.kernels) {
    kernels.push_back({{"name", kernel.name},
                       {"launches_per_step", kernel.launches},
                       {"ms_per_step", kernel.milliseconds},
                       {"share", kernel.share}});
  }
  return {{"steps", trace.steps},
          {"ms_per_step", trace.milliseconds},
          {"busy_ms", trace.busy_milliseconds},
          {"idle_inside_ms", trace.idle_inside_milliseconds},
          {"idle_between_ms", trace.idle_between_milliseconds},
          {"kernels", kernels}};
}

}  // namespace fastspec::cli
