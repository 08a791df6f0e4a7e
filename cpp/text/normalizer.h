// The "normalizer" of tokenizer.json: text in, text out, before any splitting. Keeps no offsets into the original.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "io/json.h"

namespace fastspec::text {

class Normalizer {
 public:
  virtual ~Normalizer() = default;
  /// Rewrites valid UTF-8 into valid UTF-8.
  virtual std::string apply(std::string text) const = 0;

  /// Builds Sequence, Prepend, Replace, NFC or Strip. @throws Error(kUnsupported) naming any other type.
  static std::unique_ptr<const Normalizer> from_json(const JsonView& json);
};

}  // namespace fastspec::text
