// What of a batch reaches the device, pass after pass: arrays, padding, and page tables of which only news is copied.
#include "model/pass.h"

#include <gtest/gtest.h>

#include <deque>
#include <random>

#include "backend/backend.h"
#include "support/expect_error.h"

namespace fastspec::test {
namespace {

/// Host memory that counts what is copied to it.
class CountingDevice final : public Device {
 public:
  std::string name() const override { return "counting"; }
  Buffer allocate(std::size_t bytes, const char* what) override { return inner_.device->allocate(bytes, what); }
  Buffer allocate_host(std::size_t bytes, const char* what) override { return allocate(bytes, what); }
  void copy_to_device(void* destination, const void* source, std::size_t bytes) override {
    inner_.device->copy_to_device(destination, source, bytes);
    copied += bytes;
  }
  void copy_to_host(void*, const void*, std::size_t) override {}
  std::size_t available_bytes() const override { return 0; }
  std::size_t copied = 0;

 private:
  Backend inner_ = make_backend("cpu:reference", DType::kFloat32, 1);
};

/// The pages of one sequence as they grow and shrink, with versions as PagedKvCache gives them.
struct Table {
  std::vector<PageId> pages;
  std::uint64_t version = 0;
};

class PassTest : public ::testing::Test {
 protected:
  static constexpr int kSequences = 5;
  static constexpr int kPages = 40;  // of a sequence at most

  void add(const Table& table, int num_lasting) {
    batch_.tokens.push_back(static_cast<TokenId>(table.version));
    batch_.positions.push_back(7);
    batch_.slots.push_back(11);
    batch_.logit_rows.push_back(batch_.num_rows() - 1);
    batch_.kv.lists.push_back({.length = static_cast<std::int32_t>(table.pages.size())});
    batch_.kv.tables.push_back({.pages = table.pages.data(),
                                .num_pages = static_cast<int>(table.pages.size()),
                                .num_lasting = num_lasting,
                                .version = table.version});
    batch_.end_sequence(NewMask::kCausal);
  }
  Pass send(bool staged) {
    if (!staged) return buffers_.upload(batch_);
    const Pass pass = buffers_.stage(batch_);
    buffers_.copy_staged();
    return pass;
  }
  void check(const Pass& pass) const {
    for (int i = 0; i < batch_.num_sequences(); ++i) {
      ASSERT_EQ(pass.tokens[i], batch_.tokens[i]);
      ASSERT_EQ(pass.slots[i], 11);
      const PageTable& table = batch_.kv.tables[i];
      ASSERT_EQ(pass.lists[i].length, table.num_pages);
      for (int page = 0; page < table.num_pages; ++page) {
        ASSERT_EQ(pass.entries[pass.lists[i].offset + page], table.pages[page]) << "sequence " << i << " page " << page;
      }
    }
  }

