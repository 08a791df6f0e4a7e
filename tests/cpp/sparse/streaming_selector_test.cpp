// What the streaming selector reads, and what the factory makes and refuses.
#include "sparse/streaming_selector.h"

#include <gtest/gtest.h>

#include "sparse/selector_factory.h"
#include "support/expect_error.h"

namespace fastspec {
namespace {

using test::expect_error;

constexpr int kPageSize = 4;

std::vector<Slot> selected(int sinks, int num_cached, int num_slots) {
  const std::vector<PageId> pages = {7, 2, 9, 0, 5};
  std::vector<Slot> slots(static_cast<std::size_t>(num_slots));
  SelectRequest request{.num_cached = num_cached, .pages = pages, .slots = slots, .num_slots = num_slots};
  StreamingSelector(sinks, kPageSize).select({&request, 1});
  return slots;
}

TEST(StreamingSelectorTest, ReadsSinksAndTheLastKeysInOrder) {
  EXPECT_EQ(selected(2, 18, 7), (std::vector<Slot>{28, 29, 1, 2, 3, 20, 21}));
  EXPECT_EQ(selected(0, 18, 3), (std::vector<Slot>{3, 20, 21}));
  EXPECT_EQ(selected(3, 18, 3), (std::vector<Slot>{28, 29, 30}));
}

TEST(StreamingSelectorTest, ReadsAllWhereAllFits) {
  EXPECT_EQ(selected(2, 6, 6), (std::vector<Slot>{28, 29, 30, 31, 8, 9}));
}

TEST(StreamingSelectorTest, RefusesMoreSlotsThanKeys) {
  EXPECT_THROW(selected(2, 6, 7), Error);
}

ModelConfig model_of(std::vector<int> windows) {
  ModelConfig model;
  model.architecture = "MistralForCausalLM";
  model.num_layers = static_cast<int>(windows.size());
  model.window = std::move(windows);
  return model;
}

TEST(SelectorFactoryTest, MakesWhatIsNamed) {
  SparseConfig config;
  EXPECT_EQ(make_selector(config, model_of({0, 0}), kPageSize), nullptr);
  config.set_selector("streaming");
  EXPECT_EQ(make_selector(config, model_of({0, 0}), kPageSize)->name(), "streaming");
}

TEST(SelectorFactoryTest, RefusesSlidingWindowsByName) {
  SparseConfig config;
  config.set_selector("streaming");
  expect_error(ErrorCode::kUnsupported, {"MistralForCausalLM whose layer 1 sees a sliding window of 128"},
               [&] { make_selector(config, model_of({0, 128}), kPageSize); });
}

}  // namespace
}  // namespace fastspec
