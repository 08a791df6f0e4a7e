// See page_bounds.h.
#include "sparse/page_bounds.h"

#include <algorithm>
#include <utility>

namespace fastspec {

namespace {

constexpr std::size_t kTouchedAtOnce = 1024;

}  // namespace

std::size_t PageBounds::device_bytes(const KvView& layer, int num_pages) {
  return static_cast<std::size_t>(num_pages) * static_cast<std::size_t>(layer.num_kv_heads * layer.head_dim) * 2 *
         size_of(layer.dtype);
}

PageBounds::PageBounds(Backend& backend, std::vector<KvView> layers, int num_pages)
    : backend_(backend),
      layers_(std::move(layers)),
      touched_(backend.device->allocate(kTouchedAtOnce * sizeof(TouchedPage), "pages whose keys changed")) {
  for (const KvView& layer : layers_) {
    bounds_.push_back(backend.device->allocate(device_bytes(layer, num_pages), "bounds of keys"));
  }
}

void PageBounds::observe(std::span<const SelectorObservation> observations) {
  const int page_size = 1 << layers_.front().page_shift;
  std::vector<TouchedPage> touched;
  for (const SelectorObservation& seen : observations) {
    // A page that holds some of the changed keys is looked at from its first slot on.
    const int first = std::min(seen.first_position, lengths_[seen.seq]);
    for (int begin = first - first % page_size; begin < seen.kv_len; begin += page_size) {
      touched.push_back(
          {seen.pages[static_cast<std::size_t>(begin / page_size)], std::min(page_size, seen.kv_len - begin)});
    }
  }
  for (std::size_t first = 0; first < touched.size(); first += kTouchedAtOnce) {
    update(std::span(touched).subspan(first, std::min(kTouchedAtOnce, touched.size() - first)));
  }
  for (const SelectorObservation& seen : observations) lengths_[seen.seq] = seen.kv_len;
}

void PageBounds::update(std::span<const TouchedPage> pages) {
  backend_.device->copy_to_device(touched_.data(), pages.data(), pages.size_bytes());
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    backend_.ops->update_page_bounds({.kv = layers_[i],
                                      .pages = touched_.as<const TouchedPage>(),
                                      .num_pages = static_cast<int>(pages.size()),
                                      .bounds = bounds_[i].data()});
  }
}

void PageBounds::truncate(SeqId seq, int length) {
  const auto found = lengths_.find(seq);
  if (found != lengths_.end()) found->second = std::min(found->second, length);
}

void PageBounds::share(SeqId from, SeqId to, int length) {
  const auto found = lengths_.find(from);
  const int right = found == lengths_.end() ? 0 : std::min(found->second, length);
  lengths_[to] = right;
}

}  // namespace fastspec
