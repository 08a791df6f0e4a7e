// Which K/V of one sequence lies where in the drafter's pool: a ring of the last tokens and rows for the nodes of the
// tree. K and V of a token depend on the token and its position alone, so what lies in a slot is right for whoever has
// that token at that position: nothing need be dropped when a sequence is cut or a step fails. Host bookkeeping only.
#pragma once

#include <span>
#include <vector>

#include "base/types.h"
#include "step/slot_lists.h"

namespace fastspec {

class KvWindow {
 public:
  /// Slots first_slot .. first_slot + num_slots(window, num_nodes) - 1 are this sequence's.
  KvWindow(Slot first_slot, int window, int num_nodes);
  /// The ring holds a row's window and the row itself; nodes of the last level are never computed, so need no row.
  static int num_slots(int window, int num_nodes) { return window + 1 + num_nodes; }

  /// Forgets everything: another sequence takes over.
  void clear();

  /// A token whose K/V is to be computed.
  struct Missing {
    TokenId token = 0;
    int position = 0;
    Slot slot = 0;
  };
  /// What the ring lacks of the window before position tokens.size() - 1: moves from rows of the last tree where a node
  /// carries the token, else tokens to compute. Both are noted as absent until note() says that they are there.
  void find_missing(std::span<const TokenId> tokens, std::vector<SlotMove>& moves, std::vector<Missing>& missing);
  /// The window before tokens.size() - 1 is in the ring now.
  void note_window(std::span<const TokenId> tokens);

  /// Where the root's K/V goes: its place in the ring.
  Slot place_root(int position);
  void note_root(TokenId token, int position);
  /// Where a node's K/V goes.
  Slot place_node(int node);
  void note_node(int node, TokenId token, int position);

  Slot ring_slot(int position) const { return first_slot_ + position % static_cast<int>(ring_.size()); }
  Slot node_slot(int node) const { return first_slot_ + static_cast<Slot>(ring_.size()) + node; }

 private:
  struct Entry {
    TokenId token = 0;
    int position = -1;  // -1 = nothing
    bool operator==(const Entry&) const = default;
  };
  Entry& ring(int position) { return ring_[static_cast<std::size_t>(position) % ring_.size()]; }

  Slot first_slot_;
  int window_;
  std::vector<Entry> ring_;
  std::vector<Entry> nodes_;
};

}  // namespace fastspec