  CountingDevice device_;
  PassBuffers buffers_{device_, {.max_rows = 16, .max_sequences = kSequences, .max_list_entries = kSequences * kPages}};
  RowBatch batch_;
};

TEST_F(PassTest, TablesAreRightWhateverGrowsShrinksComesAndGoes) {
  std::mt19937 random(3);
  std::deque<Table> tables;
  std::uint64_t version = 0;
  for (int pass = 0; pass < 3000; ++pass) {
    if (tables.size() < 9 && random() % 4 == 0) tables.push_back({.pages = {}, .version = ++version});
    if (!tables.empty() && random() % 9 == 0) tables.erase(tables.begin() + random() % tables.size());
    for (Table& table : tables) {
      if (random() % 8 == 0) {  // cut: what comes then are other pages
        table.pages.resize(random() % (table.pages.size() + 1));
        table.version = ++version;
      }
      for (int more = static_cast<int>(random() % (random() % 9 == 0 ? 30 : 3)); more > 0; --more) {
        if (std::ssize(table.pages) < kPages - 2) table.pages.push_back(static_cast<PageId>(random() % 100000));
      }
    }
    batch_.clear();
    std::deque<Table> lent;  // with pages behind the own ones that the next pass does not have any more
    for (const Table& table : tables) {
      if (batch_.num_sequences() == kSequences || random() % 4 == 0) continue;
      Table& seen = lent.emplace_back(table);
      const int num_lent = static_cast<int>(random() % 3);
      for (int i = 0; i < num_lent; ++i) seen.pages.push_back(static_cast<PageId>(random() % 100000));
      if (random() % 7 == 0) seen.pages.resize(random() % (seen.pages.size() + 1));  // a pass may look at fewer
      add(seen, static_cast<int>(std::min(table.pages.size(), seen.pages.size())));
    }
    const int num_sequences = batch_.num_sequences();
    if (random() % 2 == 0) pad_batch(8, 8, kSequences, 11, batch_);
    if (batch_.num_rows() == 0) continue;
    const Pass sent = send(random() % 3 != 0);
    batch_.masks.resize(num_sequences);
    ASSERT_NO_FATAL_FAILURE(check(sent)) << "pass " << pass;
  }
}

TEST_F(PassTest, OnlyNewsOfATableIsCopied) {
  Table table{.pages = std::vector<PageId>(30, 4), .version = 1};
  add(table, 30);
  send(true);
  batch_.clear();
  table.pages.push_back(5);
  add(table, 31);
  device_.copied = 0;
  check(send(true));
  EXPECT_LT(device_.copied, 30 * sizeof(Slot) + 512);
  buffers_.forget_tables();
  device_.copied = 0;
  check(send(true));
  EXPECT_GT(device_.copied, 30 * sizeof(Slot));
}

TEST_F(PassTest, ATableWithoutAVersionIsCopiedEveryTime) {
  for (PageId page = 1; page < 4; ++page) {
    const Table table{.pages = {page, page}, .version = 0};
    batch_.clear();
    add(table, 2);
    add(table, 2);
    check(send(page % 2 == 0));
  }
}

TEST_F(PassTest, EqualNumbersGiveEqualAddresses) {
  const Table table{.pages = {1}, .version = 1};
  add(table, 1);
  pad_batch(4, 4, kSequences, 11, batch_);
  const Pass one = send(true);
  batch_.clear();
  for (int i = 0; i < 3; ++i) add(table, 1);
  pad_batch(4, 4, kSequences, 11, batch_);
  const Pass other = send(true);
  EXPECT_EQ(one.tokens, other.tokens);
  EXPECT_EQ(one.lists, other.lists);
  EXPECT_EQ(one.mask_bits, other.mask_bits);
  EXPECT_EQ(one.entries, other.entries);
}

TEST_F(PassTest, PaddingAddsRowsOfNoSequenceAndEmptySequences) {
  add({.pages = {3}, .version = 1}, 1);
  add({.pages = {4}, .version = 2}, 1);
  const RowBatch before = batch_;
  pad_batch(4, 3, 3, 99, batch_);
  EXPECT_EQ(batch_.num_rows(), 4);
  EXPECT_EQ(batch_.num_sequences(), 3);
  EXPECT_EQ(batch_.row_offsets, (std::vector<std::int32_t>{0, 1, 2, 2}));
  EXPECT_EQ(batch_.logit_rows, (std::vector<std::int32_t>{0, 1, 2}));
  EXPECT_EQ(batch_.mask_bits.size(), std::size_t{4} * kMaskWords);
  EXPECT_EQ(batch_.kv.lists.size(), 3u);
  EXPECT_EQ(batch_.kv.lists[2].length, 0);
  for (int row = 0; row < 4; ++row) {
    EXPECT_EQ(batch_.tokens[row], row < 2 ? before.tokens[row] : 0);
    EXPECT_EQ(batch_.positions[row], row < 2 ? before.positions[row] : 0);
    EXPECT_EQ(batch_.slots[row], row < 2 ? before.slots[row] : 99);
  }
  expect_error(ErrorCode::kInternal, {"4 rows", "padded to 2"}, [&] { pad_batch(2, 4, 3, 0, batch_); });
}

}  // namespace
}  // namespace fastspec::test
