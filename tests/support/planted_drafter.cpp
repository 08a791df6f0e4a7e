// Proposals around a known truth.
#include "support/planted_drafter.h"

#include <algorithm>

namespace fastspec::testing {

namespace {

constexpr int kTreeWidth = 3;

std::vector<int> children_of(const TokenTree& tree, int node) {
  std::vector<int> children;
  for (int child = node + 1; child < tree.num_nodes(); ++child) {
    if (tree.parents[child] == node) children.push_back(child);
  }
  return children;
}

}  // namespace

PlantedDrafter::PlantedDrafter(std::map<std::pair<std::uint64_t, std::uint32_t>, std::vector<TokenId>> truths,
                               TreeShape shape, double probability, int depth, int vocab_size, Coverage* coverage)
    : truths_(std::move(truths)),
      tree_shape_(shape),
      probability_(probability),
      depth_(depth),
      vocab_size_(vocab_size),
      coverage_(coverage) {}

DraftShape PlantedDrafter::shape() const {
  // A tree fans out kTreeWidth times on the true path and on one path of decoys.
  return {.max_nodes = tree_shape_ == TreeShape::kTree ? 2 * kTreeWidth * depth_ : depth_, .max_depth = depth_};
}

void PlantedDrafter::draft(std::span<const DraftRequest> requests, std::span<TokenTree> trees) {
  for (std::size_t i = 0; i < requests.size(); ++i) {
    grow(requests[i], trees[i]);
    Proposal& proposal = proposals_[requests[i].seq];
    proposal.length = static_cast<int>(requests[i].tokens.size());
    proposal.tree = trees[i];
  }
}

void PlantedDrafter::grow(const DraftRequest& request, TokenTree& tree) {
  const int length = static_cast<int>(request.tokens.size());
  const auto found = truths_.find({request.rule.seed, request.rule.sample_index});
  std::span<const TokenId> truth;
  if (found != truths_.end() && static_cast<int>(found->second.size()) > length &&
      std::equal(request.tokens.begin(), request.tokens.end(), found->second.begin())) {
    truth = found->second;
  }
  const int max_depth = std::min(depth_, request.max_depth);
  if (tree_shape_ == TreeShape::kTree) {
    grow_tree(truth, length, request.max_drafted, max_depth, tree);
    return;
  }
  bool on_path = true;
  for (int depth = 0; depth < std::min(max_depth, request.max_drafted); ++depth) {
    const int position = length + depth;
    const bool known = position < static_cast<int>(truth.size());
    const bool offer = known && hit() && (on_path || tree_shape_ == TreeShape::kBlock);
    on_path = on_path && offer;
    tree.add(offer ? truth[position] : decoy(), depth, offer ? 0.9f : 0.4f);
  }
}

void PlantedDrafter::grow_tree(std::span<const TokenId> truth, int length, int max_drafted, int max_depth,
                               TokenTree& tree) {
  std::vector<int> frontier = {0};
  bool on_path = true;  // frontier[0] carries the truth so far
  for (int depth = 0; depth < max_depth; ++depth) {
    const int position = length + depth;
    const bool offer = on_path && position < static_cast<int>(truth.size()) && hit();
    const int place = std::uniform_int_distribution<int>(0, kTreeWidth - 1)(random_);
    std::vector<int> next;
    for (std::size_t f = 0; f < frontier.size(); ++f) {
      for (int child = 0; child < kTreeWidth && tree.num_drafted() < max_drafted; ++child) {
        const bool is_true = offer && f == 0 && child == place;
        // Behind the true child a sibling may carry the same token: the first one must win, whatever hangs below.
        const bool duplicate = offer && f == 0 && child > place && hit();
        const int node = tree.add(is_true || duplicate ? truth[position] : decoy(), frontier[f],
                                  std::uniform_real_distribution<float>(0.0f, 1.0f)(random_));
        if (is_true) next.insert(next.begin(), node);
        if (duplicate && coverage_ != nullptr) ++coverage_->duplicate_siblings;
        if (!is_true && static_cast<int>(next.size()) < 2 && (duplicate || child + 1 == kTreeWidth))
          next.push_back(node);
      }
    }
    on_path = offer;
    if (next.size() > 2) next.resize(2);
    frontier = next;
    if (frontier.empty()) return;
  }
}

void PlantedDrafter::observe(std::span<const Observation> observations) {
  for (const Observation& seen : observations) {
    const auto found = proposals_.find(seen.seq);
    if (found == proposals_.end() || coverage_ == nullptr) continue;
    Proposal& proposal = found->second;
    const int run = static_cast<int>(seen.tokens.size()) - proposal.length;
    proposal.last_run = run;
    coverage_->accepted_lengths.insert(std::min(run, seen.num_accepted + 1) - 1);
    int node = 0;
    for (int i = 0; i < seen.num_accepted; ++i) {
      const std::vector<int> children = children_of(proposal.tree, node);
      const TokenId token = seen.tokens[proposal.length + i];
      const auto child = std::find_if(children.begin(), children.end(),
                                      [&](int candidate) { return proposal.tree.tokens[candidate] == token; });
      if (child == children.end()) break;
      coverage_->child_indices.insert(static_cast<int>(child - children.begin()));
      node = *child;
    }
  }
}

void PlantedDrafter::truncate(SeqId seq, int) {
  proposals_.erase(seq);
}

void PlantedDrafter::forget(SeqId seq) noexcept {
  const auto found = proposals_.find(seq);
  if (found == proposals_.end()) return;
  if (coverage_ != nullptr && found->second.last_run > 0) coverage_->end_places.insert(found->second.last_run);
  proposals_.erase(found);
}

}  // namespace fastspec::testing
