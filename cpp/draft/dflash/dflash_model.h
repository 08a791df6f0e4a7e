// A DFlash checkpoint (arXiv 2602.06036): decoder layers over the target's embedding and LM head, and the projection
// that makes context of the target's hidden states. Loads; computes nothing.
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

struct DFlashConfig {
  ModelConfig decoder;             // width, vocabulary and LM head are the target's
  int block_size = 0;              // rows of a block: the root and block_size - 1 masks
  TokenId mask_token = 0;          // whose embedding stands for a token that is to be proposed
  std::vector<int> target_layers;  // ascending: their outputs, one after another, are a token's features
};

struct DFlashModel {
  DFlashConfig config;
  Weights weights;     // of the layers and the final norm; embedding and LM head are the target's
  Weight fc;           // [hidden_size, target_layers.size() * hidden_size]
  Vector hidden_norm;  // [hidden_size]

  std::size_t bytes() const { return weights.bytes(); }
};

/// Loads what its authors publish: architecture "DFlashDraftModel", "block_size" and "dflash_config" {"block_size",
/// "mask_token_id", "target_layer_ids"} in config.json, names with or without the prefix "model.". Relatives of the
/// format compute something else and are refused by name.
/// @param target_weights give embedding and LM head and must outlive the model.
/// @throws Error naming the file and field or tensor: missing, of another shape than the target asks for, unexpected.
DFlashModel load_dflash(const std::filesystem::path& directory, const ModelConfig& target,
                        const Weights& target_weights, DType dtype, Device& device, const LoadProgress& progress);

/// One of random weights for a target of random weights, for measuring.
DFlashModel random_dflash(int num_layers, int block_size, const ModelConfig& target, const Weights& target_weights,
                          DType dtype, Device& device);

/// Layers whose outputs `num_draft_layers` layers read where a config does not say.
std::vector<int> default_target_layers(int num_target_layers, int num_draft_layers);

}  // namespace fastspec
