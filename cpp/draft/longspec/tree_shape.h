// How large the levels of trees are that are drafted together. Arithmetic only.
#pragma once

#include <algorithm>
#include <numeric>
#include <vector>

namespace fastspec {

/// Trees whose levels have equal widths.
struct TreeShape {
  int num_trees = 0;
  std::vector<int> widths;  // nodes of each level, the root's first; those of the last level are never computed

  int depth() const { return static_cast<int>(widths.size()) - 1; }
  int width(int level) const { return widths[static_cast<std::size_t>(level)]; }
  int widest() const { return *std::max_element(widths.begin(), widths.end()); }
  /// Nodes of a tree above `level`.
  int nodes_above(int level) const { return std::accumulate(widths.begin(), widths.begin() + level, 0); }
  int num_rows(int level) const { return num_trees * width(level); }
};

}  // namespace fastspec
