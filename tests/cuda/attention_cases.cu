// See attention_cases.h.
#include <algorithm>

#include "cuda/attention_cases.h"

namespace fastspec::gpu_check {
namespace {

using Random = std::mt19937_64;

int uniform(Random& random, int low, int high) {
  return std::uniform_int_distribution<int>(low, high)(random);
}

ProblemSpec named(const char* name, std::vector<SequenceSpec> sequences) {
  ProblemSpec spec;
  spec.name = name;
  spec.sequences = std::move(sequences);
  return spec;
}

const char* name_of(DType dtype) {
  return dtype == DType::kFloat32 ? "fp32" : dtype == DType::kBFloat16 ? "bf16" : "fp16";
}

std::vector<ProblemSpec> edges() {
  constexpr NewMask kCausal = NewMask::kCausal;
  constexpr NewMask kAncestor = NewMask::kAncestor;
  constexpr NewMask kFull = NewMask::kFull;
  constexpr NewMask kNone = NewMask::kNone;
  std::vector<ProblemSpec> cases;
  cases.push_back(named("one row, no prefix", {{1, 0, true, kCausal}}));
  cases.push_back(named("one row, one key", {{1, 1, true, kNone}}));
  cases.push_back(named("nothing to see", {{3, 0, true, kNone}, {2, 0, false, kNone}}));
  cases.push_back(named("some see nothing", {{3, 0, true, kNone}, {2, 200, true, kNone}, {1, 0, true, kCausal}}));
  cases.push_back(named("sequences without rows", {{0, 50, true, kCausal},
                                                   {2, 90, true, kCausal},
                                                   {0, 0, true, kNone},
                                                   {0, 7, false, kFull},
                                                   {1, 64, true, kCausal},
                                                   {0, 9, true, kNone}}));
  cases.push_back(
      named("list ends at a unit", {{1, 64, true, kNone}, {4, 128, true, kCausal}, {2, 192, false, kFull}}));
  cases.push_back(
      named("list ends before and after a unit",
            {{1, 63, true, kCausal}, {1, 65, true, kCausal}, {1, 127, false, kCausal}, {1, 129, false, kNone}}));
  cases.push_back(named("tree of 69 rows", {{69, 333, true, kAncestor}}));
  cases.push_back(named("tree of 256 rows", {{256, 100, true, kAncestor}}));
  cases.push_back(named(
      "pages and slots in one pass",
      {{8, 500, true, kAncestor}, {8, 300, false, kAncestor, 20}, {1, 77, true, kCausal}, {16, 129, false, kFull, 5}}));
  cases.push_back(named("causal chunk", {{300, 150, true, kCausal}, {1, 40, true, kCausal}}));
  // Most row tiles pass over many more tiles of keys than a ring holds.
  cases.push_back(named("long causal chunk", {{900, 150, true, kCausal}}));
  cases.push_back(named("long causal chunks, grouped tiles", {{640, 0, true, kCausal}, {640, 90, true, kCausal}}));
  cases.push_back(named("full chunk without prefix", {{130, 0, true, kFull}}));
  cases.push_back(named("one long sequence over all CTAs", {{1, 3000, true, kCausal}}));
  cases.push_back(named("one long slot list", {{2, 2500, false, kCausal, 100}}));
  cases.push_back(named("shared pages", {{2, 400, true, kCausal}, {3, 500, true, kCausal}, {5, 420, true, kAncestor}}));
  cases.back().share_pages = true;
  cases.push_back(named("rows past the last sequence", {{3, 100, true, kCausal}, {2, 30, true, kFull}}));
  cases.back().padding_rows = 5;
  cases.push_back(named("window", {{4, 900, true, kCausal}, {1, 30, true, kCausal}, {2, 300, false, kCausal, 9}}));
  cases.back().window = 100;
  cases.push_back(
      named("window and sinks", {{4, 900, true, kCausal}, {9, 640, true, kAncestor}, {1, 3, true, kCausal}}));
  cases.back().window = 130;
  cases.back().sinks = 4;
  cases.push_back(named("window of one", {{3, 128, true, kCausal}, {3, 5, true, kFull}, {2, 128, true, kNone}}));
  cases.back().window = 1;
  cases.push_back(named("window hides the whole list", {{2, 256, true, kNone}, {90, 128, true, kCausal}}));
  cases.back().window = 2;
  cases.push_back(named("sinks longer than the list", {{2, 50, true, kCausal}, {40, 600, true, kCausal}}));
  cases.back().window = 8;
  cases.back().sinks = 200;
  return cases;
}

/// Every head size, group, page size and element type at least once.
std::vector<ProblemSpec> shapes() {
  std::vector<ProblemSpec> cases;
  const std::vector<SequenceSpec> mixed{{1, 200, true, NewMask::kCausal},
                                        {9, 130, false, NewMask::kAncestor, 3},
                                        {5, 0, true, NewMask::kFull},
                                        {20, 310, true, NewMask::kAncestor}};
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16, DType::kFloat32}) {
    for (const int head_dim : {8, 32, 64, 72, 80, 96, 112, 128, 192, 256}) {
      ProblemSpec spec = named("", mixed);
      spec.dtype = dtype;
      spec.head_dim = head_dim;
      spec.group_size = 3;
      spec.name = std::string("head size ") + std::to_string(head_dim) + " " + name_of(dtype);
      cases.push_back(spec);
    }
  }
  for (const int group : {1, 2, 3, 4, 7, 8, 16}) {
    ProblemSpec spec = named("", mixed);
    spec.group_size = group;
    spec.num_kv_heads = group == 1 ? 3 : 2;
    spec.name = "group " + std::to_string(group);
    cases.push_back(spec);
  }
  for (const int shift : {0, 2, 3, 4, 5, 6, 8}) {
    ProblemSpec spec = named("", mixed);
    spec.page_shift = shift;
    spec.name = "page size " + std::to_string(1 << shift);
    cases.push_back(spec);
  }
  return cases;
}

