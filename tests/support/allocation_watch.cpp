// The replaced operator new: malloc plus two counters.
#include "support/allocation_watch.h"

#include <atomic>
#include <cstdlib>
#include <new>

namespace {

std::atomic<std::size_t> largest_allocation{0};
std::atomic<std::size_t> total_allocated{0};

}  // namespace

void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  std::size_t largest = largest_allocation.load(std::memory_order_relaxed);
  while (bytes > largest && !largest_allocation.compare_exchange_weak(largest, bytes)) {
  }
  total_allocated.fetch_add(bytes, std::memory_order_relaxed);
  return std::malloc(bytes > 0 ? bytes : 1);
}

void* operator new(std::size_t bytes) {
  void* memory = operator new(bytes, std::nothrow);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept {
  return operator new(bytes, std::nothrow);
}
void* operator new[](std::size_t bytes) {
  return operator new(bytes);
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
void operator delete[](void* memory) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, std::size_t) noexcept {
  std::free(memory);
}

namespace fastspec::test {

AllocationWatch::AllocationWatch() {
  largest_allocation = 0;
  total_allocated = 0;
}

std::size_t AllocationWatch::largest() const {
  return largest_allocation;
}
std::size_t AllocationWatch::total() const {
  return total_allocated;
}

}  // namespace fastspec::test
