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
#include "draft/longspec/level_batch.h"
#include "draft/longspec/longspec_block.h"
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
  /// Of a tree of these widths that is cut to `max_drafted` nodes.
  static DraftShape shape_of(const std::vector<int>& tree_widths, int max_drafted);

  std::string name() const override { return "longspec"; }
  DrafterNeeds needs() const override { return {.kv_layer = target_layer_}; }
  DraftShape shape() const override { return shape_of(limits_.tree_widths, limits_.max_drafted); }
  void draft(std::span<const DraftRequest> requests, std::span<TokenTree> trees) override;
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
    KvWindow* kv;
    Beam beam;
    int max_depth;
    DraftVocabulary::Rule rule;
    int root_position() const { return static_cast<int>(request->tokens.size()) - 1; }
  };

  KvWindow& seat_of(SeqId seq);
  void draft_together(std::span<Growing> trees);
  void complete_windows(std::span<Growing> trees);
  void compute_level(std::span<Growing* const> trees, int depth);
  void add_tree(Growing& tree, int depth);
  void forward_level();
  /// Runs the batch, brought to `num_rows`, as a recording; or only records it.
  void run_recorded(int num_rows, int max_rows_per_tree, bool only_record);
  void grow_beams(std::span<Growing* const> trees, int depth);

  /// Sizes that follow from limits and window.
  struct Layout {
    Layout(const Limits& limits, int window);
    int window;
    int width;           // of the widest level
    int level_rows;      // of all trees that grow together
    int projected_rows;  // of a pass that completes windows
    int num_nodes;       // of a tree that are ever computed: those of the last level have no children
    int slots_per_seat;
    int num_slots;  // of all seats, and one that padding rows write to
  };
  static LevelBatch::Limits batch_limits(const Limits& limits, const Layout& layout);

  Limits limits_;
  Layout layout_;
  int target_layer_;
  KvView target_kv_;
  Backend& backend_;
  LongSpecBlock block_;
  DraftVocabulary vocabulary_;
  KvPool kv_;
  LevelBatch batch_;
  GraphCache graphs_;
  int graphs_generation_ = 0;  // of batch_, when the graphs were recorded
  std::vector<KvWindow> seats_;
  std::vector<int> free_seats_;
  std::unordered_map<SeqId, int> seat_of_;
};

}  // namespace fastspec
