// See grown_levels.h.
#include "draft/longspec/grown_levels.h"

#include <algorithm>
#include <numeric>

namespace fastspec {

namespace {

constexpr std::size_t kAlignment = 256;

/// Memory cut into aligned arrays; without memory it counts their bytes.
class Cutter {
 public:
  explicit Cutter(void* memory) : memory_(static_cast<std::byte*>(memory)) {}
  template <typename T>
  void take(int count, T*& array) {
    const std::size_t begin = (used_ + kAlignment - 1) / kAlignment * kAlignment;
    used_ = begin + static_cast<std::size_t>(count) * sizeof(T);
    if (memory_ != nullptr) array = reinterpret_cast<T*>(memory_ + begin);
  }
  std::size_t used() const { return used_; }

 private:
  std::byte* memory_;
  std::size_t used_ = 0;
};

GrownLevels::Arrays cut(Cutter& memory, const TreeShape& most) {
  GrownLevels::Arrays arrays;
  arrays.levels.resize(static_cast<std::size_t>(most.depth()));
  int max_rows = 0, max_proposals = 0;
  for (int level = 0; level < most.depth(); ++level) {
    GrownLevels::Level& own = arrays.levels[static_cast<std::size_t>(level)];
    const int rows = most.num_rows(level);
    max_rows = std::max(max_rows, rows);
    max_proposals = std::max(max_proposals, rows * most.width(level + 1));
    memory.take(rows, own.ancestry);
    if (level == 0) continue;
    memory.take(rows, own.tokens);
    memory.take(rows, own.scores);
    memory.take(rows * (level - 1), own.ancestors);
    memory.take(rows * level, own.paths);
  }
  memory.take(max_proposals, arrays.proposals);
  memory.take(max_proposals, arrays.confidences);
  memory.take(max_rows + 1, arrays.row_numbers);
  memory.take(max_rows, arrays.masks);
  return arrays;
}

}  // namespace

std::size_t GrownLevels::device_bytes(const TreeShape& most) {
  Cutter counter(nullptr);
  cut(counter, most);
  return counter.used();
}

GrownLevels::GrownLevels(Device& device, const TreeShape& most)
    : memory_(device.allocate(device_bytes(most), "levels of draft trees")) {
  Cutter memory(memory_.data());
  arrays_ = cut(memory, most);
  write_constants(device, most);
}

void GrownLevels::write_constants(Device& device, const TreeShape& most) const {
  const auto write = [&](auto* destination, const auto& values) {
    device.copy_to_device(destination, values.data(), values.size() * sizeof(values[0]));
  };
  int max_rows = 0;
  for (int level = 0; level < most.depth(); ++level) {
    const int length = std::max(level - 1, 0);
    std::vector<KvList> lists;
    for (int row = 0; row < most.num_rows(level); ++row) {
      lists.push_back({.offset = std::int64_t{row} * length, .length = length, .pages = false});
    }
    write(arrays_.levels[static_cast<std::size_t>(level)].ancestry, lists);
    max_rows = std::max(max_rows, most.num_rows(level));
  }
  std::vector<std::int32_t> row_numbers(static_cast<std::size_t>(max_rows) + 1);
  std::iota(row_numbers.begin(), row_numbers.end(), 0);
  write(arrays_.row_numbers, row_numbers);
  write(arrays_.masks, std::vector<NewMask>(static_cast<std::size_t>(max_rows), NewMask::kCausal));
}

}  // namespace fastspec
