// Runs requests on an engine with Ctrl-C in mind: what was generated so far is kept.
#pragma once

#include <fastspec/engine.h>

#include <functional>
#include <vector>

namespace fastspec::cli {

/// Submits the requests and steps until they are done. Ctrl-C cancels them; the flag stays set for the caller to take.
/// @param on_delta sees every delta as it comes; may be empty.
/// @return one whole Output a sample, in request and sample order; a cancelled one has what was there.
std::vector<Output> run_requests(Engine& engine, const std::vector<Request>& requests,
                                 const std::function<void(const Output&)>& on_delta);

}  // namespace fastspec::cli
