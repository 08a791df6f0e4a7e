// The computation of LongSpec's block (arXiv 2502.17421, section 3): windowed self-attention over the drafter's own
// K/V, cross-attention over the target's last layer, MLP, the target's LM head. Computes passes; knows no sequence.
#pragma once

#include "backend/backend.h"
#include "draft/longspec/longspec_model.h"
#include "memory/kv_pool.h"
#include "model/model_config.h"
#include "model/pass.h"
#include "model/weights.h"

namespace fastspec {

/// Rows of a level in sequences, each with its own list of cached keys: one call of attention.
struct RowGroup {
  int num_sequences = 0;
  int max_rows_per_sequence = 0;  // a hint
  const std::int32_t* row_offsets = nullptr;
  const KvList* lists = nullptr;
  const Slot* entries = nullptr;
  const NewMask* masks = nullptr;
};

/// The nodes of one level of several trees. Self-attention reads the sequences' windows and the nodes' own ancestors
/// apart and merges the two exactly (hybrid tree attention, section 3.3), so that a window is read once for all nodes.
struct LevelPass {
  int num_rows = 0;
  const TokenId* tokens = nullptr;          // [num_rows]
  const std::int32_t* positions = nullptr;  // [num_rows]
  const Slot* slots = nullptr;              // [num_rows]
  RowGroup window;                          // one sequence a tree: cached keys of the drafter
  RowGroup ancestry;                        // one sequence a node: its ancestors below the root, and itself
  RowGroup cross;                           // one sequence a tree: cached keys of the target
  Matrix cross_query;                       // [num_rows, q_size] where its queries stay; null data = nowhere
};

class LongSpecBlock {
 public:
  /// Activations for passes of up to `max_rows` rows, and logits of `max_level_rows`, are allocated here, once.
  /// `target_weights` give embedding and LM head and must outlive this.
  LongSpecBlock(LongSpecModel model, const ModelConfig& target, const Weights& target_weights, Backend& backend,
                int max_rows, int max_level_rows);

  /// Device memory of the activations.
  static std::size_t activation_bytes(const LongSpecModel& model, const ModelConfig& target, std::size_t element_size,
                                      int max_rows, int max_level_rows);

  /// Writes K and V of the rows to their slots of `kv`: all that a token leaves behind, because self-attention is the
  /// first sub-layer.
  void project(const Pass& pass, const KvView& kv);
  /// Computes the rows of a level, whose logits are then at logits(). K and V go to `kv`.
  void forward(const LevelPass& level, const KvView& kv, const KvView& target_kv);
  /// The first rows of the last level's logits, float32 [num_rows, num_columns()].
  Matrix logits(int num_rows) const;

  const LongSpecConfig& config() const { return model_.config; }
  const LongSpecWeights& weights() const { return model_.weights; }
  int num_columns() const { return lm_head_.out_features; }

 private:
  void self_attention(const LevelPass& level, const KvView& kv);
  void cross_attention(const LevelPass& level, const KvView& target_kv);
  void mlp(int num_rows);
  void attend(const LevelPass& level, const Matrix& query, const RowGroup& group, const KvView& kv,
              const Matrix& output, float* lse);
  void norm(const Vector& weight, int num_rows);
  Matrix rows(const Buffer& buffer, int num_rows, int cols) const;

  LongSpecModel model_;
  ModelConfig target_;
  Weight embedding_;
  Weight lm_head_;
  Backend& backend_;
  int max_rows_;
  int max_level_rows_;
  Buffer inverse_frequencies_;
  Buffer hidden_, normed_, qkv_, query_, attended_, attended_ancestry_, lse_, ancestry_lse_, gate_up_, activated_,
      logits_;
};

}  // namespace fastspec
