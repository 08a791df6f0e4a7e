// See cpu_device.h. Reads /proc and the control-group files for the memory that is left; a missing file sets no limit.
#include "backend/cpu/cpu_device.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>
#include <new>
#include <optional>
#include <string>

#include "base/check.h"

namespace fastspec::cpu {
namespace {

constexpr std::size_t kAlignment = 64;
constexpr std::size_t kHugePage = std::size_t{2} << 20;
// Below this an allocation is tried without asking how much memory is left.
constexpr std::size_t kCheckedBytes = std::size_t{64} << 20;
constexpr std::size_t kNoLimit = std::numeric_limits<std::size_t>::max();

/// The number after `key` in a file of "key value" lines, or the file's first number where `key` is empty.
std::optional<std::size_t> read_number(const std::string& path, const std::string& key = {}) {
  std::ifstream file(path);
  std::string word;
  while (file >> word) {
    if (!key.empty() && word != key) continue;
    if (!key.empty() && !(file >> word)) break;
    char* end = nullptr;
    const unsigned long long value = std::strtoull(word.c_str(), &end, 10);
    if (end == word.c_str()) return std::nullopt;  // "max"
    return static_cast<std::size_t>(value);
  }
  return std::nullopt;
}

std::size_t group_headroom(const std::string& limit_file, const std::string& usage_file, const std::string& stat_file,
                           const std::string& cache_key) {
  const auto limit = read_number(limit_file);
  const auto usage = read_number(usage_file);
  if (!limit || !usage) return kNoLimit;
  const std::size_t reclaimable = std::min(*usage, read_number(stat_file, cache_key).value_or(0));
  const std::size_t used = *usage - reclaimable;
  return *limit > used ? *limit - used : 0;
}

/// Path of this process's version 2 group below /sys/fs/cgroup, "" where it cannot be told.
std::string group_path() {
  std::ifstream file("/proc/self/cgroup");
  std::string line;
  while (std::getline(file, line)) {
    if (line.rfind("0::", 0) == 0) return line.substr(3);
  }
  return {};
}

}  // namespace

std::string CpuDevice::model_name() const {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return name();
}

Buffer CpuDevice::allocate(std::size_t bytes, const char* what) {
  if (bytes > kNoLimit / 2) fail(ErrorCode::kOutOfMemory, what, ": ", bytes, " bytes asked for, no machine has them");
  const bool large = bytes >= 2 * kHugePage;
  const std::size_t alignment = large ? kHugePage : kAlignment;
  if (bytes > kCheckedBytes) {
    const std::size_t available = available_bytes();
    if (bytes > available) {
      fail(ErrorCode::kOutOfMemory, what, ": ", bytes, " bytes asked for, ", available,
           " bytes of host memory available");
    }
  }
  const std::size_t rounded = (std::max<std::size_t>(bytes, 1) + alignment - 1) / alignment * alignment;
  void* data = std::aligned_alloc(alignment, rounded);
  if (data == nullptr) {
    fail(ErrorCode::kOutOfMemory, what, ": allocating ", bytes, " bytes of host memory failed");
  }
  // Huge pages keep address translation out of the way of streaming reads; a refusal costs speed only.
  if (large) (void)madvise(data, rounded, MADV_HUGEPAGE);
  return Buffer(data, bytes, std::shared_ptr<void>(data, [](void* memory) { std::free(memory); }));
}

void CpuDevice::copy_to_device(void* destination, const void* source, std::size_t bytes) {
  if (bytes != 0) std::memcpy(destination, source, bytes);
}

void CpuDevice::copy_to_host(void* destination, const void* source, std::size_t bytes) {
  if (bytes != 0) std::memcpy(destination, source, bytes);
}

std::size_t CpuDevice::available_bytes() const {
  std::size_t available = kNoLimit;
  if (const auto kib = read_number("/proc/meminfo", "MemAvailable:")) available = *kib * 1024;
  for (const std::string& base : {std::string("/sys/fs/cgroup"), "/sys/fs/cgroup" + group_path()}) {
    available = std::min(available, group_headroom(base + "/memory.max", base + "/memory.current",
                                                   base + "/memory.stat", "inactive_file"));
  }
  const std::string old = "/sys/fs/cgroup/memory";
  available = std::min(available, group_headroom(old + "/memory.limit_in_bytes", old + "/memory.usage_in_bytes",
                                                 old + "/memory.stat", "total_inactive_file"));
  return available;
}

}  // namespace fastspec::cpu
