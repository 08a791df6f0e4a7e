// Records what a GPU runs, kernel by kernel, by CUPTI, which is loaded when it is first asked for. For benchmarks:
// recording slows the host.
#pragma once

#include <vector>

#include "backend/device.h"

namespace fastspec::cuda {

/// One record at a time in a process: one that was not ended is dropped. @throws Error(kUnsupported) saying why: CUPTI
/// is missing or refuses.
void start_recording_kernels();

/// Ends the record. What the device has not finished by now is left out. @param ordinal of the GPU that counts.
/// @throws Error(kInternal) where records were lost, or nothing was started.
std::vector<DeviceSpan> stop_recording_kernels(int ordinal);

}  // namespace fastspec::cuda
