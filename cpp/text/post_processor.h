// The "post_processor" of tokenizer.json, as far as ids go: special tokens before and after the text.
#pragma once

#include <fastspec/tokenizer.h>

#include <memory>
#include <vector>

#include "io/json.h"

namespace fastspec::text {

class PostProcessor {
 public:
  virtual ~PostProcessor() = default;
  virtual std::vector<TokenId> apply(std::vector<TokenId> ids) const = 0;

  /// Builds TemplateProcessing, ByteLevel (which moves offsets only) or a Sequence of them.
  /// @param id_space ids in the file must be smaller.
  /// @throws Error(kUnsupported) naming any other type, Error(kInvalidFile).
  static std::unique_ptr<const PostProcessor> from_json(const JsonView& json, int id_space);
};

}  // namespace fastspec::text
