// See beam.h.
#include "draft/longspec/beam.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "backend/params.h"
#include "base/check.h"

namespace fastspec {

void Beam::grow(std::span<const TokenId> tokens, std::span<const float> confidences, int top_k, int width) {
  FS_CHECK(tokens.size() == confidences.size() && tokens.size() == std::size_t(level_size()) * std::size_t(top_k),
           tokens.size(), " proposals for ", level_size(), " nodes");
  std::vector<Node> candidates;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] == kNoToken || !(confidences[i] > 0)) continue;
    const int parent = level_begin_ + static_cast<int>(i) / top_k;
    const Node& above = nodes_[static_cast<std::size_t>(parent)];
    const float confidence = std::min(confidences[i], 1.0f);
    candidates.push_back(
        {tokens[i], parent, above.depth + 1, confidence, above.score + std::log(static_cast<double>(confidence))});
  }
  // Candidates stand in the order of parent and rank, so a stable sort breaks ties by them.
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const Node& a, const Node& b) { return a.score > b.score; });
  candidates.resize(std::min(candidates.size(), static_cast<std::size_t>(width)));
  level_begin_ = static_cast<int>(nodes_.size());
  nodes_.insert(nodes_.end(), candidates.begin(), candidates.end());
}

std::vector<TokenId> Beam::path(int node) const {
  std::vector<TokenId> tokens;
  for (; node > 0; node = nodes_[static_cast<std::size_t>(node)].parent) {
    tokens.push_back(nodes_[static_cast<std::size_t>(node)].token);
  }
  std::reverse(tokens.begin(), tokens.end());
  return tokens;
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
