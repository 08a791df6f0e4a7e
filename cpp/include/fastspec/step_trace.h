// Where the time of steps goes on a GPU, from a record of every kernel.
#pragma once

#include <string>
#include <vector>

namespace fastspec {

/// All launches of one kernel, or copies of one kind.
struct KernelTime {
  std::string name;
  double launches = 0;      // a step
  double milliseconds = 0;  // a step, all launches together
  double share = 0;         // of the step's milliseconds, 0 to 1; kernels that overlap count each
};

/// Means over whole steps, each from the end of the kernel that ends the step before it to the end of its own. Busy,
/// idle_inside and idle_between add up to milliseconds. Recording slows the host a little, the device hardly.
struct StepTrace {
  int steps = 0;
  double milliseconds = 0;               // of one step
  double busy_milliseconds = 0;          // at least one kernel or copy runs
  double idle_inside_milliseconds = 0;   // nothing runs between two kernels of a step
  double idle_between_milliseconds = 0;  // nothing runs from the end of a step to the next one's first kernel
  std::vector<KernelTime> kernels;       // the longest first

  /// A table for people.
  std::string to_string() const;
};

}  // namespace fastspec
