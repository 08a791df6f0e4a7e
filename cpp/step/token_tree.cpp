// Building, pruning and checking of token trees.
#include "step/token_tree.h"

#include <utility>

#include "base/check.h"

namespace fastspec {

int TokenTree::add(TokenId token, int parent, float probability) {
  const int node = num_nodes();
  FS_CHECK(parent >= 0 && parent < node, "parent ", parent, " of node ", node);
  tokens.push_back(token);
  parents.push_back(parent);
  confidence.push_back(probability);
  scratch.push_back(node - 1);
  return node;
}

std::vector<int> TokenTree::depths() const {
  std::vector<int> depth(tokens.size(), 0);
  for (std::size_t node = 1; node < tokens.size(); ++node) depth[node] = depth[parents[node]] + 1;
  return depth;
}

bool TokenTree::is_chain() const {
  for (int node = 1; node < num_nodes(); ++node) {
    if (parents[node] != node - 1) return false;
  }
  return true;
}

void TokenTree::hang_below(TokenId root, std::span<const TokenId> chain, int first_scratch) {
  const int length = static_cast<int>(chain.size());
  for (int& parent : parents) parent += length;  // the old root's place is the chain's last
  TokenTree whole(root);
  for (int i = 0; i < length; ++i) {
    whole.add(chain[i], i, 1.0f);
    whole.scratch.back() = first_scratch + i;
  }
  whole.tokens.insert(whole.tokens.end(), tokens.begin() + 1, tokens.end());
  whole.parents.insert(whole.parents.end(), parents.begin() + 1, parents.end());
  whole.confidence.insert(whole.confidence.end(), confidence.begin() + 1, confidence.end());
  whole.scratch.insert(whole.scratch.end(), scratch.begin() + 1, scratch.end());
  *this = std::move(whole);
}

void TokenTree::prune(const std::vector<bool>& keep) {
  FS_CHECK(keep.size() == tokens.size() && keep[0], "prune keeps ", keep.size(), " of ", tokens.size(), " nodes");
  std::vector<int> renumbered(tokens.size(), -1);
  int kept = 0;
  for (int node = 0; node < static_cast<int>(keep.size()); ++node) {
    if (!keep[node]) continue;
    const int parent = parents[node] < 0 ? -1 : renumbered[parents[node]];
    FS_CHECK(node == 0 || parent >= 0, "node ", node, " is kept without its parent");
    tokens[kept] = tokens[node];
    parents[kept] = parent;
    confidence[kept] = confidence[node];
    scratch[kept] = scratch[node];
    renumbered[node] = kept++;
  }
  tokens.resize(kept);
  parents.resize(kept);
  confidence.resize(kept);
  scratch.resize(kept);
}

void TokenTree::check(int max_drafted, int max_depth, int vocab_size) const {
  FS_CHECK(!tokens.empty() && parents.size() == tokens.size() && confidence.size() == tokens.size() &&
               scratch.size() == tokens.size(),
           "arrays of a token tree differ in length");
  FS_CHECK(parents[0] == -1 && num_drafted() <= max_drafted, "tree of ", num_drafted(), " drafted tokens, allowed ",
           max_drafted);
  std::vector<int> depth(tokens.size(), 0);
  std::vector<bool> scratch_taken(max_drafted, false);
  for (int node = 1; node < num_nodes(); ++node) {
    FS_CHECK(parents[node] >= 0 && parents[node] < node, "parent ", parents[node], " of node ", node);
    depth[node] = depth[parents[node]] + 1;
    FS_CHECK(depth[node] <= max_depth, "node ", node, " at depth ", depth[node], ", allowed ", max_depth);
    FS_CHECK(scratch[node] >= 0 && scratch[node] < max_drafted, "scratch slot ", scratch[node], " of node ", node);
    FS_CHECK(!scratch_taken[scratch[node]], "scratch slot ", scratch[node], " of node ", node, " is another node's");
    scratch_taken[scratch[node]] = true;
    FS_CHECK(tokens[node] >= 0 && tokens[node] < vocab_size, "token ", tokens[node], " of node ", node,
             " outside the vocabulary of ", vocab_size);
  }
}

}  // namespace fastspec
