// See kv_window.h.
#include "draft/longspec/kv_window.h"

#include <algorithm>

#include "base/check.h"

namespace fastspec {

KvWindow::KvWindow(Slot first_slot, int window, int num_nodes)
    : first_slot_(first_slot),
      window_(window),
      ring_(static_cast<std::size_t>(window) + 1),
      nodes_(static_cast<std::size_t>(num_nodes)) {}

void KvWindow::clear() {
  std::fill(ring_.begin(), ring_.end(), Entry{});
  std::fill(nodes_.begin(), nodes_.end(), Entry{});
}

void KvWindow::find_missing(std::span<const TokenId> tokens, std::vector<SlotMove>& moves,
                            std::vector<Missing>& missing) {
  const int root = static_cast<int>(tokens.size()) - 1;
  for (int position = std::max(0, root - window_); position < root; ++position) {
    const Entry wanted{tokens[static_cast<std::size_t>(position)], position};
    Entry& held = ring(position);
    if (held == wanted) continue;
    held = {};
    const auto node = std::find(nodes_.begin(), nodes_.end(), wanted);
    if (node != nodes_.end()) {
      moves.push_back({node_slot(static_cast<int>(node - nodes_.begin())), ring_slot(position)});
    } else {
      missing.push_back({wanted.token, position, ring_slot(position)});
    }
  }
}

void KvWindow::note_window(std::span<const TokenId> tokens) {
  const int root = static_cast<int>(tokens.size()) - 1;
  for (int position = std::max(0, root - window_); position < root; ++position) {
    ring(position) = {tokens[static_cast<std::size_t>(position)], position};
  }
}

Slot KvWindow::place_root(int position) {
  ring(position) = {};
  return ring_slot(position);
}

void KvWindow::note_root(TokenId token, int position) {
  ring(position) = {token, position};
}

Slot KvWindow::place_node(int node) {
  FS_CHECK(node < static_cast<int>(nodes_.size()), "node ", node, " of ", nodes_.size());
  nodes_[static_cast<std::size_t>(node)] = {};
  return node_slot(node);
}

void KvWindow::note_node(int node, TokenId token, int position) {
  nodes_[static_cast<std::size_t>(node)] = {token, position};
}

}  // namespace fastspec
