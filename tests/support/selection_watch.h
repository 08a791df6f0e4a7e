// Sees that an engine's selections are what they should be, by definition and in double precision: follows the queries
// of every token through attention and copies of slots, recomputes from them and from K what each position is worth,
// and compares scores, chosen slots, attention inside them and bounds of pages. Knows nothing of selectors.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "backend/intercepted_ops.h"

namespace fastspec::testing {

class SelectionWatch final : public InterceptedOps {
 public:
  explicit SelectionWatch(std::unique_ptr<Ops> inner) : InterceptedOps(std::move(inner)) {}

  void attention(const AttentionParams& params) override;
  void copy_slots(const CopySlotsParams& params) override;
  void score_keys(const ScoreKeysParams& params) override;
  void score_pages(const ScorePagesParams& params) override;
  void select_slots(const SelectSlotsParams& params) override;

  /// Whether all rows of a sequence ask by a dense pass, not the last confirmed token alone.
  bool asks_by_dense_pass = false;
  // What was seen.
  std::vector<std::string> faults;  // the first few
  int selections = 0;               // of sequences
  int rows = 0;                     // that asked in them
  int bounded_pages = 0;            // whose bounds were compared

 private:
  using Row = std::vector<float>;
  using Scores = std::vector<std::vector<double>>;  // [sequence][position]
  /// The last call of attention over some keys.
  struct Call {
    std::vector<std::vector<Row>> rows;  // [sequence]
    std::vector<KvList> lists;
  };
  void before() override {}
  void after() override {}
  void fault(const std::string& text);
  /// The queries that should ask for sequence `s`: those of its last token, or of all its rows in a dense pass.
  std::vector<Row> expected_rows(const ScoreKeysParams& params, int s);
  void expect_rows(const ScoreKeysParams& params, bool looks_ahead);
  void add_scores(const ScoreKeysParams& params, bool looks_ahead, const void* bounds);
  void check_bounds(const ScorePagesParams& params);
  void check_scores(const SelectSlotsParams& params, const float* seen, const Scores& expected, const char* signal);
  void check_chosen(const SelectSlotsParams& params, int s);

  std::map<const void*, std::map<Slot, Row>> queries_;  // of each layer's tokens, by the place of their keys
  std::map<const void*, Call> last_call_;
  Scores history_, lookahead_;  // of the selection in the making
};

}  // namespace fastspec::testing
