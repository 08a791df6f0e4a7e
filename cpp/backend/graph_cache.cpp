// See graph_cache.h.
#include "backend/graph_cache.h"

#include <chrono>
#include <utility>

#include "base/log.h"

namespace fastspec {

void GraphCache::clear() {
  entries_.clear();
  bytes_ = 0;
}

void GraphCache::make_room(std::size_t more, const GraphKey& kept) {
  while (entries_.size() + more > limits_.count || bytes_ > limits_.bytes) {
    auto oldest = entries_.end();
    for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) {
      if (entry->first == kept) continue;
      if (oldest == entries_.end() || entry->second.last_use < oldest->second.last_use) oldest = entry;
    }
    if (oldest == entries_.end()) return;
    if (oldest->second.graph != nullptr) bytes_ -= oldest->second.graph->bytes();
    entries_.erase(oldest);
  }
}

void GraphCache::capture(const GraphKey& key, Entry& entry, const std::function<void()>& work) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start = Clock::now();
  entry.graph = device_.capture(work);
  entry.tried = true;
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  use_.capture_seconds += seconds;
  if (entry.graph != nullptr) {
    bytes_ += entry.graph->bytes();
    log(LogLevel::kDebug, "passes of ", key.num_rows, " rows, up to ", key.max_rows_per_sequence,
        " a sequence: recorded in ", 1e3 * seconds, " ms, ", entry.graph->bytes(), " bytes; graphs take ", bytes_);
    make_room(0, key);
  } else if (!std::exchange(is_full_, true)) {
    log(LogLevel::kWarning, "passes of ", key.num_rows,
        " rows cannot be recorded, for lack of device memory unless another reason was given: they, and others like "
        "them, are launched operation by operation");
  }
}

GraphUse GraphCache::use() const {
  GraphUse use = use_;
  use.graphs = static_cast<std::int64_t>(entries_.size());
  use.bytes = bytes_;
  return use;
}

void GraphCache::warm_up(const GraphKey& key, const std::function<void()>& work) {
  log(LogLevel::kDebug, "first pass of ", key.num_rows, " rows, up to ", key.max_rows_per_sequence,
      " a sequence: launched operation by operation");
  work();  // before it is noted: a failed pass has warmed up nothing
  make_room(1, key);
  entries_[key].last_use = ++num_uses_;
}

GraphCache::Outcome GraphCache::run(const GraphKey& key, const std::function<void()>& work) {
  const auto found = entries_.find(key);
  if (found == entries_.end()) {
    warm_up(key, work);
    ++use_.eager_passes;
    return Outcome::kEager;
  }
  Entry& entry = found->second;
  entry.last_use = ++num_uses_;
  const bool captures = !entry.tried;
  if (captures) capture(key, entry, work);
  if (entry.graph == nullptr) {
    work();
    ++use_.eager_passes;
    return Outcome::kEager;
  }
  entry.graph->launch();
  ++(captures ? use_.captures : use_.replays);
  return captures ? Outcome::kCaptured : Outcome::kReplayed;
}

void GraphCache::record(const GraphKey& key, const std::function<void()>& work) {
  if (entries_.find(key) == entries_.end()) warm_up(key, work);
  Entry& entry = entries_.at(key);
  if (!entry.tried) capture(key, entry, work);
}

}  // namespace fastspec
