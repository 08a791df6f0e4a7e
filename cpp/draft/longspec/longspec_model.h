// A LongSpec checkpoint (arXiv 2502.17421): one block over the target's embedding and LM head. Loads; computes nothing.
#pragma once

#include <cstddef>
#include <filesystem>
#include <vector>

#include "backend/device.h"
#include "backend/params.h"
#include "model/model_config.h"
#include "model/tensor_loader.h"
#include "model/weights.h"

namespace fastspec {

/// Sizes that are not the target's. Head counts, head size, width and RoPE are.
struct LongSpecConfig {
  int intermediate_size = 0;
  float rms_norm_eps = 0;
  int window = 512;  // keys before a row that its self-attention sees, itself not counted
};

struct LongSpecWeights {
  Vector self_norm;       // [hidden_size]
  Weight qkv;             // [q_size + 2 * kv_size, hidden_size]: q, k, v
  Vector qkv_bias;        // [q_size + 2 * kv_size]
  Weight self_o;          // [hidden_size, q_size]
  Vector cross_norm;      // [hidden_size]
  Weight cross_q;         // [q_size, hidden_size]
  Vector cross_q_bias;    // [q_size]
  Weight cross_o;         // [hidden_size, q_size]
  Vector mlp_norm;        // [hidden_size]
  Weight gate_up;         // [2 * intermediate_size, hidden_size]: gate, up
  Weight down;            // [hidden_size, intermediate_size]
  Vector final_norm;      // [hidden_size] or empty: none before the LM head
  Weight pruned_lm_head;  // [vocabulary.size(), hidden_size] rows of the target's; empty without a draft vocabulary
  std::vector<TokenId> vocabulary;  // ascending: the only tokens that are proposed; empty = all
  Buffer token_ids;                 // `vocabulary` in device memory
  std::vector<Buffer> buffers;      // owns the weights

  std::size_t bytes() const;
};

struct LongSpecModel {
  LongSpecConfig config;
  LongSpecWeights weights;
};

/// Prunes the vocabulary to `ids` (ascending): their rows of the target's LM head are gathered.
void prune_vocabulary(std::vector<TokenId> ids, const Weight& lm_head, Device& device, LongSpecWeights& weights);

/// A block of the target's width with random weights, for measuring. @param vocabulary tokens that are proposed, the
/// first of the target's; 0 = all. @throws Error(kInvalidArgument) for more than the target has, Error(kOutOfMemory).
LongSpecModel random_longspec(int vocabulary, const ModelConfig& target, const Weights& target_weights, DType dtype,
                              Device& device);

/// Loads the published format and our own: the same tensors, and in config.json "longspec": {"version": 1, "window",
/// "final_norm"}, where final_norm adds "norm.weight"; int32 "draft_vocabulary" may list the tokens to propose.
/// Matrices take `dtype`. K and V projections of cross-attention, which inference never reads, are skipped.
/// @throws Error naming the file and field or tensor: missing, of another shape than the target asks for, unexpected.
LongSpecModel load_longspec(const std::filesystem::path& directory, const ModelConfig& target,
                            const Weights& target_weights, DType dtype, Device& device, const LoadProgress& progress);

}  // namespace fastspec
