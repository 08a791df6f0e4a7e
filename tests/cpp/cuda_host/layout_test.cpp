// Shared-memory layout, visibility rules and kernel choice of the device's attention, tested without a device.
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "attention/config.h"
#include "attention/swizzle.h"
#include "attention/visibility.h"

namespace fastspec::cuda {
namespace {

TEST(Swizzle, EveryChunkOnceInsideItsTile) {
  for (const int rows : {16, 32, 64, 128}) {
    for (const int columns : {64, 96, 128, 256}) {
      std::set<int> offsets;
      for (int row = 0; row < rows; ++row) {
        for (int chunk = 0; chunk < columns / kChunkElements; ++chunk) {
          const int offset = chunk_offset(rows, row, chunk);
          EXPECT_EQ(offset % 16, 0);
          EXPECT_GE(offset, 0);
          EXPECT_LE(offset + 16, tile_bytes(rows, columns));
          EXPECT_TRUE(offsets.insert(offset).second);
        }
      }
    }
  }
}

// Eight rows at one column, and eight chunks of one row: what matrix loads read and copies write at once.
TEST(Swizzle, NoBankConflicts) {
  const auto bank_group = [](int offset) { return offset / 16 % 8; };
  for (int chunk = 0; chunk < 16; ++chunk) {
    for (int first = 0; first < 64; first += 8) {
      std::set<int> groups;
      for (int row = first; row < first + 8; ++row) groups.insert(bank_group(chunk_offset(64, row, chunk)));
      EXPECT_EQ(groups.size(), 8u);
    }
  }
  for (int row = 0; row < 64; ++row) {
    std::set<int> groups;
    for (int chunk = 0; chunk < 8; ++chunk) groups.insert(bank_group(chunk_offset(64, row, chunk)));
    EXPECT_EQ(groups.size(), 8u);
  }
}

// The matrix unit XORs address bits 4-6 with bits 7-9; blocks start at multiples of 1024.
TEST(Swizzle, IsThe128ByteSwizzleOfTheMatrixUnit) {
  for (int row = 0; row < 64; ++row) {
    for (int chunk = 0; chunk < 16; ++chunk) {
      const int linear = chunk / 8 * 64 * 128 + row * 128 + chunk % 8 * 16;
      EXPECT_EQ(chunk_offset(64, row, chunk), linear ^ ((linear >> 7 & 7) << 4));
    }
  }
}

TEST(Visibility, MasksByDefinition) {
  const std::uint64_t words[kMaskWords] = {1, std::uint64_t{1} << 63, 0, 2};
  for (int key = 0; key < 300; ++key) {
    EXPECT_EQ(mask_allows(NewMask::kAncestor, words, 5, key), key == 0 || key == 127 || key == 193) << key;
    EXPECT_EQ(mask_allows(NewMask::kCausal, nullptr, 5, key), key <= 5);
    EXPECT_TRUE(mask_allows(NewMask::kFull, nullptr, 5, key));
    EXPECT_FALSE(mask_allows(NewMask::kNone, nullptr, 5, key));
  }
}

TEST(Visibility, WindowCountsItsOwnPosition) {
  EXPECT_TRUE(in_window(3, 0, 10, 10));
  EXPECT_TRUE(in_window(3, 0, 10, 8));
  EXPECT_FALSE(in_window(3, 0, 10, 7));
  EXPECT_TRUE(in_window(3, 2, 10, 1));
  EXPECT_FALSE(in_window(3, 2, 10, 2));
  EXPECT_TRUE(in_window(0, 0, 10, 0));
}

const DeviceLimits kH200{132, 232448, 233472, 90};
const DeviceLimits kConsumer{128, 101376, 102400, 89};

TEST(AttentionConfig, ChoosesByRowsAndDevice) {
  const AttentionConfig one = choose_attention({DType::kBFloat16, 128, 7}, kH200);
  EXPECT_EQ(one.path, AttentionPath::kMma);
  EXPECT_EQ(one.tile_rows, 16);
  EXPECT_EQ(one.num_ctas, 264);
  EXPECT_EQ(choose_attention({DType::kBFloat16, 128, 56}, kH200).path, AttentionPath::kHopper);
  EXPECT_EQ(choose_attention({DType::kBFloat16, 128, 483}, kH200).tile_rows, 128);
  EXPECT_EQ(choose_attention({DType::kBFloat16, 128, 483}, kH200).num_ctas, 132);
  EXPECT_EQ(choose_attention({DType::kBFloat16, 128, 56, false}, kH200).path, AttentionPath::kMma);
  EXPECT_EQ(choose_attention({DType::kFloat16, 128, 483}, kConsumer).path, AttentionPath::kMma);
  EXPECT_EQ(choose_attention({DType::kFloat16, 256, 483}, kH200).tile_rows, 32);
  EXPECT_EQ(choose_attention({DType::kFloat32, 128, 1}, kH200).path, AttentionPath::kPlain);
  EXPECT_EQ(choose_attention({DType::kBFloat16, 320, 1}, kH200).path, AttentionPath::kPlain);
}

TEST(AttentionConfig, PadsHeadSizesUp) {
  EXPECT_EQ(padded_head_dim(8), 64);
  EXPECT_EQ(padded_head_dim(72), 96);
  EXPECT_EQ(padded_head_dim(104), 128);
  EXPECT_EQ(padded_head_dim(136), 256);
  EXPECT_EQ(padded_head_dim(100), 0);
  EXPECT_EQ(padded_head_dim(264), 0);
  EXPECT_EQ(padded_head_dim(0), 0);
}

TEST(AttentionConfig, EveryConfigFitsTheWorkspace) {
  for (const int head_dim : {64, 96, 128, 256}) {
    const AttentionWorkspace workspace = attention_workspace(132, head_dim);
    for (int packed = 1; packed < 300; ++packed) {
      const AttentionConfig config = choose_attention({DType::kBFloat16, head_dim, packed}, kH200);
      const std::size_t rows = std::size_t{2} * static_cast<std::size_t>(config.num_ctas * config.tile_rows);
      EXPECT_LE(static_cast<std::size_t>(config.num_ctas) * sizeof(int), workspace.partial_lse);
      EXPECT_LE(workspace.partial_lse + rows * sizeof(float), workspace.partial);
      EXPECT_LE(workspace.partial + rows * static_cast<std::size_t>(config.padded_dim) * sizeof(float),
                workspace.bytes);
      EXPECT_LE(static_cast<std::size_t>(config.num_ctas) * sizeof(CtaPlan),
                attention_plan_bytes(132, 0) - sizeof(SequencePlan));
    }
    EXPECT_EQ(workspace.bytes % 256, 0u);
  }
  EXPECT_LT(attention_workspace_bytes(132, 128), 18u << 20);
}

}  // namespace
}  // namespace fastspec::cuda
