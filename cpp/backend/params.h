// Arguments of every operation: plain structs over raw pointers, the only header of cpp/ that kernels may include.
// Each pointer states its shape. No ownership, no behaviour beyond addressing, no torch, no CUDA.
#pragma once

#include <fastspec/tensor.h>

#include <cstddef>
#include <cstdint>

#include "base/types.h"
#include "step/slot_lists.h"

namespace fastspec {

/// Activations: `rows` x `cols`, innermost dimension contiguous.
struct Matrix {
  void* data = nullptr;
  DType dtype = DType::kFloat32;
  int rows = 0;
  int cols = 0;
  std::int64_t stride = 0;  // elements from one row to the next

  template <typename T>
  T* row(int index) const {
    return static_cast<T*>(data) + index * stride;
  }
};

/// A weight matrix [out_features, in_features], row-major and dense.
struct Weight {
  const void* data = nullptr;
  DType dtype = DType::kFloat32;
  int out_features = 0;
  int in_features = 0;
};

/// A float32 vector (norm weights, biases); `data` is null where the model has none.
struct Vector {
  const float* data = nullptr;
  int size = 0;
};

struct EmbeddingParams {
  const TokenId* tokens = nullptr;  // [rows]
  Weight table;                     // [vocab_size, hidden_size]
  Matrix output;                    // [rows, hidden_size]
};

struct RmsNormParams {
  Matrix input;   // [rows, hidden_size]
  Vector weight;  // [hidden_size]
  float eps = 0;
  const std::int32_t* row_index = nullptr;  // [output.rows] rows of `input` to take; null = all, in order
  Matrix output;                            // [rows, hidden_size]
};

/// Rows of a matrix, or some of them, copied; either may be columns of a wider one.
struct CopyRowsParams {
  Matrix input;                             // [rows, cols]
  const std::int32_t* row_index = nullptr;  // [output.rows] rows of `input` to take, -1 = leave the row of `output` as
                                            // it is; null = all, in order
  Matrix output;                            // [rows, cols]; overlaps nothing of `input`
};

struct LinearParams {
  Matrix input;  // [rows, in_features]
  Weight weight;
  Vector bias;              // [out_features] or empty
  bool accumulate = false;  // output += instead of output = (the residual stream)
  Matrix output;            // [rows, out_features]
};

struct SiluMulParams {
  Matrix gate_up;  // [rows, 2 * intermediate_size]: gate, then up
  Matrix output;   // [rows, intermediate_size]
};

/// One layer's K and V in the pool, as a strided view. Element (slot, kv_head, which, d), which 0 = K, 1 = V, is at
/// base + (slot >> page_shift) * page_stride + kv_head * head_stride + which * value_offset
///      + (slot & (page_size - 1)) * slot_stride + d, all in elements.
struct KvView {
  void* base = nullptr;
  DType dtype = DType::kFloat32;
  int page_shift = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  std::int64_t page_stride = 0;
  std::int64_t head_stride = 0;
  std::int64_t value_offset = 0;
  std::int64_t slot_stride = 0;

