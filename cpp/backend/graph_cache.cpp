// See graph_cache.h.
#include "backend/graph_cache.h"

#include <algorithm>

#include "base/log.h"

namespace fastspec {

void GraphCache::make_room() {
  while (entries_.size() >= limit_ && !entries_.empty()) {
    entries_.erase(std::min_element(entries_.begin(), entries_.end(), [](const auto& left, const auto& right) {
      return left.second.last_use < right.second.last_use;
    }));
  }
}

GraphCache::Outcome GraphCache::run(const GraphKey& key, const std::function<void()>& work) {
  const auto found = entries_.find(key);
  if (found == entries_.end()) {
    log(LogLevel::kDebug, "first pass of ", key.num_rows, " rows, up to ", key.max_rows_per_sequence,
        " a sequence: launched operation by operation");
    work();  // before it is noted: a failed pass has warmed up nothing
    make_room();
    entries_[key].last_use = ++num_uses_;
    return Outcome::kEager;
  }
  Entry& entry = found->second;
  entry.last_use = ++num_uses_;
  const bool captures = !entry.tried;
  if (captures) {
    entry.graph = device_.capture(work);
    entry.tried = true;
  }
  if (entry.graph == nullptr) {
    work();
    return Outcome::kEager;
  }
  entry.graph->launch();
  return captures ? Outcome::kCaptured : Outcome::kReplayed;
}

}  // namespace fastspec
