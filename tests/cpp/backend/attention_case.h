// Random attention problems that own their memory: ragged sequences, permuted pages, slot lists, trees, poisoned
// everything that must not be read. Test support for the backend tests.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "backend/params.h"

namespace fastspec::test {

struct SequenceShape {
  int rows = 1;
  int cached = 0;     // keys of the list
  bool pages = true;  // false: a slot list
  NewMask mask = NewMask::kCausal;
  int sparse_gap = 0;  // slot lists: how many positions lie between the list and the first row
};

struct AttentionShape {
  int num_kv_heads = 2;
  int group_size = 3;
  int head_dim = 64;
  int page_shift = 4;
  int window = 0;
  int sinks = 0;
  DType kv_dtype = DType::kFloat32;
  std::vector<SequenceShape> sequences;
};

/// The memory of one problem. Not copyable: params point into it.
class AttentionCase {
 public:
  AttentionCase(const AttentionShape& shape, std::uint64_t seed);
  AttentionCase(const AttentionCase&) = delete;
  AttentionCase& operator=(const AttentionCase&) = delete;

  AttentionParams params;
  std::vector<float> query, output, lse;
  std::vector<std::int32_t> row_offsets, positions;
  std::vector<int> parents;  // [rows] within the sequence, -1 = none; trees only
  std::vector<KvList> lists;
  std::vector<Slot> entries, slots;
  std::vector<NewMask> masks;
  std::vector<std::uint64_t> mask_bits;
  std::vector<std::uint8_t> pool;

  /// Fills output and lse with NaN.
  void poison_outputs();

 private:
  void add_sequence(const SequenceShape& sequence, int page_shift, std::vector<Slot>& free_pages);
  void fill_slot(Slot slot);

  std::mt19937_64 random_;
};

/// A shape with all kinds of sequences in it.
AttentionShape random_shape(std::mt19937_64& random);

}  // namespace fastspec::test
