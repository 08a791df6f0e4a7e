// The step loop of the program.
#include "cli/session.h"

#include <algorithm>
#include <map>
#include <utility>

#include "cli/command.h"

namespace fastspec::cli {
namespace {

/// Appends a delta to what has come of its sample; the other fields are those of the latest delta.
void add_delta(Output& whole, Output delta) {
  delta.text.insert(0, whole.text);
  delta.token_ids.insert(delta.token_ids.begin(), whole.token_ids.begin(), whole.token_ids.end());
  delta.logprobs.insert(delta.logprobs.begin(), whole.logprobs.begin(), whole.logprobs.end());
  delta.min_margin = std::min(delta.min_margin, whole.min_margin);
  whole = std::move(delta);
}

}  // namespace

std::vector<Output> run_requests(Engine& engine, const std::vector<Request>& requests,
                                 const std::function<void(const Output&)>& on_delta) {
  std::vector<Output> outputs;
  std::map<std::pair<RequestId, int>, std::size_t> index_of;
  std::vector<RequestId> ids;
  for (const Request& request : requests) {
    ids.push_back(engine.submit(request));
    for (int sample = 0; sample < request.sampling.n; ++sample) {
      index_of[{ids.back(), sample}] = outputs.size();
      outputs.emplace_back();
    }
  }
  bool cancelled = false;
  while (engine.has_work()) {
    if (interrupted() && !cancelled) {
      for (const RequestId id : ids) engine.cancel(id);
      cancelled = true;
    }
    StepReport report = engine.step();
    for (Output& delta : report.outputs) {
      if (on_delta) on_delta(delta);
      add_delta(outputs[index_of.at({delta.request, delta.sample})], std::move(delta));
    }
  }
  return outputs;
}

}  // namespace fastspec::cli
