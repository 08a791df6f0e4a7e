// Whole drafts as recordings, and what the host may read of them when: on a device that replays, and with operations
// whose results are hidden until they were waited for.
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "backend/intercepted_ops.h"
#include "cpp/draft/longspec_fixture.h"
#include "support/replaying_device.h"

namespace fastspec::test {
namespace {

TEST_F(LongSpecDrafterTest, RecordedTreesAreThoseOfAnyDevice) {
  Backend replaying = make_backend("cpu:reference", DType::kFloat32, 1);
  replaying.device = std::make_unique<testing::ReplayingDevice>(std::move(replaying.device));
  const auto drafter = make_drafter(replaying);
  drafter->record_graphs(3);
  EXPECT_EQ(drafter->graphs().graphs, 3);  // one tree, two, and three, which is all
  std::vector<Tokens> tokens = {random_tokens(9), random_tokens(40), random_tokens(2)};
  for (int round = 0; round < 12; ++round) {
    std::vector<DraftRequest> requests;
    std::vector<TokenTree> trees;
    for (int i = 0; i <= round % 3; ++i) {
      requests.push_back(request(i, tokens[static_cast<std::size_t>(i)]));
      requests.back().max_depth = round % 5 == 4 ? 2 : 255;
      trees.emplace_back(requests.back().tokens.back());
    }
    drafter->draft(requests, trees);
    for (std::size_t i = 0; i < trees.size(); ++i) {
      max_depth_ = requests[i].max_depth;
      expect_equal(trees[i], draft_anew(tokens[i]));
      accept(trees[i], tokens[i]);
    }
  }
  EXPECT_EQ(drafter->graphs().replays, 12);  // all levels of all trees in one
  EXPECT_EQ(drafter->graphs().eager_passes, 0);
}

/// Where few nodes may be drafted, fewer and narrower levels are computed: another shape.
TEST_F(LongSpecDrafterTest, SmallTreesAreRecordedApart) {
  Backend replaying = make_backend("cpu:reference", DType::kFloat32, 1);
  replaying.device = std::make_unique<testing::ReplayingDevice>(std::move(replaying.device));
  for (const std::vector<int>& widths : {std::vector<int>{3, 5, 4, 4}, std::vector<int>{1, 1, 1, 1}}) {
    widths_ = widths;
    const auto drafter = make_drafter(replaying);
    for (int round = 0; round < 3; ++round) {
      for (max_drafted_ = 1; max_drafted_ < 10; ++max_drafted_) {
        const Tokens tokens = random_tokens(15);
        expect_equal(draft(*drafter, 1, tokens), draft_anew(tokens));
      }
    }
    EXPECT_EQ(drafter->graphs().eager_passes, drafter->graphs().graphs);
    EXPECT_EQ(drafter->graphs().graphs, widths.front() == 1 ? 3 : 4);  // up to 1, 2, 4 nodes; more
  }
}

/// The host reads nothing of a draft but at its end.
TEST_F(LongSpecDrafterTest, ATreeIsWaitedForOnce) {
  class CountingOps final : public InterceptedOps {
   public:
    CountingOps(std::unique_ptr<Ops> inner, std::vector<char>& calls)
        : InterceptedOps(std::move(inner)), calls_(calls) {}
    void grow_beam(const GrowBeamParams& params) override {
      calls_.push_back('g');
      InterceptedOps::grow_beam(params);
      hidden_.emplace_back(params.nodes, std::vector<BeamNode>(params.nodes, params.nodes + params.width));
      std::fill_n(params.nodes, params.width, BeamNode{1 << 30, 1 << 30, 0.5f});
    }
    void await_proposals() override {
      calls_.push_back('w');
      InterceptedOps::await_proposals();
      for (const auto& [nodes, values] : hidden_) std::copy(values.begin(), values.end(), nodes);
      hidden_.clear();
    }

   private:
    void before() override {}
    void after() override {}
    std::vector<char>& calls_;
    std::vector<std::pair<BeamNode*, std::vector<BeamNode>>> hidden_;
  };
  std::vector<char> calls;
  Backend counting = make_backend("cpu:reference", DType::kFloat32, 1);
  counting.ops = std::make_unique<CountingOps>(std::move(counting.ops), calls);
  const Tokens tokens = random_tokens(30);
  expect_equal(draft(*make_drafter(counting), 1, tokens), draft_anew(tokens));
  EXPECT_EQ(std::string(calls.begin(), calls.end()), "ggggw");
}

/// Filters leave fewer proposals than a level has places.
TEST_F(LongSpecDrafterTest, LevelsMayNotBeFull) {
  Backend replaying = make_backend("cpu:reference", DType::kFloat32, 1);
  replaying.device = std::make_unique<testing::ReplayingDevice>(std::move(replaying.device));
  for (const int kept : {1, 2, 3}) {
    const auto drafter = make_drafter(backend_);
    const auto recorded = make_drafter(replaying);
    Tokens tokens = random_tokens(20);
    for (int round = 0; round < 6; ++round) {
      DraftRequest asked = request(1, tokens);
      asked.rule.temperature = 1;
      asked.rule.top_k = kept;
      std::vector<TokenTree> trees(3, TokenTree(tokens.back()));
      drafter->draft({&asked, 1}, {&trees[0], 1});
      recorded->draft({&asked, 1}, {&trees[1], 1});
      make_drafter(backend_)->draft({&asked, 1}, {&trees[2], 1});
      expect_equal(trees[0], trees[2]);
      expect_equal(trees[1], trees[2]);
      int first_level = 0;
      for (const int parent : trees[0].parents) first_level += parent == 0 ? 1 : 0;
      EXPECT_EQ(first_level, kept);
      EXPECT_EQ(trees[0].num_drafted(), kept == 1 ? 4 : kept == 2 ? 2 + 4 + 4 + 4 : 16);
      accept(trees[0], tokens);
    }
  }
}

}  // namespace
}  // namespace fastspec::test
