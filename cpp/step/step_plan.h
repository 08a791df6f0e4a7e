// Who runs in a step, as a value. The scheduler makes it; nobody changes it.
#pragma once

#include <cstdint>
#include <vector>

#include "base/types.h"

namespace fastspec {

/// How a sequence's cached keys are read in a pass.
enum class KvMode : std::uint8_t { kDense, kSparse };

/// One sequence's part of a pass: the committed tokens whose K/V is computed now, and whether a tree may follow.
struct SequencePlan {
  SeqId seq = 0;
  int first_position = 0;    // position of the first row: kv_len, less where cached tokens are computed anew
  int num_known_rows = 0;    // committed tokens computed in this pass; a prompt chunk, or the root alone
  bool samples = false;      // the last known row is the root, so its successor is drawn
  bool is_decoding = false;  // the root alone: a decoding pass (a prompt's last chunk samples, but is a prompt pass)
  int max_drafted = 0;       // rows that the drafter may propose; 0 = plain
  int max_depth = 0;         // final slots beyond the root that are reserved
  bool refreshes = false;    // it begins with cached tokens that sparse passes computed, all of them accepted for good
  KvMode kv_mode = KvMode::kDense;
  int num_slots = 0;        // kSparse: cached keys that the pass reads
  int num_provisional = 0;  // kDense: tokens behind the root that sparse passes accepted; the tree begins with them
};

/// A sequence that starts with another's pages (samples of one prompt).
struct SharedPrefix {
  SeqId from = 0;
  SeqId to = 0;
  int length = 0;  // tokens
};

struct StepPlan {
  std::vector<SequencePlan> sequences;
  int max_drafted_rows = 0;          // of all trees together, after the row budget
  std::vector<SeqId> preempted;      // lost their pages in this plan
  std::vector<SharedPrefix> shared;  // were admitted on another's pages in this plan

  bool empty() const { return sequences.empty(); }
};

}  // namespace fastspec
