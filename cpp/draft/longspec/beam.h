// The tree that LongSpec drafts: level by level the candidates of highest cumulative score (arXiv 2502.17421, section
// 3.3). Pure: no device.
#pragma once

#include <span>
#include <vector>

#include "base/types.h"
#include "step/token_tree.h"

namespace fastspec {

class Beam {
 public:
  explicit Beam(TokenId root) : nodes_{{root, -1, 0, 1.0f, 0.0}}, level_begin_(0) {}

  struct Node {
    TokenId token = 0;
    int parent = -1;
    int depth = 0;
    float confidence = 1;  // of the token after its parent
    double score = 0;      // sum of the logarithms of confidences on the path
  };

  /// Makes the next level of the `width` best children of the current one: by score, then by earlier parent, then by
  /// rank. tokens and confidences [nodes of the level, top_k] are proposals for each of its nodes, best first; kNoToken
  /// and confidence 0 are none. A node's score is log-softmax plus its parent's score; with coupled drafting the
  /// softmax is that of perturbed scores.
  void grow(std::span<const TokenId> tokens, std::span<const float> confidences, int top_k, int width);

  /// Nodes of the current level, which are nodes() from level_begin() on.
  int level_size() const { return static_cast<int>(nodes_.size()) - level_begin_; }
  int level_begin() const { return level_begin_; }
  const std::vector<Node>& nodes() const { return nodes_; }
  /// Tokens from the root's child to `node`.
  std::vector<TokenId> path(int node) const;

  /// The `max_drafted` drafted nodes of highest score as a tree: closed under parents, because scores do not grow along
  /// a path.
  void write(int max_drafted, TokenTree& tree) const;

 private:
  std::vector<Node> nodes_;
  int level_begin_;
};

}  // namespace fastspec
