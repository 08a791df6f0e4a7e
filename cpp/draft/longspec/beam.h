// The tree that LongSpec drafts: level by level the candidates of highest cumulative score (arXiv 2502.17421, section
// 3.3), which Ops::grow_beam chooses. Brings its levels to the host's tree. Pure: no device.
#pragma once

#include <span>
#include <vector>

#include "backend/params.h"
#include "base/types.h"
#include "step/token_tree.h"

namespace fastspec {

class Beam {
 public:
  Beam() : nodes_{{}} {}

  /// Appends the nodes of the next level that exist. @returns their number.
  int add_level(std::span<const BeamNode> level);

  /// The `max_drafted` drafted nodes of highest score as a tree below its root: closed under parents, because scores do
  /// not grow along a path.
  void write(int max_drafted, TokenTree& tree) const;

 private:
  struct Node {
    TokenId token = 0;
    int parent = -1;
    float confidence = 1;  // of the token after its parent
    double score = 0;      // sum of the logarithms of confidences on the path
  };
  std::vector<Node> nodes_;  // the root first
  int level_begin_ = 0;
};

}  // namespace fastspec
