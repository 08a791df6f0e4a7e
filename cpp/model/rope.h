// Reading of the rotary embedding's part of a config.json, in both of its spellings. No tensors.
#pragma once

#include "model/model_config.h"

namespace fastspec {

class JsonView;

/// @param config the whole document: `rope_theta` with `rope_scaling` (older writers) or `rope_parameters` (newer).
/// @param max_position_embeddings stands in for an original length that a scaled type does not give.
/// @throws Error(kInvalidFile), or Error(kUnsupported) naming a type or field that is not computed here.
RopeConfig read_rope_config(const JsonView& config, int max_position_embeddings);

}  // namespace fastspec
