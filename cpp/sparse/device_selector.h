// What selectors that score on the device have in common: arrays of scores, the choice of slots by them, the share of
// attention inside it. What is scored by what, each of them says.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "sparse/kv_selector.h"
#include "sparse/selection_block.h"

namespace fastspec {

/// Queries of a layer, the heads of them that count, and the keys that they are for.
struct ScoredLayer {
  Matrix queries;  // [any, num_heads * head_dim]
  KvView kv;
  int num_heads = 0;
  std::vector<std::int32_t> heads;
};

/// Layer `index` among the columns of what is kept of layers together.
Matrix columns_of(const Matrix& kept, std::size_t index, int cols);

/// How many keys of which kind a selection has.
struct SelectionShape {
  int budget = 0;
  int sinks = 0;
  int recent = 0;
  int lookahead_slots = 0;
};

class DeviceSelector : public KvSelector {
 public:
  struct Limits {
    int max_sequences = 0;
    int max_keys = 0;  // of a sequence
    int page_size = 0;
    int history_rows = 1;    // of a sequence that ask by history, at most
    int lookahead_rows = 0;  // and by lookahead; 0 = there is no lookahead
  };
  /// Device memory of scores and arrays.
  static std::size_t device_bytes(const Limits& limits);

  bool writes_on_device() const final { return true; }
  void select(std::span<const SelectRequest> requests) final;
  void issue(const Pass& pass, Slot* entries) final;
  float recovered_mass(int index) const final;

 protected:
  enum Signal { kHistory, kLookahead };

  DeviceSelector(Backend& backend, const SelectionShape& shape, const Limits& limits);
  /// Adds the rows that ask for this sequence to block().
  virtual void add_rows(const SelectRequest& request, SelectionBlock& block) = 0;
  /// Issues the operations that score the contexts of a pass.
  virtual void issue_scores(const Pass& pass) = 0;
  /// The score_keys of layer `index` of a signal's layers over the contexts of a pass: they add up to a mean over all
  /// heads.
  ScoreKeysParams scoring(const Pass& pass, Signal signal, std::span<const ScoredLayer> layers,
                          std::size_t index) const;
  Ops& ops() { return *backend_.ops; }

 private:
  struct Chosen {
    int sequence = 0;  // of the pass
    bool looks_ahead = false;
  };

  Backend& backend_;
  SelectionShape shape_;
  Limits limits_;
  SelectionBlock block_;
  Buffer history_, lookahead_;  // float [max_sequences, max_keys]
  Buffer mass_;                 // float [max_sequences, 2] of the host
  std::vector<Chosen> chosen_;  // of the last select()
};

}  // namespace fastspec
