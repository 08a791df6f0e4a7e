// See kernel_recorder.h. Only types and constants come from CUPTI's headers: nothing is linked to it.
#include "backend/cuda/kernel_recorder.h"

#include "base/check.h"

#if __has_include(<cupti.h>)
#include <cuda_runtime_api.h>
#include <cupti.h>
#include <cxxabi.h>
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "host/host_link.h"

namespace fastspec::cuda {
namespace {

constexpr std::size_t kBufferBytes = std::size_t{4} << 20;
constexpr std::size_t kBufferAlignment = 8;
constexpr std::array kKinds = {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY,
                               CUPTI_ACTIVITY_KIND_MEMSET};

/// The functions of the library; none is null.
struct Cupti {
  decltype(&cuptiActivityRegisterCallbacks) register_callbacks = nullptr;
  decltype(&cuptiActivityEnable) enable = nullptr;
  decltype(&cuptiActivityDisable) disable = nullptr;
  decltype(&cuptiActivityFlushAll) flush = nullptr;
  decltype(&cuptiActivityGetNextRecord) next_record = nullptr;
  decltype(&cuptiActivityGetNumDroppedRecords) num_dropped = nullptr;
  decltype(&cuptiGetResultString) result_string = nullptr;
};

void* open_library() {
  const std::string name = "libcupti.so." + std::to_string(CUDART_VERSION / 1000);
  std::string faults;
  // By its bare name it is found where libtorch or cuBLAS brought it, or the system's loader knows it.
  for (const char* folder : {"", "/usr/local/cuda/lib64/", "/usr/local/cuda/extras/CUPTI/lib64/"}) {
    if (void* library = dlopen((folder + name).c_str(), RTLD_NOW | RTLD_LOCAL); library != nullptr) return library;
    faults += std::string(faults.empty() ? "" : "; ") + dlerror();
  }
  fail(ErrorCode::kUnsupported,
       "CUPTI, which a CUDA toolkit or the Python package nvidia-cuda-cupti brings, cannot be "
       "loaded (LD_LIBRARY_PATH may name its folder): ",
       faults);
}

template <typename Function>
void find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function == nullptr) fail(ErrorCode::kUnsupported, "CUPTI has no ", name);
}

Cupti load_cupti() {
  void* library = open_library();  // for good: it hooks into the driver
  Cupti cupti;
  find(library, "cuptiActivityRegisterCallbacks", cupti.register_callbacks);
  find(library, "cuptiActivityEnable", cupti.enable);
  find(library, "cuptiActivityDisable", cupti.disable);
  find(library, "cuptiActivityFlushAll", cupti.flush);
  find(library, "cuptiActivityGetNextRecord", cupti.next_record);
  find(library, "cuptiActivityGetNumDroppedRecords", cupti.num_dropped);
  find(library, "cuptiGetResultString", cupti.result_string);
  return cupti;
}

const Cupti& cupti() {
  static const Cupti loaded = load_cupti();  // tried again where it failed
  return loaded;
}

void check(CUptiResult status, const char* call) {
  if (status == CUPTI_SUCCESS) return;
  const char* text = nullptr;
  (void)cupti().result_string(status, &text);
  fail(ErrorCode::kUnsupported, call, ": ", text == nullptr ? std::to_string(static_cast<int>(status)) : text);
}

std::string demangled(const char* name) {
  int status = 0;
  char* text = abi::__cxa_demangle(name, nullptr, nullptr, &status);
  std::string result = status == 0 ? text : name;
  std::free(text);  // NOLINT: as the function asks
  return result;
}

struct Found {
  DeviceSpan span;
  std::uint32_t device;
};

/// What the callbacks write to, from whatever thread CUPTI calls them.
struct Record {
  std::mutex mutex;
  bool is_running = false;
  std::vector<Found> found;
  std::size_t num_dropped = 0;
};

Record& record() {
  static Record& kept = *new Record;  // CUPTI may still call while the process ends
  return kept;
}

