// Random attention problems on the host and their solution in double precision, written from the words of
// AttentionParams alone: it shares no code with the kernels. No GPU needed.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "backend/params.h"

namespace fastspec::gpu_check {

struct SequenceSpec {
  int rows = 1;
  int cached = 0;
  bool pages = true;
  NewMask mask = NewMask::kCausal;
  int gap = 0;  // slot lists: positions between the list and the first row
};

struct ProblemSpec {
  std::string name;
  DType dtype = DType::kBFloat16;
  int head_dim = 128;
  int num_kv_heads = 2;
  int group_size = 7;
  int page_shift = 4;
  int window = 0;
  int sinks = 0;
  float scale = 1;           // times 1 / sqrt(head_dim); large values make single keys count
  bool share_pages = false;  // later page lists begin with the pages of the first
  int padding_rows = 0;      // rows past the last sequence, to be left alone
  std::vector<SequenceSpec> sequences;
};

/// Owns host memory. `params` points into it; K/V, query and output are raw elements of the problem's dtype.
struct Problem {
  Problem(const ProblemSpec& problem_spec, std::uint64_t seed);
  Problem(const Problem&) = delete;

  ProblemSpec spec;
  AttentionParams params;
  int rows = 0;  // without padding
  std::vector<std::int32_t> row_offsets, positions;
  std::vector<KvList> lists;
  std::vector<NewMask> masks;
  std::vector<Slot> entries, slots;
  std::vector<std::uint64_t> mask_bits;
  std::vector<unsigned char> pool, query;

 private:
  Slot take_page();
  void fill_slot(Slot slot);
  void add_list(const SequenceSpec& sequence);
  void add_rows(const SequenceSpec& sequence);
  void fill_query();

  std::mt19937_64 random_;
  std::vector<Slot> free_pages_;
};

/// One number per output element (row, head, dimension) or (row, head).
struct Solution {
  std::vector<double> output;     // [rows, num_heads, head_dim]
  std::vector<double> magnitude;  // the same with |v|: what rounding of weights can move
  std::vector<double> lse;        // [rows, num_heads]
};

Solution solve(const Problem& problem);

double read_element(const void* data, DType dtype, std::int64_t index);
void write_element(void* data, DType dtype, std::int64_t index, double value);

/// How much a correct kernel may be off: bounds from rounding, not from what some kernel gave.
double output_tolerance(DType dtype, double value, double magnitude);
double lse_tolerance(DType dtype, double value);

}  // namespace fastspec::gpu_check
