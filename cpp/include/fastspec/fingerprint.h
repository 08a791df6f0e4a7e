// What a model's files are, in a few bytes: files that were made for one model name it by this.
#pragma once

#include <string>

namespace fastspec {

/// 16 hexadecimal digits that change with a model's weights: 64-bit FNV-1a over each *.safetensors file of the
/// directory, in order of name: the bytes of its JSON header, then 4096 bytes at each of 64 evenly spaced places of its
/// data, the first at its beginning and the last at its end; all of it where it has no more bytes than those. Names of
/// files and of the directory do not count.
/// @throws Error(kNotFound) where there is no such directory or no such file in it, Error(kInvalidFile) naming a file
/// that is no safetensors.
std::string model_fingerprint(const std::string& directory);

}  // namespace fastspec
