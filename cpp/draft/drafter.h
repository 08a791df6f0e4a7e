// What proposes tokens. One interface for every method; nothing else in the project asks which drafter runs.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backend/params.h"
#include "base/types.h"
#include "model/lookahead.h"
#include "model/pass_runner.h"
#include "step/token_tree.h"

namespace fastspec {

/// What a drafter reads of the target, fixed when the engine is built.
struct DrafterNeeds {
  std::vector<int> hidden_layers;  // outputs of these layers, kept for every row of a pass until the next; ascending
  std::optional<int> kv_layer;     // the target's K/V of one layer, read in place
};

/// Upper bounds of one proposal: scratch slots and positions to reserve.
struct DraftShape {
  int max_nodes = 0;  // drafted tokens, the root not counted
  int max_depth = 0;
};

/// One sequence that may speculate in this step.
struct DraftRequest {
  SeqId seq = 0;
  std::span<const TokenId> tokens;  // committed, the root last
  std::span<const PageId> pages;    // of positions 0 .. tokens.size() - 1 + max_depth, in the shared slot space
  std::span<const Slot> slots;      // the only cached keys of the target that need be read; empty = all of `pages`
  std::uint64_t version = 0;        // of those of positions 0 .. tokens.size() - 2: see PagedKvCache::version
  int max_drafted = 0;              // nodes that may be proposed, below the root
  int max_depth = 0;
  SamplingRule rule;  // the target's, so that a draft can share its noise (coupled drafting)
};

/// What a pass made permanent for one sequence. Prefill is an acceptance of known tokens.
struct Observation {
  SeqId seq = 0;
  std::span<const TokenId> tokens;  // committed, the new ones included
  std::span<const PageId> pages;    // of the cached positions
  std::uint64_t version = 0;        // see PagedKvCache::version
  int first_position = 0;           // of the first row computed in the pass
  int num_known_rows = 0;           // committed rows computed: a prompt chunk, or the root
  int num_accepted = 0;             // drafted rows kept after them
  /// [num_known_rows + num_accepted] rows of the pass that the new tokens had, by which their hidden states are found;
  /// empty where the drafter asked for none.
  std::span<const std::int32_t> rows;
  int kv_len = 0;           // cached tokens now
  bool will_draft = false;  // false: it never speculates; true also while the row budget has it decode plainly
};

class Drafter {
 public:
  virtual ~Drafter() = default;

  virtual std::string name() const = 0;
  virtual DrafterNeeds needs() const { return {}; }
  virtual DraftShape shape() const = 0;

  /// Grows trees[i] (which holds the root) for requests[i]. May leave any of them as it is: plain decoding. A throw
  /// leaves the drafter able to draft the same step again.
  virtual void draft(std::span<const DraftRequest> requests, std::span<TokenTree> trees) = 0;

  /// Of the last draft(), until the next; null where the drafter has none, or was made without layers to keep.
  virtual const Lookahead* lookahead() const { return nullptr; }

  /// Learns what was committed. A throw makes the caller drop this drafter's state of these sequences (truncate to 0):
  /// the tokens stand.
  virtual void observe(std::span<const Observation> observations) = 0;

  /// Forgets what depends on tokens from `length` on.
  virtual void truncate(SeqId seq, int length) = 0;
  /// Ends a sequence; unknown ones are ignored.
  virtual void forget(SeqId seq) noexcept = 0;
  /// `to` starts on the first `length` tokens of `from`, whose pages it shares.
  virtual void share(SeqId from, SeqId to, int length) = 0;

  /// For measuring: the first `length` tokens of a new sequence count as observed. What is kept of them is whatever
  /// lies in memory.
  virtual void start_on_noise([[maybe_unused]] SeqId seq, [[maybe_unused]] int length) {}

  /// How passes of the drafter's own model ran, if it has one.
  virtual GraphUse graphs() const { return {}; }
  /// Records the passes that drafting for up to `max_sequences` sequences takes, see PassRunner::record.
  virtual void record_graphs([[maybe_unused]] int max_sequences) {}
};

}  // namespace fastspec
