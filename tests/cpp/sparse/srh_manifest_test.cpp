// Manifests of retrieval heads: what a good one says, and that each kind of wrong one is refused by file, field and
// value; hundreds of broken ones are read or refused.
#include "sparse/srh_manifest.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "support/allocation_watch.h"
#include "support/expect_error.h"
#include "support/mutations.h"
#include "support/temporary_directory.h"

namespace fastspec::test {
namespace {

using nlohmann::json;

const char* const kTarget = "0123456789abcdef";
const char* const kDrafter = "fedcba9876543210";

json good() {
  return {
      {"format", "fastspec-srh"},
      {"version", 1},
      {"target",
       {{"fingerprint", kTarget}, {"layers", {{{"layer", 12}, {"heads", {3, 0}}}, {{"layer", 5}, {"heads", {7}}}}}}},
      {"drafter", {{"fingerprint", kDrafter}, {"kind", "standalone"}, {"layers", {{{"layer", 1}, {"heads", {1, 2}}}}}}},
      {"budget", 512},
      {"sinks", 4},
      {"recent", 16},
      {"lookahead_slots", 128},
      {"pooling", "max"},
      {"arr", 0.93},
      {"objective", "arr"},
      {"made_by", {{"anything", "for people"}}}};
}

class SrhManifestTest : public testing::Test {
 protected:
  SrhManifest read(const json& document) { return read_srh_manifest(directory_.write("m.json", document.dump())); }
  /// Expects that the document with `value` at `place` is refused, naming the file and the parts.
  void refuses(const char* place, const json& value, std::initializer_list<std::string> parts,
               ErrorCode code = ErrorCode::kInvalidFile) {
    json document = good();
    document[json::json_pointer(place)] = value;
    const std::string message = expect_error(code, parts, [&] { read(document); });
    EXPECT_NE(message.find("m.json"), std::string::npos) << message;
  }
  TemporaryDirectory directory_;
};

TEST_F(SrhManifestTest, SaysWhatIsInIt) {
  const SrhManifest manifest = read(good());
  EXPECT_EQ(manifest.target_fingerprint, kTarget);
  ASSERT_EQ(manifest.target_layers.size(), 2u);
  EXPECT_EQ(manifest.target_layers[0].layer, 5);  // in order, whatever the file's
  EXPECT_EQ(manifest.target_layers[1].layer, 12);
  EXPECT_EQ(manifest.target_layers[1].heads, (std::vector<int>{0, 3}));
  ASSERT_TRUE(manifest.drafter);
  EXPECT_EQ(manifest.drafter->kind, "standalone");
  EXPECT_EQ(manifest.drafter->fingerprint, kDrafter);
  EXPECT_EQ(manifest.drafter->layers[0].heads, (std::vector<int>{1, 2}));
  EXPECT_EQ(manifest.budget, 512);
  EXPECT_EQ(manifest.sinks, 4);
  EXPECT_EQ(manifest.recent, 16);
  EXPECT_EQ(manifest.lookahead_slots, 128);
  EXPECT_EQ(manifest.pooling, RowPooling::kMax);

  json alone = good();
  alone["drafter"] = nullptr;
  alone["lookahead_slots"] = 0;
  alone["pooling"] = "mean";
  EXPECT_FALSE(read(alone).drafter);
  EXPECT_EQ(read(alone).pooling, RowPooling::kMean);
}

TEST_F(SrhManifestTest, RefusesWhatIsWrongByName) {
  refuses("/format", "other", {"\"format\"", "other", "fastspec-srh"});
  refuses("/version", 2, {"\"version\"", "2"}, ErrorCode::kUnsupported);
  refuses("/target/fingerprint", "0123456789ABCDEF", {"\"target.fingerprint\"", "0123456789ABCDEF"});
  refuses("/target/fingerprint", "0123", {"\"target.fingerprint\"", "0123"});
  refuses("/target/layers", json::array(), {"\"target.layers\"", "no layer"});
  refuses("/target/layers/0/heads", json::array(), {"target.layers", "heads", "no head"});
  refuses("/target/layers/0/heads/1", 3, {"heads", "head 3 twice"});
  refuses("/target/layers/1/layer", 12, {"\"target.layers\"", "layer 12 twice"});
  refuses("/target/layers/0/layer", -1, {"layer", "-1"});
  refuses("/target/layers/0/heads/0", 1.5, {"heads", "integer"});
  refuses("/target/layers/0/heads", std::vector<int>(kMaxScoredHeads + 1, 0), {"heads", "128"},
          ErrorCode::kUnsupported);
  refuses("/drafter/kind", "dflash", {"\"drafter.kind\"", "dflash"}, ErrorCode::kUnsupported);
  refuses("/drafter/kind", "longspec", {"\"drafter.layers\"", "longspec"});
  refuses("/drafter", nullptr, {"\"lookahead_slots\"", "128"});
  refuses("/budget", 147, {"\"budget\"", "147", "128"});
  refuses("/budget", 0, {"\"budget\"", "0"});
  refuses("/sinks", -4, {"\"sinks\"", "-4"});
  refuses("/lookahead_slots", std::int64_t{1} << 40, {"\"lookahead_slots\"", "1099511627776"});
  refuses("/pooling", "median", {"\"pooling\"", "median"});
  json without = good();
  without.erase("recent");
  expect_error(ErrorCode::kInvalidFile, {"m.json", "recent"}, [&] { read(without); });
  expect_error(ErrorCode::kNotFound, {"absent.json"}, [&] { read_srh_manifest("absent.json"); });
}

TEST_F(SrhManifestTest, IsHeldAgainstWhatIsLoaded) {
  const SrhManifest manifest = read(good());
  const SrhModel target{kTarget, 13, 8}, drafter{kDrafter, 2, 3};
  EXPECT_NO_THROW(check_target(manifest, target));
  EXPECT_NO_THROW(check_drafter(manifest, "standalone", drafter));
  const auto refuses_target = [&](const SrhModel& other, std::initializer_list<std::string> parts) {
    expect_error(ErrorCode::kInvalidArgument, parts, [&] { check_target(manifest, other); });
  };
  refuses_target({kDrafter, 13, 8}, {"m.json", "\"target.fingerprint\"", kTarget, kDrafter});
  refuses_target({kTarget, 12, 8}, {"m.json", "target.layers", "layer 12", "has 12"});
  refuses_target({kTarget, 13, 7}, {"m.json", "target.layers", "head 7", "layer 5", "has 7"});
  const auto refuses_drafter = [&](const char* kind, const SrhModel& other, std::initializer_list<std::string> parts) {
    expect_error(ErrorCode::kInvalidArgument, parts, [&] { check_drafter(manifest, kind, other); });
  };
  refuses_drafter("longspec", drafter, {"m.json", "\"drafter.kind\"", "standalone", "longspec"});
  refuses_drafter("", {}, {"m.json", "\"drafter.kind\"", "nothing"});
  refuses_drafter("standalone", {kTarget, 2, 3}, {"m.json", "\"drafter.fingerprint\"", kTarget, kDrafter});
  refuses_drafter("standalone", {kDrafter, 1, 3}, {"drafter.layers", "layer 1", "has 1"});
  refuses_drafter("standalone", {kDrafter, 2, 2}, {"drafter.layers", "head 2", "has 2"});

  json alone = good();
  alone["drafter"] = nullptr;
  alone["lookahead_slots"] = 0;
  EXPECT_NO_THROW(check_drafter(read(alone), "ngram", {}));
}

TEST_F(SrhManifestTest, BrokenOnesAreReadOrRefused) {
  Random random(20260611);
  int refused = 0;
  for (int i = 0; i < 120; ++i) {
    const std::string text = i % 2 == 0 ? mutate_json(good(), random) : mutate_bytes(good().dump(), random);
    directory_.write("m.json", text);
    const AllocationWatch watch;
    try {
      const SrhManifest manifest = read_srh_manifest((directory_.path() / "m.json").string());
      ASSERT_LE(manifest.sinks + manifest.recent + manifest.lookahead_slots, manifest.budget) << text;
      for (const LayerHeads& layer : manifest.target_layers) ASSERT_FALSE(layer.heads.empty()) << text;
    } catch (const Error& error) {
      ++refused;
      ASSERT_NE(std::string(error.what()).find("m.json"), std::string::npos) << error.what();
      ASSERT_NE(error.code(), ErrorCode::kInternal) << error.what();
    }
    ASSERT_LT(watch.largest(), 1'000'000u) << text;
  }
  EXPECT_GT(refused, 60);
}

}  // namespace
}  // namespace fastspec::test
