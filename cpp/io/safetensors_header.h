// The header of one safetensors file, checked against the file's true size. Knows nothing of directories or indexes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace fastspec {

/// One entry of a header; `begin` and `end` lie inside the file and cover exactly shape x dtype.
struct SafetensorsEntry {
  std::string name;
  std::string dtype;  // as written: "BF16", "I64", ...
  std::vector<std::int64_t> shape;
  std::size_t begin = 0;  // byte range in the file
  std::size_t end = 0;
};

constexpr std::size_t kSafetensorsLengthBytes = 8;  // a file begins with the length of its JSON header

/// Where the header of `file` ends and its data begin; the header is not looked at.
/// @throws Error(kInvalidFile) where its length cannot be.
std::size_t safetensors_data_begin(std::span<const std::byte> file, const std::string& path);

/// Parses and checks the header of `file`, all of whose bytes are given. As the format asks, the ranges must cover the
/// data without overlap and without gap.
/// @param path starts every message.
/// @throws Error(kInvalidFile), or Error(kUnsupported) for an element type or rank that is not known here.
std::vector<SafetensorsEntry> read_safetensors_header(std::span<const std::byte> file, const std::string& path);

/// "[49152, 576]"
std::string shape_text(std::span<const std::int64_t> shape);

}  // namespace fastspec
