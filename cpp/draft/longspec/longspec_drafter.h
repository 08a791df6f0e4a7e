// LongSpec (arXiv 2502.17421): trees from one block that attends to a window of its own and to the target's last-layer
// K/V. What it keeps of a sequence does not grow with the context: a ring of the last tokens' K/V and rows for the
// tree.
#pragma once

#include <memory>
#include <unordered_map>
#include <vector>

#include "backend/graph_cache.h"
#include "draft/drafter.h"
#include "draft/longspec/beam.h"
#include "draft/longspec/draft_vocabulary.h"
#include "draft/longspec/kv_window.h"
#include "draft/longspec/longspec_block.h"
#include "draft/longspec/tree_batch.h"
#include "draft/longspec/tree_lookahead.h"
#include "memory/kv_pool.h"

namespace fastspec {

class LongSpecDrafter final : public Drafter {
 public:
  struct Limits {
    std::vector<int> tree_widths;  // nodes of each level below the root, at most
    bool coupled = true;           // with the target's noise
    int max_drafted = 0;           // nodes of a tree, at most
    PassLimits pass;
    int page_size = 0;  // of the target's pool
    GraphLimits graphs;
    bool keeps_lookahead = false;
  };
  /// @param target_weights embedding and LM head, read in place; `target_kv` the target's last layer, too.
  /// @throws Error(kOutOfMemory).
  LongSpecDrafter(LongSpecModel model, const ModelConfig& target, const Weights& target_weights,
                  const KvView& target_kv, Backend& backend, DType dtype, const Limits& limits);

  // What one takes of the device, beside weights.
  static std::size_t kv_bytes(const LongSpecConfig& config, const ModelConfig& target, DType dtype,
                              const Limits& limits);
  static std::size_t activation_bytes(const LongSpecModel& model, const ModelConfig& target, std::size_t element_size,
                                      const Limits& limits);
  /// Rows of a tree that are ever fed: those with children to be.
  static int lookahead_rows(const Limits& limits);
  /// Of a tree of these widths that is cut to `max_drafted` nodes.
  static DraftShape shape_of(const std::vector<int>& tree_widths, int max_drafted);

  std::string name() const override { return "longspec"; }
  DrafterNeeds needs() const override { return {.kv_layer = target_layer_}; }
  DraftShape shape() const override { return shape_of(limits_.tree_widths, limits_.max_drafted); }
  void draft(std::span<const DraftRequest> requests, std::span<TokenTree> trees) override;
  const Lookahead* lookahead() const override { return lookahead_.get(); }
  // The next draft finds what it lacks by comparing tokens, and takes accepted nodes from the rows of the last tree.
  void observe(std::span<const Observation>) override {}
  void truncate(SeqId, int) override {}
  void forget(SeqId seq) noexcept override;
  void share(SeqId, SeqId, int) override {}
  GraphUse graphs() const override { return graphs_.use(); }
  void record_graphs(int max_sequences) override;

 private:
  /// One sequence's tree in the making.
  struct Growing {
    const DraftRequest* request;
    int request_index;
    KvWindow* kv;
    int max_depth;
    DraftVocabulary::Rule rule;
    TokenTree* result;
    int root_position() const { return static_cast<int>(request->tokens.size()) - 1; }
  };

  KvWindow& seat_of(SeqId seq);
  void draft_together(std::span<Growing> trees);
  void complete_windows(std::span<Growing> trees);
  /// @param max_drafted nodes of any of the trees. @param max_depth of any of them.
  TreeShape shape_for(int num_trees, int max_drafted, int max_depth) const;
  void add_tree(const Growing& tree, const TreeShape& shape);
  /// Drafts what is in the batch, as a recording where the device has them; or only records it.
  void run(const TreeShape& shape, const ProposalRules& rules, bool only_record);
  /// All levels of the batch, which the host need not wait between.
  void issue_levels(const TreeShape& shape);
  void read_tree(int index, const TreeShape& shape, Growing& tree);

  /// Sizes that follow from limits and window.
  struct Layout {
    Layout(const Limits& limits, int window);
    int window;
    TreeShape most;      // trees that grow together
    int level_rows;      // of all of them
    int projected_rows;  // of a pass that completes windows
    int num_nodes;       // of a tree that are ever computed: those of the last level have no children
    int slots_per_seat;
    int num_slots;  // of all seats, and one that padding rows write to
  };
  static TreeBatch::Limits batch_limits(const Limits& limits, const Layout& layout);
  static PassLimits projection_limits(const Layout& layout);
  static TreeLookahead::Limits lookahead_limits(const Limits& limits, const Layout& layout, const ModelConfig& target);

  Limits limits_;
  Layout layout_;
  int target_layer_;
  KvView target_kv_;
  Backend& backend_;
  LongSpecBlock block_;
  DraftVocabulary vocabulary_;
  KvPool kv_;
  PassBuffers projection_;
  TreeBatch batch_;
  TreeLookahead lookahead_;
  GraphCache graphs_;
  int graphs_generation_ = 0;  // of batch_, when the graphs were recorded
  std::vector<KvWindow> seats_;
  std::vector<int> free_seats_;
  std::unordered_map<SeqId, int> seat_of_;
};

}  // namespace fastspec