  bool operator==(const KvView&) const = default;
};

/// Splits fused q, k, v rows; applies q/k norm (where given) and RoPE to q and k; writes K and V into the pool.
/// With num_heads 0 rows hold k and v only, and there is no query. Without slots they hold q only and nothing is
/// written to the pool, whose view then gives the head size.
struct RopeStoreParams {
  Matrix qkv;  // [rows, (num_heads + 2 * num_kv_heads) * head_dim]
  int num_heads = 0;
  Vector q_norm, k_norm;  // [head_dim] or empty
  float norm_eps = 0;
  const std::int32_t* positions = nullptr;     // [rows]
  const float* inverse_frequencies = nullptr;  // [head_dim / 2]
  float attention_factor = 1;                  // multiplies cos and sin (yarn)
  const Slot* slots = nullptr;                 // [rows] where K and V go; null = q only
  KvView kv;                                   // written
  Matrix query;                                // [rows, num_heads * head_dim] written, rotated
};

/// The host's copy of what AttentionParams says of its sequences.
struct HostSequences {
  const std::int32_t* row_offsets = nullptr;  // [num_sequences + 1]
  const KvList* lists = nullptr;              // [num_sequences]
  const NewMask* masks = nullptr;             // [num_sequences]
};

/// Attention of ragged new rows over cached keys (one list a sequence) and over the pass's own rows:
/// softmax(scale * q k^T) v over the union, exactly as if it were one list (LongSpec's hybrid form, section 3.3).
/// Key j of a page list has position j. `window` and `sinks` restrict page lists and new rows by position; slot lists
/// are taken as they are. A row that sees nothing has output 0 and LSE -inf. Rows at or past row_offsets[num_sequences]
/// belong to no sequence; their output is left as it was.
struct AttentionParams {
  Matrix query;  // [rows, num_heads * head_dim]
  int num_heads = 0;
  float scale = 1;
  int num_sequences = 0;
  int max_rows_per_sequence = 0;              // a hint for the choice of a kernel; 0 = unknown
  HostSequences host;                         // another; null where unknown, and where replays will have others
  const std::int32_t* row_offsets = nullptr;  // [num_sequences + 1] rows of sequence s
  const KvList* lists = nullptr;              // [num_sequences]
  const Slot* entries = nullptr;              // page ids or slots, see KvList
  const NewMask* masks = nullptr;             // [num_sequences]
  const std::uint64_t* mask_bits = nullptr;   // [rows, kMaskWords]; read for kAncestor only
  const std::int32_t* positions = nullptr;    // [rows]
  const Slot* slots = nullptr;                // [rows] where the new rows' K and V were written
  int window = 0;                             // a row at position p sees positions > p - window; 0 = all
  int sinks = 0;                              // positions < sinks stay visible outside the window
  KvView kv;
  Matrix output;         // [rows, num_heads * head_dim]
  float* lse = nullptr;  // [rows, num_heads] natural log, or null
};

/// How the attention weights of several rows become one number a position.
enum class RowPooling : std::uint8_t {
  kMean,  // weighted by row_weights: the scores of a sequence sum to `weight`
  kMax,   // the largest of weight times probability
};

/// How much attention rows pay to each position of the cached context: softmax of scale * q k^T over the whole list for
/// every row and named head, pooled over the rows, averaged over the heads. Several calls add up (layers, K/V heads of
/// other models). New rows of a pass are not part of it. A sequence without keys has no scores; without rows (or
/// with weights that sum to 0) its scores are 0. Arrays but `heads` are device memory, read when the operation runs.
struct ScoreKeysParams {
  Matrix query;                               // [any, num_heads * head_dim] rotated; may be columns of a wider matrix
  int num_heads = 0;                          // of a row of `query`; num_heads / num_kv_heads share a K/V head
  const std::int32_t* heads = nullptr;        // [num_scored_heads] query heads, ascending; memory of the host
  int num_scored_heads = 0;                   // at most kMaxScoredHeads
  float scale = 1;                            // > 0
  int num_sequences = 0;                      // those that score
  const std::int32_t* row_offsets = nullptr;  // [num_sequences + 1] entries of `rows` that sequence s has
  const std::int32_t* rows = nullptr;         // [row_offsets[num_sequences]] rows of `query`; null = entry i is row i
  const float* row_weights = nullptr;         // [row_offsets[num_sequences]] at least 0; null = all 1
  int max_rows_per_sequence = 0;              // at most, in this call and its replays
  RowPooling pooling = RowPooling::kMean;
  const KvList* lists = nullptr;  // [num_sequences] the whole cached context
  const Slot* entries = nullptr;  // page ids or slots, see KvList
  std::int32_t max_keys = 0;      // of one list at most, in this call and its replays
  KvView kv;                      // K is read
  float weight = 1;               // of this call's scores; at least 0
  bool accumulate = false;        // scores += instead of scores =
  float* scores = nullptr;        // [num_sequences, score_stride]; of row s the first lists[s].length are written
  std::int64_t score_stride = 0;  // elements, at least max_keys
};

constexpr int kMaxScoredHeads = 128;  // of one call

/// As score_keys, but every position of a page counts as if its key gave the page's upper bound,
/// sum over d of max(q_d * min_d, q_d * max_d), as its inner product (Quest, arXiv 2406.10774). Lists must be of pages.
struct ScorePagesParams {
  ScoreKeysParams scoring;       // its kv gives sizes and type; K is not read
  const void* bounds = nullptr;  // see PageBoundsParams
};

/// A page whose keys have changed.
struct TouchedPage {
  PageId page = 0;
  std::int32_t num_slots = 0;  // written ones, from the page's start; 0 = leave the page as it is
};

/// Channel-wise minimum and maximum of the keys of pages, computed anew.
struct PageBoundsParams {
  KvView kv;                           // K is read
  const TouchedPage* pages = nullptr;  // [num_pages] distinct, but for those with 0 slots
  int num_pages = 0;
  void* bounds = nullptr;  // [pages of the pool, num_kv_heads, 2, head_dim] of kv.dtype: minimum, then maximum; written
};

/// Chooses the positions that a sparse pass reads. Of each list: the first `sinks` and the last `recent` positions;
/// then the best `lookahead_slots` of the others by lookahead score, as far as it is above 0; then the best by history
/// score until there are `budget`. Of equal scores the lower position is taken; what is not above 0 (NaN too) counts as
/// 0. A list of at most `budget` keys is chosen whole, the rest of its slots are left as they were.
struct SelectSlotsParams {
  int num_sequences = 0;
  const KvList* lists = nullptr;     // [num_sequences] the whole cached context, as scored
  const Slot* entries = nullptr;     // page ids or slots, see KvList
  int page_shift = 0;                // of the pages that lists name
  std::int32_t max_keys = 0;         // of one list at most, in this call and its replays
  const float* history = nullptr;    // [num_sequences, score_stride]
  const float* lookahead = nullptr;  // [num_sequences, score_stride]; null = history alone
  std::int64_t score_stride = 0;     // elements
  int sinks = 0;                     // sinks + recent + lookahead_slots <= budget
  int recent = 0;
  int lookahead_slots = 0;
  int budget = 0;                         // at least 1
  Slot* slots = nullptr;                  // written, by position; may be other entries of the array `entries`
  const std::int64_t* offsets = nullptr;  // [num_sequences] the first of a list's `budget` slots; null = s * budget
  /// [num_sequences, 2] share of all history and of all lookahead that lies inside the chosen set; 0 where there is
  /// none. May be memory of Device::allocate_host(); null = not asked for.
  float* mass = nullptr;
};

/// Exact merge of two attention results over disjoint keys: into `output` and `lse`, in place.
struct MergeParams {
  Matrix output;                     // [rows, num_heads * head_dim]
  float* lse = nullptr;              // [rows, num_heads]
  Matrix other_output;               // [rows, num_heads * head_dim]
  const float* other_lse = nullptr;  // [rows, num_heads]
  int num_heads = 0;
};

/// An entry of a list in device memory that changes.
struct EntryUpdate {
  std::int64_t index = 0;
  Slot value = 0;
};

/// A block that goes from the host's memory to the device's, and entries of a list that change.
struct StagedCopy {
  void* destination = nullptr;
  const void* source = nullptr;  // of the host, as everything below but `entries`
  std::size_t bytes = 0;
  Slot* entries = nullptr;
  const EntryUpdate* updates = nullptr;
  const std::int64_t* num_updates = nullptr;  // one number; null = none
};

/// Copies K and V of all layers between slots: commit of accepted rows. Sources and destinations are disjoint, so the
/// copy is idempotent.
struct CopySlotsParams {
  const KvView* layers = nullptr;  // [num_layers]
  int num_layers = 0;
  const SlotMove* moves = nullptr;  // [num_moves]
  int num_moves = 0;
};

/// How often a token occurs in a sequence.
struct TokenCount {
  TokenId token = 0;
  std::int32_t in_output = 0;
  bool in_prompt = false;
};

struct LogitBias {
  TokenId token = 0;
  float bias = 0;
};

/// How the token after a row is drawn (cpp/README.md, "Promises"). Penalties and bias first, then temperature,
/// then top-k, top-p, min-p; the token is the argmax of (logit / temperature + Gumbel noise), noise a pure function of
/// (seed, sample_index, position, token). Temperature 0 takes the argmax; ties go to the lowest id.
struct SamplingRule {
  float temperature = 1;
  int top_k = 0;  // 0 = off
  float top_p = 1;
  float min_p = 0;
  float repetition_penalty = 1;
  float presence_penalty = 0;
  float frequency_penalty = 0;
  std::uint64_t seed = 0;
  std::uint32_t sample_index = 0;
  const TokenCount* counts = nullptr;  // [num_counts] committed history, any order; read when a penalty is on
  int num_counts = 0;
  const LogitBias* bias = nullptr;  // [num_bias]
  int num_bias = 0;
  const TokenId* forbidden = nullptr;  // [num_forbidden] never drawn (EOS and stop ids)
  int num_forbidden = 0;
  int num_generated = 0;  // tokens generated before the root's successor
  int min_tokens = 0;     // `forbidden` applies to tokens with fewer than min_tokens generated before them
};

/// What was drawn at one row.
struct SampledToken {
  TokenId token = 0;
  float logprob = 0;  // of the raw logits, natural log
  float margin = 0;   // winning score minus the next best (temperature-scaled, noise included); +inf for one candidate
};

/// Draws the target's token at every node of the accepted path of one tree, root first, going on while a child carries
/// the drawn token (coupled acceptance). A chain, a block and plain decoding (one node) are trees.
struct AcceptTree {
  int num_nodes = 0;                         // root included
  const TokenId* tokens = nullptr;           // [num_nodes]; the root's is the last committed token
  const std::int32_t* parents = nullptr;     // [num_nodes]; -1 for the root, else smaller than the node
  const std::int32_t* logit_rows = nullptr;  // [num_nodes] rows of the logits matrix
  std::int32_t root_position = 0;            // the root's position; its successor is drawn at root_position + 1
  SamplingRule rule;
  bool wants_logprob = false;  // of the drawn tokens; otherwise 0 is returned
  int num_top_logprobs = 0;    // 0 = none
};

struct TopLogprob {
  TokenId token = 0;
  float logprob = 0;
};

/// Result slots for one tree, owned by the caller, each with room for the tree's depth + 1 entries.
struct AcceptResult {
  bool failed = false;                 // nothing could be drawn: a NaN among the logits, or every token filtered out
  int num_accepted = 0;                // draft nodes accepted; num_accepted + 1 tokens were drawn (none if failed)
  std::int32_t* path = nullptr;        // accepted node ids, root excluded
  SampledToken* sampled = nullptr;     // num_accepted + 1 draws; the last is the bonus token
  TopLogprob* top_logprobs = nullptr;  // [num_accepted + 1, num_top_logprobs], descending; null when not asked
};

struct AcceptParams {
  Matrix logits;                      // [rows, vocab_size]; not changed
  const AcceptTree* trees = nullptr;  // [num_trees]
  AcceptResult* results = nullptr;    // [num_trees]
  int num_trees = 0;
};

/// The rules of the sequences that draft together.
struct ProposalRules {
  const SamplingRule* rules = nullptr;  // [num_rules]
  int num_rules = 0;
  int num_columns = 0;  // of the logits
};

constexpr TokenId kNoToken = -1;  // in place of a proposal where filters leave fewer than top_k tokens; confidence 0

/// Proposals of a draft model: at each row the top-k tokens by perturbed score under its rule (coupled drafting), see
/// Ops::set_rules. Arrays are device memory; the results may be memory of Device::allocate_host().
struct ProposeParams {
  Matrix logits;                            // [rows, num_columns]; penalties and bias may be added in place
  int rows_per_rule = 1;                    // row r has rule r / rows_per_rule; without a rule nothing is proposed
  const std::int32_t* positions = nullptr;  // [rows] of the row's own token; what is proposed follows it
  const TokenId* paths = nullptr;  // [rows, path_length] tokens after the committed ones, the row's own the last
  int path_length = 0;
  int top_k = 1;
  TokenId* tokens = nullptr;     // [rows, top_k], best first
  float* confidences = nullptr;  // [rows, top_k] softmax of the (perturbed, filtered) scores
  /// [num_columns], ascending: the token that each column of the logits stands for, by which its noise is keyed.
  /// Everything else here, rules and paths included, then speaks of columns. Null = tokens are columns.
  const TokenId* token_ids = nullptr;
};

/// A drafted node as the host reads it.
struct BeamNode {
  TokenId token = 0;
  std::int32_t parent = 0;  // its place in the level above
  float confidence = 0;     // of the token after its parent, at most 1; 0 = there is no such node
};

/// Makes the next level of draft trees: of each tree the `width` best children of its nodes by score, then by earlier
/// parent, then by rank. A child's score is its parent's plus the natural logarithm, in double, of its confidence.
/// Where there are fewer children the rest of the level does not exist: it has token 0, confidence 0 and score -inf,
/// valid slots and paths, and so have its children. A node's place in its level decides its slot, so only what is
/// listed here depends on what was drafted. Arrays are device memory; `nodes` may be memory of Device::allocate_host().
struct GrowBeamParams {
  int num_trees = 0;
  int num_parents = 0;  // of each tree
  int width = 0;        // children of each tree
  int top_k = 0;
  int depth = 0;  // of the parents; 0 = roots, of which there is one a tree
  // Of the parents, trees one after another.
  const TokenId* proposals = nullptr;  // [num_trees, num_parents, top_k] columns, best first; kNoToken = none
  const float* confidences = nullptr;  // [num_trees, num_parents, top_k]
  const double* scores = nullptr;      // [num_trees, num_parents]; null = 0
  const Slot* slots = nullptr;         // [num_trees, num_parents]
  const Slot* ancestors = nullptr;     // [num_trees, num_parents, depth - 1] slots below the root, root's side first
  const TokenId* paths = nullptr;      // [num_trees, num_parents, depth] columns
  const TokenId* token_ids = nullptr;  // as in ProposeParams
  // Of the children, written. Null where the level is the last: all but `nodes`.
  TokenId* child_tokens = nullptr;  // [num_trees, width]
  double* child_scores = nullptr;   // [num_trees, width]
  Slot* child_ancestors = nullptr;  // [num_trees, width, depth]
  TokenId* child_paths = nullptr;   // [num_trees, width, depth + 1] columns
  BeamNode* nodes = nullptr;        // [num_trees, width]
};

constexpr int kMaxBeamWidth = 256;  // nodes of a level of a tree

}  // namespace fastspec
