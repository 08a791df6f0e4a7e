// Who drafts in the next step: the sequences whose drafts pay for themselves at the present load, by what theirs have
// brought so far and what steps cost. Arithmetic only; knows no drafter.
#pragma once

#include <span>

#include "budget/cost_model.h"

namespace fastspec {

/// What a sequence's drafts have brought, and what was decided for it. The sequence keeps it.
struct DraftRecord {
  bool is_on = true;    // by the last decision
  bool drafts = true;   // in the next step: is_on, or a probe
  double accepted = 0;  // drafted tokens accepted in a drafting step, a mean that fades
  double verified = 0;  // drafted rows of it
  int num_steps = 0;    // drafting steps seen
};

struct DraftCandidate {
  DraftRecord* record = nullptr;
  int keys = 0;  // cached tokens
};

class DraftSwitch {
 public:
  /// @param min_saving what a change must gain (0.03 = 3 %): less is left as it is. Three tenths of it are enough to
  /// stop drafting, so that what is left as it is never costs much against plain decoding.
  explicit DraftSwitch(double min_saving) : min_saving_(min_saving) {}

  /// Decides for the decoding sequences of a step. Of all prefixes of the list by expected gain, the one with most
  /// tokens for its time drafts. Now and then all do, so seldom that it costs at most 0.5 % of the time.
  /// @param max_padded see RowOffer.
  void decide(std::span<const DraftCandidate> decoding, int max_padded, const CostModel& cost);
  /// What a drafting step brought to a sequence.
  void observe(int num_verified, int num_accepted, DraftRecord& record);
  /// The last decision was a probe.
  bool is_probe() const { return is_probe_; }

 private:
  struct Expectation {
    double accepted = 0;
    double verified = 0;
  };
  Expectation expect(const DraftRecord& record) const;
  struct Price {
    double tokens = 0;
    double milliseconds = 0;
    double rate() const { return tokens / milliseconds; }
  };
  /// Of a step where the first `num_drafting` candidates draft.
  class Pricing;
  void probe_when_due(std::span<const DraftCandidate> decoding, const Price& all, const Price& chosen);

  double min_saving_;
  DraftRecord everyone_;  // what drafts bring on average; speaks for sequences of which little is known
  bool is_probe_ = false;
  int steps_since_probe_ = 0;
};

}  // namespace fastspec
