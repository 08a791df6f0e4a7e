// Work recorded on a device, to be issued again at the cost of one call.
#pragma once

namespace fastspec {

class Graph {
 public:
  virtual ~Graph() = default;
  /// Issues the recorded work, ordered with the operations issued before and after. It reads what its pointers hold by
  /// then.
  virtual void launch() = 0;
};

}  // namespace fastspec
