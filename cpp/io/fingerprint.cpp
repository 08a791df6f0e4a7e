// The fingerprint of a model directory (fastspec/fingerprint.h). Reads a sample of the weights: a checkpoint of many
// gigabytes takes milliseconds.
#include <fastspec/fingerprint.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <span>
#include <system_error>
#include <vector>

#include "base/check.h"
#include "io/mapped_file.h"
#include "io/safetensors_header.h"

namespace fastspec {

namespace {

namespace fs = std::filesystem;

constexpr std::size_t kNumSamples = 64;
constexpr std::size_t kSampleBytes = 4096;

class Fnv1a {
 public:
  void add(std::span<const std::byte> bytes) {
    for (const std::byte byte : bytes) state_ = (state_ ^ std::to_integer<std::uint64_t>(byte)) * 0x100000001B3u;
  }
  std::uint64_t value() const { return state_; }

 private:
  std::uint64_t state_ = 0xCBF29CE484222325u;
};

std::vector<fs::path> weight_files(const std::string& directory) {
  std::error_code error;
  std::vector<fs::path> files;
  for (fs::directory_iterator entry(directory, error), end; !error && entry != end; entry.increment(error)) {
    if (entry->path().extension() == ".safetensors") files.push_back(entry->path());
  }
  if (error) fail(ErrorCode::kNotFound, directory, ": cannot be read as a directory: ", error.message());
  if (files.empty()) fail(ErrorCode::kNotFound, directory, ": holds no *.safetensors file");
  std::sort(files.begin(), files.end());
  return files;
}

void add_file(const fs::path& path, Fnv1a& hash) {
  const MappedFile file(path);
  const std::size_t header_end = safetensors_data_begin(file.bytes(), path.string());
  hash.add(file.bytes().first(header_end).subspan(kSafetensorsLengthBytes));
  const std::span<const std::byte> data = file.bytes().subspan(header_end);
  if (data.size() <= kNumSamples * kSampleBytes) return hash.add(data);
  const std::size_t last = data.size() - kSampleBytes;
  for (std::size_t i = 0; i < kNumSamples; ++i) {
    hash.add(data.subspan(i * last / (kNumSamples - 1), kSampleBytes));
  }
}

}  // namespace

std::string model_fingerprint(const std::string& directory) {
  Fnv1a hash;
  for (const fs::path& path : weight_files(directory)) add_file(path, hash);
  char digits[17];
  std::snprintf(digits, sizeof(digits), "%016llx", static_cast<unsigned long long>(hash.value()));
  return digits;
}

}  // namespace fastspec
