// How fast this machine reads memory: what decoding is measured against.
#pragma once

namespace fastspec::cli {

/// Bytes a second that `threads` threads read from a buffer far larger than the caches; the best of a few passes, about
/// a second of work. 0 threads = all cores.
double measure_read_bandwidth(int threads);

}  // namespace fastspec::cli