void add(const CUpti_Activity& activity) {
  const auto keep = [](auto& of_kind, std::string name) {
    const auto begin = static_cast<std::int64_t>(of_kind.start), end = static_cast<std::int64_t>(of_kind.end);
    if (begin == 0 || end < begin) return;  // it was not finished, or no times could be taken
    const bool ends_step = name.find(kStepEndKernel) != std::string::npos;
    record().found.push_back({{std::move(name), begin, end, ends_step}, of_kind.deviceId});
  };
  switch (activity.kind) {
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: {
      const auto& kernel = reinterpret_cast<const CUpti_ActivityKernel9&>(activity);
      return keep(kernel, demangled(kernel.name));
    }
    case CUPTI_ACTIVITY_KIND_MEMCPY:
      return keep(reinterpret_cast<const CUpti_ActivityMemcpy5&>(activity), "memcpy");
    case CUPTI_ACTIVITY_KIND_MEMSET:
      return keep(reinterpret_cast<const CUpti_ActivityMemset4&>(activity), "memset");
    default:
      return;
  }
}

void CUPTIAPI give_buffer(std::uint8_t** buffer, std::size_t* bytes, std::size_t* max_records) {
  *buffer = static_cast<std::uint8_t*>(std::aligned_alloc(kBufferAlignment, kBufferBytes));
  *bytes = *buffer == nullptr ? 0 : kBufferBytes;
  *max_records = 0;  // as many as fit
}

void CUPTIAPI take_buffer(CUcontext context, std::uint32_t stream, std::uint8_t* buffer, std::size_t /*bytes*/,
                          std::size_t num_valid) {
  const std::lock_guard lock(record().mutex);
  CUpti_Activity* activity = nullptr;
  while (record().is_running && cupti().next_record(buffer, num_valid, &activity) == CUPTI_SUCCESS) add(*activity);
  std::size_t dropped = 0;
  if (cupti().num_dropped(context, stream, &dropped) == CUPTI_SUCCESS) record().num_dropped += dropped;
  std::free(buffer);  // NOLINT: of aligned_alloc
}

void disable_all() {
  for (const CUpti_ActivityKind kind : kKinds) (void)cupti().disable(kind);
}

}  // namespace

void start_recording_kernels() {
  const Cupti& functions = cupti();
  {
    const std::lock_guard lock(record().mutex);
    record().is_running = true;
    record().found.clear();
    record().num_dropped = 0;
  }
  try {
    check(functions.register_callbacks(give_buffer, take_buffer), "cuptiActivityRegisterCallbacks");
    for (const CUpti_ActivityKind kind : kKinds) check(functions.enable(kind), "cuptiActivityEnable");
  } catch (...) {
    disable_all();
    const std::lock_guard lock(record().mutex);
    record().is_running = false;
    throw;
  }
}

std::vector<DeviceSpan> stop_recording_kernels(int ordinal) {
  disable_all();
  const CUptiResult flushed = cupti().flush(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
  const std::lock_guard lock(record().mutex);
  FS_CHECK(record().is_running, "no trace was started");
  record().is_running = false;
  const std::vector<Found> found = std::exchange(record().found, {});
  check(flushed, "cuptiActivityFlushAll");
  FS_CHECK(record().num_dropped == 0, "CUPTI lost ", record().num_dropped, " of its records");
  std::vector<DeviceSpan> spans;
  for (const Found& one : found) {
    if (one.device == static_cast<std::uint32_t>(ordinal)) spans.push_back(one.span);
  }
  return spans;
}

}  // namespace fastspec::cuda

#else

namespace fastspec::cuda {

void start_recording_kernels() {
  fail(ErrorCode::kUnsupported, "this build was made without CUPTI's headers");
}

std::vector<DeviceSpan> stop_recording_kernels(int) {
  fail(ErrorCode::kInternal, "no trace was started");
}

}  // namespace fastspec::cuda

#endif
