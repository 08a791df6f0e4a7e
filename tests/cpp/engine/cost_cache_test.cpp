// Costs on disk: what was stored comes back, and anything else is measured anew.
#include "engine/cost_cache.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>

#include "support/temporary_directory.h"

namespace fastspec::test {
namespace {

CostParameters some_costs() {
  return {.rows_per_tile = 4,
          .linear = {{1, 2, 4, 8}, {10, 11, 13, 21}},
          .per_tile_key = 0.5,
          .per_key = 0.25,
          .per_sequence = 2,
          .draft = {{1, 4}, {3, 6}},
          .draft_per_key = 0.01};
}

class CostCacheTest : public ::testing::Test {
 protected:
  std::string written() const {
    std::ifstream file(cache_.path());
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void overwrite(const std::string& text) const {
    std::filesystem::create_directories(cache_.path().parent_path());
    std::ofstream(cache_.path(), std::ios::trunc) << text;
  }
  TemporaryDirectory directory_;
  CostCache cache_{directory_.path() / "not" / "there", "a GPU; a \"model\""};
};

TEST_F(CostCacheTest, KeepsWhatWasStored) {
  EXPECT_FALSE(cache_.load().has_value());
  cache_.store(some_costs());
  const std::optional<CostParameters> read = cache_.load();
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(*read, some_costs());
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(cache_.path().parent_path())) {
    EXPECT_EQ(entry.path(), cache_.path());
    ++files;
  }
  EXPECT_EQ(files, 1);
  EXPECT_FALSE(CostCache(cache_.path().parent_path(), "another GPU").load().has_value());
}

TEST_F(CostCacheTest, TheDirectoryThatIsNamedMayBeRelative) {
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(directory_.path());
  setenv("FASTSPEC_CACHE", "some/where", 1);
  const std::filesystem::path chosen = CostCache::default_directory();
  unsetenv("FASTSPEC_CACHE");
  EXPECT_EQ(chosen, std::filesystem::current_path() / "some" / "where");
  std::filesystem::current_path(before);
}

TEST_F(CostCacheTest, CostsOfNothingAreNotKept) {
  CostParameters no_passes = some_costs(), no_drafts = some_costs();
  no_passes.linear = {};
  no_drafts.draft = {};
  for (const CostParameters& costs : {no_passes, no_drafts}) {
    EXPECT_FALSE(cache_.store(costs));
    EXPECT_FALSE(std::filesystem::exists(cache_.path()));
  }
}

TEST_F(CostCacheTest, AnyPartOfAFileIsMeasuredAnew) {
  cache_.store(some_costs());
  const std::string whole = written();
  for (std::size_t length = 0; length + 2 < whole.size(); ++length) {  // without the last brace and the line's end
    overwrite(whole.substr(0, length));
    EXPECT_FALSE(cache_.load().has_value()) << length;
  }
}

TEST_F(CostCacheTest, WrongValuesAreMeasuredAnew) {
  cache_.store(some_costs());
  const std::string whole = written();
  const auto refuses = [&](const std::string& from, const std::string& to) {
    const std::size_t place = whole.find(from);
    ASSERT_NE(place, std::string::npos) << from;
    overwrite(std::string(whole).replace(place, from.size(), to));
    EXPECT_FALSE(cache_.load().has_value()) << to;
  };
  refuses("a GPU", "b GPU");
  refuses("\"rows_per_tile\": 4", "\"rows_per_tile\": 0");
  refuses("\"rows_per_tile\": 4", "\"rows_per_tile\": 1e99");
  refuses("\"per_key\": 0.25", "\"per_key\": -0.25");
  refuses("\"per_key\": 0.25", "\"per_key\": \"0.25\"");
  refuses("\"per_key\": 0.25", "\"per_key\": 1e999");
  refuses("\"per_key\"", "\"per_kex\"");
  refuses("21.0", "-21.0");
  refuses("21.0", "null");
  refuses("21.0", "21.0, 22.0");
  refuses("8", "2");  // no longer ascending
  refuses("8", "8.5");
  refuses("8", "99999999999");
  overwrite(std::string(2 << 20, ' '));
  EXPECT_FALSE(cache_.load().has_value());
}

TEST_F(CostCacheTest, WhereNothingCanBeKeptNothingFails) {
  const CostCache nowhere({}, "key");
  EXPECT_FALSE(nowhere.store(some_costs()));
  EXPECT_FALSE(nowhere.load().has_value());
  directory_.write("file", "");
  const CostCache blocked(directory_.path() / "file", "key");  // a directory that is a file
  EXPECT_FALSE(blocked.store(some_costs()));
  EXPECT_FALSE(blocked.load().has_value());
}

}  // namespace
}  // namespace fastspec::test
