// Counts what operator new hands out in this process, so that a test can prove that no claimed size was allocated.
// Replaces the global operator new of every test program that uses it.
#pragma once

#include <cstddef>

namespace fastspec::test {

/// Watches from construction on. One at a time; allocations of all threads count.
class AllocationWatch {
 public:
  AllocationWatch();
  std::size_t largest() const;  // bytes of the largest single allocation
  std::size_t total() const;    // bytes of all allocations, freed ones included
};

}  // namespace fastspec::test
