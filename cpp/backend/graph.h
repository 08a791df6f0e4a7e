// Work recorded on a device, to be issued again at the cost of one call.
#pragma once

#include <cstddef>

namespace fastspec {

class Graph {
 public:
  virtual ~Graph() = default;
  /// Issues the recorded work, ordered with the operations issued before and after. It reads what its pointers hold by
  /// then.
  virtual void launch() = 0;
  /// Memory of the device that it takes, as far as the device tells.
  virtual std::size_t bytes() const { return 0; }
};

}  // namespace fastspec
