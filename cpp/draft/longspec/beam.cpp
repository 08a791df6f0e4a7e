// See beam.h.
#include "draft/longspec/beam.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/check.h"

namespace fastspec {

int Beam::add_level(std::span<const BeamNode> level) {
  const int above_begin = level_begin_, above_end = static_cast<int>(nodes_.size());
  level_begin_ = above_end;
  for (const BeamNode& node : level) {
    if (!(node.confidence > 0)) break;  // nor do those behind it exist
    const int parent = above_begin + node.parent;
    FS_CHECK(node.parent >= 0 && parent < above_end, "drafted node of parent ", node.parent, " of ",
             above_end - above_begin);
    const double score = nodes_[static_cast<std::size_t>(parent)].score;
    nodes_.push_back({node.token, parent, node.confidence, score + std::log(static_cast<double>(node.confidence))});
  }
  return static_cast<int>(nodes_.size()) - level_begin_;
}

void Beam::write(int max_drafted, TokenTree& tree) const {
  std::vector<std::size_t> kept(nodes_.size() - 1);
  std::iota(kept.begin(), kept.end(), 1);
  if (static_cast<int>(kept.size()) > max_drafted) {
    // Parents come before their children in nodes_, so on equal scores they come first here too.
    std::stable_sort(kept.begin(), kept.end(),
                     [&](std::size_t a, std::size_t b) { return nodes_[a].score > nodes_[b].score; });
    kept.resize(static_cast<std::size_t>(max_drafted));
    std::sort(kept.begin(), kept.end());
  }
  std::vector<int> place(nodes_.size(), 0);
  for (const std::size_t node : kept) {
    const Node& kept_node = nodes_[node];
    place[node] = tree.add(kept_node.token, place[static_cast<std::size_t>(kept_node.parent)], kept_node.confidence);
  }
}

}  // namespace fastspec
