// Channel-wise bounds of the keys of pages (Quest, arXiv 2406.10774), kept right for what sequences cached: computed
// anew for pages whose keys have changed, and for no others.
#pragma once

#include <cstddef>
#include <span>
#include <unordered_map>
#include <vector>

#include "backend/backend.h"
#include "sparse/kv_selector.h"

namespace fastspec {

class PageBounds {
 public:
  /// @param layers whose keys are bounded. @param num_pages of the pool.
  PageBounds(Backend& backend, std::vector<KvView> layers, int num_pages);
  /// Of each layer.
  static std::size_t device_bytes(const KvView& layer, int num_pages);

  /// See PageBoundsParams.
  const void* layer(std::size_t index) const { return bounds_[index].data(); }

  void observe(std::span<const SelectorObservation> observations);
  void truncate(SeqId seq, int length);
  void forget(SeqId seq) noexcept { lengths_.erase(seq); }
  void share(SeqId from, SeqId to, int length);

 private:
  void update(std::span<const TouchedPage> pages);

  Backend& backend_;
  std::vector<KvView> layers_;
  std::vector<Buffer> bounds_;
  Buffer touched_;                          // on the device
  std::unordered_map<SeqId, int> lengths_;  // leading cached tokens whose pages have right bounds, as far as they go
};

}  // namespace fastspec
