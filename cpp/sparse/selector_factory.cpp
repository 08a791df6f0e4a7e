// The list of selectors.
#include "sparse/selector_factory.h"

#include <algorithm>

#include "base/check.h"
#include "sparse/streaming_selector.h"

namespace fastspec {

std::unique_ptr<KvSelector> make_selector(const SparseConfig& config, const ModelConfig& target, int page_size) {
  if (!config.enabled()) return nullptr;
  const auto windowed = std::find_if(target.window.begin(), target.window.end(), [](int window) { return window > 0; });
  if (windowed != target.window.end()) {
    fail(ErrorCode::kUnsupported, "sparse passes with a ", target.architecture, " whose layer ",
         windowed - target.window.begin(), " sees a sliding window of ", *windowed,
         " tokens: one choice of keys for all layers needs layers that see all; leave sparse off");
  }
  if (config.selector == "streaming") return std::make_unique<StreamingSelector>(config.sinks, page_size);
  fail(ErrorCode::kUnsupported, "sparse \"", config.selector_text(), "\" is not part of this build");
}

}  // namespace fastspec
