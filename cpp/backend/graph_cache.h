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
  int num_logit_rows = 0;         // row tier
  int max_rows_per_sequence = 0;  // rounded up to its class
  int rule_class = 0;             // see Ops::set_rules
  bool has_prelude = false;       // see PassPrelude
  auto operator<=>(const GraphKey&) const = default;
};

/// What is kept at most; the graph that was used least recently goes.
struct GraphLimits {
  std::size_t count = 96;
  std::size_t bytes = std::size_t{1} << 30;  // of device memory
};

/// How passes of a model ran, on a device that records them.
struct GraphUse {
  std::int64_t replays = 0, captures = 0, eager_passes = 0;
  std::int64_t graphs = 0;  // kept now
  std::size_t bytes = 0;    // of device memory that they take
  double capture_seconds = 0;

  GraphUse& operator+=(const GraphUse& other) {
    replays += other.replays;
    captures += other.captures;
    eager_passes += other.eager_passes;
    graphs += other.graphs;
    bytes += other.bytes;
    capture_seconds += other.capture_seconds;
    return *this;
  }
};

class GraphCache {
 public:
  enum class Outcome { kEager, kCaptured, kReplayed };

  explicit GraphCache(Device& device, const GraphLimits& limits = {}) : device_(device), limits_(limits) {}

  /// Issues `work`, or its recording. `work` may be run later than this call returns only by a replay of the same key,
  /// so what it reads must stay where it is until clear().
  Outcome run(const GraphKey& key, const std::function<void()>& work);
  /// Records `work` now, without waiting for it to come back: it runs once as it is, unless it did before. Nothing is
  /// replayed.
  void record(const GraphKey& key, const std::function<void()>& work);
  /// Counts a pass that has no recurring shape and ran outside.
  void note_eager_pass() { ++use_.eager_passes; }
  /// Drops every graph: something that recorded work points to has moved.
  void clear();

  std::size_t size() const { return entries_.size(); }
  /// Since this was made; what record() runs is not counted, but the time that recording took is.
  GraphUse use() const;

 private:
  struct Entry {
    std::unique_ptr<Graph> graph;
    bool tried = false;  // to record it
    std::uint64_t last_use = 0;
  };
  using Entries = std::map<GraphKey, Entry>;
  /// The first pass of a shape, as it is.
  void warm_up(const GraphKey& key, const std::function<void()>& work);
  void capture(const GraphKey& key, Entry& entry, const std::function<void()>& work);
  /// Drops graphs until the limits hold for `more` of them; that of `kept` stays.
  void make_room(std::size_t more, const GraphKey& kept);

  Device& device_;
  GraphLimits limits_;
  Entries entries_;
  std::size_t bytes_ = 0;
  GraphUse use_;          // but graphs and bytes
  bool is_full_ = false;  // the device had no memory for a graph, which was said
  std::uint64_t num_uses_ = 0;
};

}  // namespace fastspec
