// Shapes of well-known models, for measuring without their files.
#pragma once

#include <fastspec/shape_benchmark.h>  // shape_json

#include <string>

#include "model/model_config.h"

namespace fastspec {

/// @param shape qwen2.5-7b, llama-3.1-8b, qwen3-8b, or the path of a config.json (under any name) or of its directory.
/// @throws Error(kNotFound, kInvalidFile, kUnsupported).
ModelConfig shape_config(const std::string& shape);

}  // namespace fastspec
