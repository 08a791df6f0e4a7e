// Text in and out of the program: bounded reading, checked writing.
#pragma once

#include <string>
#include <string_view>

namespace fastspec::cli {

/// A whole file or pipe, or standard input for "-", of at most 16 MiB.
/// @throws Error(kNotFound, kInvalidFile) naming the file, Interrupted.
std::string read_text(const std::string& file);

/// Writes to standard output at once. @throws std::system_error when that fails.
void write_output(std::string_view text);

/// Opens what is closed of the three standard streams so that it fails; else the next file opened would take its place.
void reserve_standard_streams();

}  // namespace fastspec::cli
