// Chain drafting with a small model.
#include "draft/standalone_drafter.h"

#include <algorithm>

#include "base/check.h"

namespace fastspec {

namespace {

ChainLookahead::Limits lookahead_limits(const ModelConfig& config, const StandaloneDrafter::Limits& limits) {
  return {.num_layers = static_cast<int>(limits.lookahead_layers.size()),
          .num_heads = config.num_heads,
          .head_dim = config.head_dim,
          .max_sequences = limits.pass.max_sequences,
          .max_levels = limits.max_drafted};
}

}  // namespace

StandaloneDrafter::StandaloneDrafter(const ModelConfig& config, Weights weights, Backend& backend, DType dtype,
                                     const Limits& limits)
    : limits_(limits),
      backend_(backend),
      transformer_(config, std::move(weights), backend, limits.pass.max_rows, limits.pass.max_sequences,
                   {.query_layers = limits.lookahead_layers}),
      kv_(*backend.device, transformer_.kv_shape(dtype), limits.num_pages, limits.page_size),
      passes_(backend, transformer_, kv_, limits.pass, Slot{limits.num_pages} * limits.page_size - 1, limits.graphs),
      lookahead_(backend, lookahead_limits(config, limits), limits.lookahead_layers, kv_) {
  const auto sequences = static_cast<std::size_t>(limits.pass.max_sequences);
  Device& device = *backend.device;
  positions_ = device.allocate(sequences * sizeof(std::int32_t), "positions of a draft");
  paths_ =
      device.allocate(sequences * static_cast<std::size_t>(limits.max_drafted) * sizeof(TokenId), "drafted chains");
  tokens_ = device.allocate_host(sequences * sizeof(TokenId), "drafted tokens");
  confidences_ = device.allocate_host(sequences * sizeof(float), "confidences of drafted tokens");
}

std::size_t StandaloneDrafter::activation_bytes(const ModelConfig& config, std::size_t element_size,
                                                const Limits& limits) {
  const int max_rows = limits.pass.max_rows, max_sequences = limits.pass.max_sequences;
  const std::size_t proposals = static_cast<std::size_t>(max_sequences) *
                                (sizeof(std::int32_t) + static_cast<std::size_t>(limits.max_drafted) * sizeof(TokenId));
  return Transformer::activation_bytes(config, element_size, max_rows, max_sequences,
                                       {.query_layers = limits.lookahead_layers}) +
         proposals + ChainLookahead::device_bytes(lookahead_limits(config, limits), element_size) +
         PassBuffers::device_bytes(limits.pass);
}

Matrix StandaloneDrafter::forward(std::span<const Rows> rows) {
  constexpr int kUsualRows = 2;  // the root, and the last token of a chain that was accepted whole
  bool recurs = true;
  batch_.clear();
  for (const Rows& sequence : rows) {
    recurs = recurs && sequence.wants_logits && sequence.end - sequence.first <= kUsualRows;
    for (int position = sequence.first; position < sequence.end; ++position) {
      batch_.tokens.push_back(sequence.tokens[position]);
      batch_.positions.push_back(position);
      batch_.slots.push_back(Slot{sequence.pages[position / limits_.page_size]} * limits_.page_size +
                             position % limits_.page_size);
    }
    const int num_pages = (sequence.first + limits_.page_size - 1) / limits_.page_size;
    batch_.kv.lists.push_back({.length = sequence.first});
    batch_.kv.tables.push_back({.pages = sequence.pages.data(),
                                .num_pages = num_pages,
                                .num_lasting = std::min(num_pages, sequence.num_lasting_pages),
                                .version = sequence.version});
    if (sequence.wants_logits) batch_.logit_rows.push_back(batch_.num_rows() - 1);
    batch_.end_sequence(NewMask::kCausal);
  }
  Matrix logits = passes_.forward(batch_, recurs);
  logits.cols = std::min(logits.cols, limits_.vocab_size);  // padded rows of the larger vocabulary are no tokens
  return logits;
}

bool StandaloneDrafter::knows(std::span<const TokenId> tokens) const {
  const int vocab_size = transformer_.config().vocab_size;
  return vocab_size >= limits_.vocab_size ||
         std::all_of(tokens.begin(), tokens.end(), [&](TokenId token) { return token < vocab_size; });
}

bool StandaloneDrafter::knows(const SamplingRule& rule) const {
  const int vocab_size = transformer_.config().vocab_size;
  const auto known = [&](const auto& entry) { return entry.token < vocab_size; };
  return knows(std::span(rule.forbidden, rule.num_forbidden)) &&
         std::all_of(rule.counts, rule.counts + rule.num_counts, known) &&
         std::all_of(rule.bias, rule.bias + rule.num_bias, known);
}

void StandaloneDrafter::catch_up(State& state, Rows rows, int length) {
  while (state.kv_len < length) {
    rows.first = state.kv_len;
    rows.end = std::min(length, state.kv_len + limits_.pass.max_rows);
    forward({&rows, 1});
    state.kv_len = rows.end;
  }
}

StandaloneDrafter::Rows StandaloneDrafter::rows_of(const DraftRequest& request) const {
  const int num_cached = static_cast<int>(request.tokens.size()) - 1;  // pages beyond are lent for a step only
  return {.tokens = request.tokens,
          .pages = request.pages,
          .num_lasting_pages = (num_cached + limits_.page_size - 1) / limits_.page_size,
          .version = request.version};
}

void StandaloneDrafter::propose(const Matrix& logits, const Level& level) {
  Device& device = *backend_.device;
  device.copy_to_device(positions_.data(), level.positions.data(), level.positions.size() * sizeof(std::int32_t));
  if (!level.paths.empty()) {
    device.copy_to_device(paths_.data(), level.paths.data(), level.paths.size() * sizeof(TokenId));
  }
  backend_.ops->propose({.logits = logits,
                         .positions = positions_.as<const std::int32_t>(),
                         .paths = paths_.as<const TokenId>(),
                         .path_length = level.path_length,
                         .top_k = 1,
                         .tokens = tokens_.as<TokenId>(),
                         .confidences = confidences_.as<float>()});
  backend_.ops->await_proposals();
}

void StandaloneDrafter::draft(std::span<const DraftRequest> requests, std::span<TokenTree> trees) {
  const std::size_t count = requests.size();
  std::vector<std::vector<TokenId>> drafted(count);  // committed tokens, then the chain
  std::vector<std::size_t> active;
  lookahead_.begin(count);
  for (std::size_t i = 0; i < count; ++i) {
    const DraftRequest& request = requests[i];
    if (std::min(request.max_drafted, request.max_depth) <= 0) continue;
    if (!knows(request.tokens) || !knows(request.rule)) continue;
    const int length = static_cast<int>(request.tokens.size());
    State& state = states_[request.seq];
    // A step that failed after it drafted has K/V of the root in a page that may be another's now.
    state.kv_len = std::min(state.kv_len, length - 1);
    // The last catch-up rows ride in the first drafting pass; only what exceeds a pass is computed before.
    catch_up(state, rows_of(request), length - std::max(1, limits_.pass.max_rows / limits_.pass.max_sequences));
    drafted[i].assign(request.tokens.begin(), request.tokens.end());
    active.push_back(i);
  }
  std::vector<SamplingRule> rules;
  std::vector<float> survival(active.size(), 1.0f);  // of the active ones' chains
  for (int level = 0; !active.empty(); ++level) {
    std::vector<Rows> rows;
    Level proposals{.path_length = level};
    for (const std::size_t i : active) {
      const DraftRequest& request = requests[i];
      const int end = static_cast<int>(drafted[i].size());
      const int first = level == 0 ? states_[request.seq].kv_len : end - 1;
      Rows& next = rows.emplace_back(rows_of(request));
      next.tokens = drafted[i];
      next.first = first;
      next.end = end;
      next.wants_logits = true;
      proposals.positions.push_back(end - 1);
      proposals.paths.insert(proposals.paths.end(), drafted[i].begin() + std::ssize(request.tokens), drafted[i].end());
    }
    const Matrix logits = forward(rows);
    lookahead_.keep(level, transformer_.kept_queries(), std::span(batch_.logit_rows).first(active.size()), active,
                    survival);
    if (rules.size() != active.size()) {  // the first level, or a chain has ended
      rules.clear();
      for (const std::size_t i : active) rules.push_back(requests[i].rule);
      backend_.ops->set_rules({rules.data(), static_cast<int>(rules.size()), logits.cols});
    }
    propose(logits, proposals);
    for (const std::size_t i : active) {
      State& state = states_[requests[i].seq];
      state.kv_len = static_cast<int>(requests[i].tokens.size());
      state.written = static_cast<int>(drafted[i].size());
    }
    const auto* tokens = tokens_.as<const TokenId>();
    const auto* confidences = confidences_.as<const float>();
    std::vector<std::size_t> still_active;
    std::vector<float> still_surviving;
    for (std::size_t k = 0; k < active.size(); ++k) {
      const std::size_t i = active[k];
      if (tokens[k] == kNoToken) continue;  // the filters leave nothing: the chain ends
      trees[i].add(tokens[k], level, confidences[k]);
      drafted[i].push_back(tokens[k]);
      const int limit = std::min({limits_.max_drafted, requests[i].max_drafted, requests[i].max_depth});
      if (level + 1 >= limit) continue;
      still_active.push_back(i);
      still_surviving.push_back(survival[k] * confidences[k]);
    }
    active = std::move(still_active);
    survival = std::move(still_surviving);
  }
  lookahead_.end();
}

void StandaloneDrafter::observe(std::span<const Observation> observations) {
  for (const Observation& seen : observations) {
    const int root_end = seen.first_position + seen.num_known_rows;
    if (seen.will_draft && seen.num_known_rows > 1 && knows(seen.tokens.first(root_end))) {
      const Rows rows{.tokens = seen.tokens,
                      .pages = seen.pages,
                      .num_lasting_pages = static_cast<int>(seen.pages.size()),
                      .version = seen.version};
      catch_up(states_[seen.seq], rows, root_end);
      continue;
    }
    const auto found = states_.find(seen.seq);
    if (found == states_.end() || found->second.kv_len < root_end) continue;  // did not draft: caught up when it does
    // The chain's K/V was written in place. Of the accepted tokens only the last can be missing, when the whole chain
    // was accepted: it was drafted, never fed.
    State& state = found->second;
    state.kv_len = state.written = std::min(root_end + seen.num_accepted, state.written);
  }
}

void StandaloneDrafter::truncate(SeqId seq, int length) {
  const auto found = states_.find(seq);
  if (found != states_.end()) found->second.kv_len = std::min(found->second.kv_len, length);
}

void StandaloneDrafter::forget(SeqId seq) noexcept {
  states_.erase(seq);
}

void StandaloneDrafter::share(SeqId from, SeqId to, int length) {
  const auto found = states_.find(from);
  states_[to].kv_len = found == states_.end() ? 0 : std::min(found->second.kv_len, length);
}

}  // namespace fastspec
