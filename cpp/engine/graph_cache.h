// Captured passes by shape. The first pass of a shape runs as it is, which warms up whatever the backend allocates or
// searches on first use; the second is recorded, later ones are replayed. Owns graphs; knows nothing of what they
// compute.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>

#include "backend/device.h"

namespace fastspec {

/// Everything about a pass that is fixed when it is recorded.
struct GraphKey {
  int num_rows = 0;               // row tier
  int max_rows_per_sequence = 0;  // rounded up to its class
  auto operator<=>(const GraphKey&) const = default;
};

class GraphCache {
 public:
  enum class Outcome { kEager, kCaptured, kReplayed };

  static constexpr std::size_t kDefaultLimit = 96;

  /// @param limit graphs kept; the one that was used least recently goes.
  explicit GraphCache(Device& device, std::size_t limit = kDefaultLimit) : device_(device), limit_(limit) {}

  /// Issues `work`, or its recording. `work` may be run later than this call returns only by a replay of the same key,
  /// so what it reads must stay where it is until clear().
  Outcome run(const GraphKey& key, const std::function<void()>& work);
  /// Drops every graph: something that recorded work points to has moved.
  void clear() { entries_.clear(); }
  std::size_t size() const { return entries_.size(); }

 private:
  struct Entry {
    std::unique_ptr<Graph> graph;
    bool tried = false;  // to record it
    std::uint64_t last_use = 0;
  };
  void make_room();

  Device& device_;
  std::size_t limit_;
  std::map<GraphKey, Entry> entries_;
  std::uint64_t num_uses_ = 0;
};

}  // namespace fastspec
