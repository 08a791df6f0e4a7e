// The tensors of one model, in device memory, in the layout that the layer loop reads. Loads; computes nothing.
#pragma once

#include <fastspec/tensor.h>

#include <filesystem>
#include <string>
#include <vector>

#include "backend/device.h"
#include "backend/params.h"
#include "model/model_config.h"
#include "model/tensor_loader.h"

namespace fastspec {

/// Projections that read the same input are stored as one matrix, so that a pass reads the input once.
struct LayerWeights {
  Vector attention_norm;  // [hidden_size]
  Weight qkv;             // [q_size + 2 * kv_size, hidden_size]: q, k, v
  Vector qkv_bias;        // [q_size + 2 * kv_size] or empty
  Vector q_norm, k_norm;  // [head_dim] or empty
  Weight o;               // [hidden_size, q_size]
  Vector o_bias;          // [hidden_size] or empty
  Vector mlp_norm;        // [hidden_size]
  Weight gate_up;         // [2 * intermediate_size, hidden_size]: gate, up
  Vector gate_up_bias;    // [2 * intermediate_size] or empty
  Weight down;            // [hidden_size, intermediate_size]
  Vector down_bias;       // [hidden_size] or empty
};

struct Weights {
  Weight embedding;  // [vocab_size, hidden_size]
  std::vector<LayerWeights> layers;
  Vector final_norm;            // [hidden_size]
  Weight lm_head;               // [vocab_size, hidden_size]; the same memory as `embedding` when tied
  std::vector<Buffer> buffers;  // owns everything above

  std::size_t bytes() const;
};

/// Adds the tensors of one layer, whose names begin with `name` ("model.layers.0."), to what is to be loaded.
void add_layer(const std::string& name, const ModelConfig& config, LoadPlan& plan, LayerWeights& layer);

/// Loads a Hugging Face directory. Matrices take `dtype`; norms and biases are float32.
/// @throws Error naming the tensor: missing, of another shape, unexpected (neither used nor known to be derivable, such
///         as rotary inv_freq buffers or a tied lm_head).
Weights load_weights(const std::filesystem::path& directory, const ModelConfig& config, DType dtype, Device& device,
                     const LoadProgress& progress = {}, LoadPlan::Values values = LoadPlan::Values::kAny);

}  // namespace fastspec