ProblemSpec random_case(Random& random, int index, bool small) {
  constexpr int kHeadDims[] = {64, 96, 128, 128, 256, 80};
  constexpr int kGroups[] = {1, 3, 4, 7, 8};
  constexpr int kShifts[] = {0, 2, 4, 4, 5, 6};
  constexpr DType kDTypes[] = {DType::kBFloat16, DType::kFloat16, DType::kFloat32};
  constexpr float kScales[] = {1, 1, 4, 0.1f};
  ProblemSpec spec;
  spec.name = "random " + std::to_string(index);
  spec.head_dim = kHeadDims[uniform(random, 0, 5)];
  spec.group_size = kGroups[uniform(random, 0, 4)];
  spec.page_shift = kShifts[uniform(random, 0, 5)];
  spec.dtype = kDTypes[uniform(random, 0, 8) / 4];
  spec.scale = kScales[uniform(random, 0, 3)];
  spec.num_kv_heads = uniform(random, 1, 3);
  spec.share_pages = uniform(random, 0, 1) == 0;
  spec.padding_rows = uniform(random, 0, 2);
  if (uniform(random, 0, 2) == 0) {
    spec.window = uniform(random, 1, uniform(random, 0, 1) == 0 ? 40 : 400);
    spec.sinks = uniform(random, 0, 1) * uniform(random, 0, 90);
  }
  for (int s = uniform(random, 1, small ? 3 : 6); s > 0; --s) {
    SequenceSpec sequence;
    sequence.mask = static_cast<NewMask>(uniform(random, 0, 3));
    sequence.rows = uniform(random, 0, 9) == 0 ? 0 : uniform(random, 1, uniform(random, 0, 5) == 0 && !small ? 90 : 12);
    sequence.cached =
        uniform(random, 0, 5) == 0 ? 0 : uniform(random, 1, uniform(random, 0, 2) == 0 && !small ? 1500 : 150);
    sequence.pages = uniform(random, 0, 2) != 0;
    if (!sequence.pages) sequence.gap = uniform(random, 0, 50);
    spec.sequences.push_back(sequence);
  }
  return spec;
}

}  // namespace

std::vector<ProblemSpec> attention_cases(bool small, std::uint64_t seed) {
  std::vector<ProblemSpec> cases = edges();
  if (!small) {
    for (ProblemSpec& spec : shapes()) cases.push_back(std::move(spec));
    // More sequences than the plan kernel has threads, and single keys that count.
    ProblemSpec many = named("600 sequences", {});
    for (int s = 0; s < 600; ++s) {
      many.sequences.push_back({s % 5, s * 37 % 91, s % 3 != 0, static_cast<NewMask>(s % 4), 0});
    }
    many.head_dim = 64;
    many.num_kv_heads = 1;
    cases.push_back(many);
    ProblemSpec sharp =
        named("sharp softmax", {{7, 1200, true, NewMask::kCausal}, {18, 700, false, NewMask::kAncestor}});
    sharp.scale = 6;
    cases.push_back(sharp);
    sharp.name = "sharp softmax fp16";
    sharp.dtype = DType::kFloat16;
    cases.push_back(sharp);
  } else {
    for (ProblemSpec& spec : cases) {
      spec.num_kv_heads = 1;
      for (SequenceSpec& sequence : spec.sequences) {
        sequence.rows = std::min(sequence.rows, 40);
        sequence.cached = std::min(sequence.cached, 400);
      }
    }
  }
  Random random(seed);
  for (int index = 0; index < (small ? 6 : 60); ++index) cases.push_back(random_case(random, index, small));
  return cases;
}

}  // namespace fastspec::gpu_check
