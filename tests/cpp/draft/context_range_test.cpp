// What a ring of context holds, against a list of what was written where.
#include "draft/dflash/context_range.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

namespace fastspec::test {
namespace {

/// Every place by the position that wrote it last, as long as that position is committed and joined to the end.
class Model {
 public:
  explicit Model(const ContextShape& shape) : shape_(shape) {}

  void note(int first, int end) {
    if (first > end_) written_.clear();
    for (int position = first; position < end; ++position) written_[place(position)] = position;
    end_ = end;
  }
  void truncate(int length) {
    end_ = std::min(end_, length);
    std::erase_if(written_, [&](const auto& entry) { return entry.second >= end_; });
  }
  std::vector<int> visible(int root) const {
    std::vector<int> positions;
    for (const auto& [place, position] : written_) {
      const bool in_window = !shape_.is_ring() || position < shape_.sinks || position >= root - shape_.window;
      if (position < root && in_window) positions.push_back(position);
    }
    std::sort(positions.begin(), positions.end());
    return positions;
  }
  int end() const { return end_; }

 private:
  int place(int position) const { return shape_.is_ring() ? shape_.place(position) : position; }

  ContextShape shape_;
  std::map<int, int> written_;
  int end_ = 0;
};

TEST(ContextRange, HoldsWhatWasWrittenLast) {
  std::mt19937 random(3);
  int whole = 0, partial = 0;
  for (const ContextShape& shape : {ContextShape{}, ContextShape{5, 0}, ContextShape{7, 3}, ContextShape{1, 1}}) {
    for (int round = 0; round < 300; ++round) {
      ContextRange range(shape);
      Model model(shape);
      int length = 0;
      for (int step = 0; step < 30; ++step) {
        if (random() % 6 == 0) {
          length = static_cast<int>(random() % static_cast<unsigned>(length + 1));
          range.truncate(length);
          model.truncate(length);
        }
        if (random() % 15 == 0) length += 1 + static_cast<int>(random() % 3);  // of these nothing was recorded
        const int count = 1 + static_cast<int>(random() % (step == 0 ? 20 : 4));
        range.note(length, length + count);
        model.note(length, length + count);
        length += count;
        ASSERT_EQ(range.end(), model.end());
        const std::vector<int> expected = model.visible(length);
        ASSERT_EQ(range.visible(length), expected) << "window " << shape.window << ", sinks " << shape.sinks;
        const int most = shape.is_ring() ? std::min(length, shape.num_slots()) : length;
        ASSERT_EQ(range.is_whole(length), static_cast<int>(expected.size()) == most);
        ++(range.is_whole(length) ? whole : partial);
      }
    }
  }
  EXPECT_GT(whole, 10000);
  EXPECT_GT(partial, 3000);
}

TEST(ContextRange, AWholeRingIsItsFirstPlaces) {
  const ContextShape shape{6, 2};
  ContextRange range(shape);
  for (int length = 1; length < 40; ++length) {
    range.note(length - 1, length);
    ASSERT_TRUE(range.is_whole(length));
    std::vector<int> places;
    for (const int position : range.visible(length)) places.push_back(shape.place(position));
    std::sort(places.begin(), places.end());
    for (std::size_t i = 0; i < places.size(); ++i) EXPECT_EQ(places[i], static_cast<int>(i));
    EXPECT_EQ(places.size(), static_cast<std::size_t>(std::min(length, 8)));
  }
}

TEST(ContextRange, OfManyRowsOnlyThoseThatStayAreWritten) {
  const ContextShape shape{6, 2};
  const ContextRange range(shape);
  std::vector<int> kept;
  for (int position = 0; position < 20; ++position) {
    if (range.keeps(position, 20)) kept.push_back(position);
  }
  EXPECT_EQ(kept, (std::vector<int>{0, 1, 14, 15, 16, 17, 18, 19}));
}

}  // namespace
}  // namespace fastspec::test
