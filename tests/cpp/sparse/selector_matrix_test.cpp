// The lossless matrix under Guarantee::kExact with each selector that scores on the device: whatever it chooses, the
// output is bit for bit plain decoding's. What runs of provisional tokens do is
// tests/cpp/engine/sparse_matrix_test.cpp.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "support/engine_harness.h"
#include "support/lossless_matrix.h"
#include "support/temporary_directory.h"

namespace fastspec::testing {
namespace {

std::string manifest_text(const std::string& kind) {
  const auto layers = [](int layer, std::vector<int> heads) {
    return nlohmann::json::array({{{"layer", layer}, {"heads", std::move(heads)}}});
  };
  return nlohmann::json{
      {"format", "fastspec-srh"},
      {"version", 1},
      {"target", {{"fingerprint", kTargetFingerprint}, {"layers", layers(1, {0, 3})}}},
      {"drafter", {{"fingerprint", kDraftFingerprint}, {"kind", kind}, {"layers", layers(0, {1, 2})}}},
      {"budget", 12},
      {"sinks", 2},
      {"recent", 4},
      {"lookahead_slots", 4},
      {"pooling", "max"}}
      .dump();
}

class SelectorMatrix : public ::testing::Test {
 protected:
  void run_all(const std::string& selector, const MatrixSetting& setting) {
    for (const Disturbance disturbance : kDisturbances) {
      // What is cut at random comes to an end only where steps accept many tokens.
      const bool is_fast = setting.drafter == MatrixDrafter::kPlantedTree && setting.probability == 1;
      if (disturbance == Disturbance::kTruncation && !is_fast) continue;
      HarnessOptions base;
      base.has_windows = false;
      base.sparse.selector = selector;
      base.sparse.kv_budget = 12;
      base.sparse.sinks = 2;
      base.sparse.recent = 4;
      base.sparse.refresh_interval = 3;
      base.pipelined = disturbance == Disturbance::kTruncation || disturbance == Disturbance::kPreemption;
      if (selector == "dustin") base.sparse.manifest = path_;
      const MatrixCase one{setting, 8, disturbance};
      SCOPED_TRACE(selector + ", " + describe(one, 0.7f, true));
      const MatrixRun seen = run_matrix_case(one, base, requests_, plain(base), nullptr);
      ASSERT_EQ(difference(plain(base), seen.outputs), "");
      EXPECT_GT(seen.stats.sparse.confirmed_tokens, 0);
    }
  }
  const Outputs& plain(const HarnessOptions& base) {
    if (plain_.empty()) plain_ = run_plain_alone(base, requests_);
    return plain_;
  }
  void write_manifest(const std::string& kind) { path_ = directory_.write("m.json", manifest_text(kind)).string(); }

  std::vector<Request> requests_ = matrix_requests(8, 0.7f, true);
  Outputs plain_;
  test::TemporaryDirectory directory_;
  std::string path_;
};

TEST_F(SelectorMatrix, History) {
  run_all("history", {MatrixDrafter::kNone});
  run_all("history", {MatrixDrafter::kPlantedTree, 0.8, "auto"});
  run_all("history", {MatrixDrafter::kPlantedTree, 1.0});
}
TEST_F(SelectorMatrix, Quest) {
  run_all("quest", {MatrixDrafter::kNgram});
  run_all("quest", {MatrixDrafter::kPlantedTree, 1.0});
}
TEST_F(SelectorMatrix, Oracle) {
  run_all("oracle", {MatrixDrafter::kPlantedTree, 0.8});
  run_all("oracle", {MatrixDrafter::kDFlash});
}
TEST_F(SelectorMatrix, DustinWithASmallModel) {
  write_manifest("standalone");
  run_all("dustin", {MatrixDrafter::kStandalone});
}
TEST_F(SelectorMatrix, DustinWithLongSpec) {
  write_manifest("longspec");
  run_all("dustin", {MatrixDrafter::kLongSpecTree});
}

}  // namespace
}  // namespace fastspec::testing
