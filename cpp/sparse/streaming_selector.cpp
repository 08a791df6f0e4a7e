// Sinks and the most recent keys.
#include "sparse/streaming_selector.h"

#include "base/check.h"

namespace fastspec {

void StreamingSelector::select(std::span<const SelectRequest> requests) {
  for (const SelectRequest& request : requests) {
    const int count = request.num_slots;
    FS_CHECK(count <= request.num_cached && std::ssize(request.slots) == count, count, " slots of ", request.num_cached,
             " cached keys, room for ", request.slots.size());
    const int skipped = request.num_cached - count;
    for (int i = 0; i < count; ++i) {
      const int position = i < sinks_ ? i : i + skipped;
      request.slots[i] = Slot{request.pages[position / page_size_]} * page_size_ + position % page_size_;
    }
  }
}

}  // namespace fastspec
