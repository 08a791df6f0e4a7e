// What a tokenizer.json may ask for: real files stay far below, hostile ones must not exhaust the process.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "base/check.h"
#include "io/json.h"

namespace fastspec::text {

constexpr std::size_t kMaxSteps = 64;  // parts of a normalizer, pre-tokenizer, decoder, post-processor
constexpr std::size_t kMaxTextBytes = std::size_t{64} << 20;  // of a text while it is rewritten
constexpr std::size_t kMaxTokenBytes = std::size_t{1} << 20;  // of one token while it is decoded

/// The parts of a pipeline. @throws Error naming the field: kInvalidFile for more than kMaxSteps, kUnsupported for a
/// pipeline inside another, which could multiply them.
inline std::vector<JsonView> steps_of(const JsonView& json) {
  std::vector<JsonView> steps = json.elements();
  if (steps.size() > kMaxSteps) {
    json.refuse(ErrorCode::kInvalidFile, steps.size(), " steps, at most ", kMaxSteps, " are allowed");
  }
  for (const JsonView& step : steps) {
    const auto type = step.find("type");
    if (type && type->as_string() == "Sequence") step.refuse(ErrorCode::kUnsupported, "a Sequence inside another");
  }
  return steps;
}

/// Appends, but not beyond `limit` bytes. @throws Error(kInvalidFile) naming `where`: it makes too much of too little.
inline void append_limited(std::string& text, std::string_view more, std::size_t limit, const std::string& where) {
  if (text.size() + more.size() > limit) {
    fail(ErrorCode::kInvalidFile, where, ": replacing makes more than ", limit, " bytes of text");
  }
  text += more;
}

}  // namespace fastspec::text
