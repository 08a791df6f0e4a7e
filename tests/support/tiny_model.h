// Small random models in memory, and a tokenizer of as many words: enough to run the engine without a file.
#pragma once

#include <fastspec/tokenizer.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "backend/backend.h"
#include "draft/dflash/dflash_model.h"
#include "draft/longspec/longspec_model.h"
#include "model/model_config.h"
#include "model/weights.h"

namespace fastspec::testing {

/// Two layers (the second with a sliding window of 24), grouped query heads, biases, q/k norms: every branch of the
/// layer loop. Token vocab_size - 1 is EOS.
ModelConfig tiny_config(int vocab_size = 61, int max_positions = 512);

/// Normal weights, the same for the same seed; `noise_seed` != 0 adds small noise, for a draft that often agrees.
Weights tiny_weights(const ModelConfig& config, std::uint64_t seed, DType dtype, Device& device,
                     std::uint64_t noise_seed = 0, float noise = 0.0f);

/// A LongSpec block over a target of tiny_weights(config, target_seed): made of the target's last layer with small
/// noise, so that it agrees with the target now and then. `vocabulary` (ascending) prunes its LM head unless empty.
LongSpecModel tiny_longspec(const ModelConfig& config, std::uint64_t target_seed, int window, DType dtype,
                            Device& device, const std::vector<TokenId>& vocabulary = {});

constexpr int kTinyBlock = 6;

/// A block drafter of the target's shape and with its embedding and LM head, random otherwise; its second layer has a
/// window.
DFlashModel tiny_dflash(const ModelConfig& config, const Weights& target, std::uint64_t seed, DType dtype,
                        Device& device);

/// Token i is the text of word i, one to three letters of a four-letter alphabet, so that stop strings occur across
/// tokens; the last id is special and has no text.
std::shared_ptr<const Tokenizer> tiny_tokenizer(int vocab_size);

}  // namespace fastspec::testing
