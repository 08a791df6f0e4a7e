// Engines of tiny models.
#include "support/engine_harness.h"

#include <algorithm>
#include <sstream>

#include "support/deferring_ops.h"
#include "support/replaying_device.h"
#include "support/tiny_model.h"

namespace fastspec::testing {

namespace {

constexpr int kDraftWindow = 12;  // shorter than most prompts, so that the ring goes round

HarnessOptions plain_options(const HarnessOptions& options) {
  HarnessOptions plain;
  plain.device = options.device;
  plain.dtype = options.dtype;
  plain.max_model_len = options.max_model_len;
  plain.vocab_size = options.vocab_size;
  plain.has_windows = options.has_windows;
  plain.max_num_seqs = 1;
  return plain;
}

std::string join(const std::vector<TokenId>& tokens) {
  std::ostringstream text;
  for (const TokenId token : tokens) text << ' ' << token;
  return text.str();
}

bool same_logprobs(const PositionLogprobs& a, const PositionLogprobs& b) {
  return a.logprob == b.logprob &&
         std::equal(a.top.begin(), a.top.end(), b.top.begin(), b.top.end(),
                    [](const auto& x, const auto& y) { return x.token == y.token && x.logprob == y.logprob; });
}

}  // namespace

std::unique_ptr<EngineCore> make_engine(HarnessOptions options) {
  EngineConfig config;
  config.model = "tiny";
  config.device = options.device;
  config.dtype = options.dtype;
  config.max_model_len = options.max_model_len;
  config.max_num_seqs = options.max_num_seqs;
  config.max_batch_rows = options.max_batch_rows;
  config.page_size = options.page_size;
  config.speculation.drafter = options.drafter;
  config.speculation.max_draft_tokens = options.max_draft_tokens;
  config.speculation.budget = options.budget;
  config.sparse = options.sparse;

  EngineParts parts;
  parts.backend = make_backend(options.device, options.dtype, options.device == "cpu" ? 2 : 1);
  options.replays = options.replays || options.pipelined;
  if (options.replays) {
    parts.backend.device = std::make_unique<ReplayingDevice>(std::move(parts.backend.device), options.pipelined);
  }
  if (options.pipelined) parts.backend.ops = std::make_unique<DeferringOps>(std::move(parts.backend.ops));
  parts.dtype = options.dtype;
  parts.fingerprint = kTargetFingerprint;
  parts.draft_fingerprint = kDraftFingerprint;
  parts.model = tiny_config(options.vocab_size, std::max(512, options.max_model_len));
  if (!options.has_windows) parts.model.window.assign(parts.model.window.size(), 0);
  Device& device = *parts.backend.device;
  parts.weights = tiny_weights(parts.model, kTargetSeed, options.dtype, device);
  parts.tokenizer = tiny_tokenizer(options.vocab_size);
  std::size_t kv_bytes_per_token =
      std::size_t{2} * parts.model.num_layers * parts.model.kv_size() * size_of(options.dtype);
  // A page's bounds are as large as one token's K/V.
  const std::size_t bounds_bytes = options.sparse.selector == "quest" ? kv_bytes_per_token : 0;
  if (options.drafter.kind == "standalone") {
    parts.draft_model = StandaloneModel{
        parts.model, tiny_weights(parts.model, kTargetSeed, options.dtype, device, 5, options.draft_noise)};
    kv_bytes_per_token *= 2;
  }
  if (options.drafter.kind == "longspec") {
    parts.draft_model =
        tiny_longspec(parts.model, kTargetSeed, kDraftWindow, options.dtype, device, options.draft_vocabulary);
  }
  if (options.drafter.kind == "dflash") {
    parts.draft_model = tiny_dflash(parts.model, parts.weights, 17, options.dtype, device);
    if (options.drafter.window == 0) kv_bytes_per_token *= 2;
  }
  if (options.num_pages > 0) {
    int nodes = options.drafter.kind.empty() ? 0 : draft_shape(config.speculation, parts.draft_model).max_nodes;
    if (options.own_drafter) nodes = options.own_drafter->shape().max_nodes;
    nodes += SparseSteps::longest_run(config, nodes);
    const int slots = nodes * options.max_num_seqs + (options.replays ? 1 : 0);
    const int scratch_pages = (slots + options.page_size - 1) / options.page_size;
    config.kv_cache_bytes = static_cast<std::int64_t>((kv_bytes_per_token * options.page_size + bounds_bytes) *
                                                      static_cast<std::size_t>(options.num_pages + scratch_pages));
  }
  parts.drafter = std::move(options.own_drafter);
  parts.selector = std::move(options.own_selector);
  parts.costs = options.costs;
  if (options.wrap_ops) parts.backend.ops = options.wrap_ops(std::move(parts.backend.ops));
  auto engine = std::make_unique<EngineCore>(config, std::move(parts));
  engine->runner().sparse().set_bypass(options.bypasses);
  return engine;
}

Outputs run(EngineCore& engine, const std::vector<Request>& requests, int arrivals,
            const std::function<void(EngineCore&)>& between) {
  std::map<RequestId, std::size_t> first;
  Outputs outputs;
  for (const Request& request : requests) outputs.resize(outputs.size() + request.sampling.n);
  std::size_t next = 0;
  std::size_t next_output = 0;
  while (next < requests.size() || engine.has_work()) {
    const std::size_t end = arrivals > 0 ? std::min(requests.size(), next + arrivals) : requests.size();
    for (; next < end; ++next) {
      first[engine.submit(requests[next])] = next_output;
      next_output += requests[next].sampling.n;
    }
    for (Output& delta : engine.step().outputs) {
      WholeOutput& whole = outputs[first.at(delta.request) + delta.sample];
      whole.tokens.insert(whole.tokens.end(), delta.token_ids.begin(), delta.token_ids.end());
      whole.margins.insert(whole.margins.end(), delta.token_ids.size(), delta.min_margin);
      whole.text += delta.text;
      for (PositionLogprobs& position : delta.logprobs) whole.logprobs.push_back(std::move(position));
      whole.finish = delta.finish_reason;
      whole.error = delta.error;
      whole.stats = delta.stats;
      whole.guarantee = delta.guarantee;
    }
    if (between) between(engine);
  }
  return outputs;
}

Outputs run_plain_alone(const HarnessOptions& options, const std::vector<Request>& requests) {
  Outputs outputs;
  const std::unique_ptr<EngineCore> engine = make_engine(plain_options(options));
  for (const Request& request : requests) {
    Request plain = request;
    plain.speculation = {};
    for (WholeOutput& output : run(*engine, {plain})) outputs.push_back(std::move(output));
  }
  return outputs;
}

std::string difference(const Outputs& expected, const Outputs& seen) {
  std::ostringstream text;
  if (expected.size() != seen.size()) text << expected.size() << " outputs expected, " << seen.size() << " seen";
  for (std::size_t i = 0; i < std::min(expected.size(), seen.size()) && text.str().empty(); ++i) {
    const WholeOutput& a = expected[i];
    const WholeOutput& b = seen[i];
    if (a.tokens != b.tokens) {
      text << "output " << i << ": tokens\n  expected" << join(a.tokens) << "\n  seen    " << join(b.tokens);
    } else if (a.text != b.text) {
      text << "output " << i << ": text \"" << a.text << "\" expected, \"" << b.text << "\" seen";
    } else if (a.finish != b.finish) {
      text << "output " << i << ": finish " << to_string(a.finish) << " expected, " << to_string(b.finish) << " seen";
    } else if (!std::equal(a.logprobs.begin(), a.logprobs.end(), b.logprobs.begin(), b.logprobs.end(), same_logprobs)) {
      text << "output " << i << ": log-probabilities differ";
    }
  }
  return text.str();
}

std::map<std::pair<std::uint64_t, std::uint32_t>, std::vector<TokenId>> truths_of(const std::vector<Request>& requests,
                                                                                  const Outputs& plain) {
  std::map<std::pair<std::uint64_t, std::uint32_t>, std::vector<TokenId>> truths;
  std::size_t output = 0;
  for (const Request& request : requests) {
    for (int sample = 0; sample < request.sampling.n; ++sample) {
      std::vector<TokenId>& tokens = truths[{*request.sampling.seed, static_cast<std::uint32_t>(sample)}];
      tokens = request.prompt_token_ids;
      tokens.insert(tokens.end(), plain[output].tokens.begin(), plain[output].tokens.end());
      ++output;
    }
  }
  return truths;
}

}  // namespace fastspec::testing
