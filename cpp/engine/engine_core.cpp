// Loading, submission, stepping. How memory is divided and what is built in it: engine_build.cpp.
#include "engine/engine_core.h"

#include <fastspec/fingerprint.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "backend/intercepted_ops.h"
#include "base/check.h"
#include "base/log.h"
#include "engine/step_trace.h"
#include "model/random_weights.h"

namespace fastspec {

namespace {

/// Sums the time spent inside operations, so that the engine's own overhead can be told.
class OperationClock final : public InterceptedOps {
 public:
  OperationClock(std::unique_ptr<Ops> inner, double& seconds) : InterceptedOps(std::move(inner)), seconds_(seconds) {}

 private:
  void before() override { start_ = Clock::now(); }
  void after() override { seconds_ += std::chrono::duration<double>(Clock::now() - start_).count(); }

  double& seconds_;
  Clock::time_point start_;
};

/// One thread at a time, and not from a callback of itself.
class Turn {
 public:
  explicit Turn(std::atomic<bool>& taken) : taken_(taken) {
    if (taken_.exchange(true)) {
      fail(ErrorCode::kInvalidArgument,
           "step() or generate() is running already, in another thread or around this callback: one at a time");
    }
  }
  ~Turn() { taken_ = false; }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

 private:
  std::atomic<bool>& taken_;
};

}  // namespace

EngineParts EngineCore::load(const EngineConfig& config, const LoadProgressCallback& progress) {
  config.validate();
  EngineParts parts;
  parts.model = load_model_config(config.model);
  parts.dtype = config.dtype.value_or(parts.model.checkpoint_dtype);
  parts.backend = make_backend(config.device, parts.dtype, config.num_threads);
  try {
    parts.tokenizer = Tokenizer::load(config.model);
  } catch (const Error& error) {
    // A model without a tokenizer can still be driven by token ids; any other fault is the user's to know.
    if (error.code() != ErrorCode::kNotFound) throw;
    log(LogLevel::kInfo, error.what(), ": prompts must be token ids, outputs have no text");
  }
  parts.weights = load_weights(config.model, parts.model, parts.dtype, *parts.backend.device, progress);
  if (!config.sparse.manifest.empty()) parts.fingerprint = model_fingerprint(config.model);
  parts.draft_model = load_draft_model(config, parts.model, parts.weights, parts.dtype, *parts.backend.device,
                                       parts.tokenizer.get(), progress);
  if (!config.sparse.manifest.empty() && parts.draft_model) {
    parts.draft_fingerprint = model_fingerprint(config.speculation.drafter.model);
  }
  return parts;
}

EngineCore::EngineCore(const EngineConfig& config, EngineParts parts)
    : config_(config.resolved()),
      parts_(std::move(parts)),
      drafts_for_itself_(config.speculation.drafter.kind == "self_sparse"),
      process_(getpid()) {
  parts_.backend.ops = std::make_unique<OperationClock>(std::move(parts_.backend.ops), operation_seconds_);
  plan_memory_and_build();
  prepare_costs(config_.speculation.budget);
}

EngineCore::~EngineCore() = default;

std::vector<TokenId> EngineCore::prompt_tokens(const Request& request) const {
  if (!request.prompt_token_ids.empty()) {
    if (!request.prompt.empty()) {
      fail(ErrorCode::kInvalidArgument, "a request has both a prompt and prompt_token_ids: give one");
    }
    return request.prompt_token_ids;
  }
  if (parts_.tokenizer == nullptr) {
    fail(ErrorCode::kInvalidArgument, "model ", config_.model,
         " has no tokenizer.json: give prompt_token_ids instead of text");
  }
  return parts_.tokenizer->encode(request.prompt, request.add_special_tokens);
}

std::shared_ptr<RequestState> EngineCore::make_request_state(const Request& request) const {
  request.sampling.validate();
  auto state = std::make_shared<RequestState>();
  state->sampling = request.sampling;
  state->hold = request.hold;
  state->prompt = prompt_tokens(request);
  const int prompt_len = static_cast<int>(state->prompt.size());
  state->max_tokens = std::min(request.sampling.max_tokens, config_.max_model_len - prompt_len);
  if (!request.sampling.ignore_eos) state->end_tokens = parts_.model.eos_token_ids;
  state->end_tokens.insert(state->end_tokens.end(), request.sampling.stop_token_ids.begin(),
                           request.sampling.stop_token_ids.end());
  std::sort(state->end_tokens.begin(), state->end_tokens.end());
  for (const auto& [token, bias] : request.sampling.logit_bias) state->logit_bias.push_back({token, bias});
  const std::optional<int> max_draft_tokens = request.speculation.max_draft_tokens;
  if (drafts_for_itself_) {
    if (max_draft_tokens.value_or(0) != 0) {
      fail(ErrorCode::kInvalidArgument, "speculation.max_draft_tokens is ", *max_draft_tokens,
           ", but with drafter self_sparse it is the engine's: leave it out, or 0 for plain decoding");
    }
    if (request.guarantee == Guarantee::kSparse) {
      fail(ErrorCode::kInvalidArgument, "guarantee is sparse, but drafter self_sparse is confirmed by dense passes");
    }
  } else if (parts_.drafter != nullptr && request.speculation.enabled) {
    const int limit = parts_.drafter->shape().max_nodes;
    state->max_drafted = request.speculation.max_draft_tokens.value_or(limit);
    if (state->max_drafted < 0 || state->max_drafted > limit) {
      fail(ErrorCode::kInvalidArgument, "speculation.max_draft_tokens is ", state->max_drafted,
           ", this engine drafts 0 to ", limit);
    }
  } else if (request.speculation.max_draft_tokens.value_or(0) != 0) {
    fail(ErrorCode::kInvalidArgument, "speculation.max_draft_tokens is ", *request.speculation.max_draft_tokens,
         ", but speculation is off ",
         parts_.drafter == nullptr ? "in this engine: it has no drafter" : "in this request");
  }
  const bool asks_for_sparse = request.sparse.value_or(false) || request.guarantee == Guarantee::kSparse;
  if (asks_for_sparse && parts_.selector == nullptr && !said_no_sparse_.exchange(true)) {
    log(LogLevel::kWarning, "a request asks for sparse passes, but this engine was made without: it decodes densely");
  }
  // Where sparse passes are the drafter, the switch of speculation is theirs, too.
  const bool drafts = !drafts_for_itself_ || (request.speculation.enabled && max_draft_tokens != 0);
  state->wants_sparse = request.sparse.value_or(true) && drafts && parts_.selector != nullptr;
  if (state->wants_sparse) state->guarantee = request.guarantee.value_or(config_.sparse.guarantee);
  return state;
}

void EngineCore::check_request(const RequestState& state, const Request& request) const {
  const int vocab_size = parts_.model.vocab_size;
  const auto check_ids = [&](const char* what, const auto& ids, auto id_of) {
    for (const auto& entry : ids) {
      const TokenId id = id_of(entry);
      if (id < 0 || id >= vocab_size) {
        fail(ErrorCode::kInvalidArgument, what, " holds token ", id, ", the vocabulary has ", vocab_size);
      }
    }
  };
  const auto itself = [](TokenId id) { return id; };
  if (request.hold && request.sampling.n != 1) {
    fail(ErrorCode::kInvalidArgument, "sampling parameter n is ", request.sampling.n,
         ", of a request with hold, which has no samples, it is 1");
  }
  if (state.prompt.empty()) fail(ErrorCode::kInvalidArgument, "the prompt is empty");
  if (state.wants_sparse && state.guarantee == Guarantee::kExact && config_.sparse.guarantee == Guarantee::kSparse) {
    fail(ErrorCode::kInvalidArgument, "guarantee is exact, but this engine keeps no rows for tokens that a dense pass ",
         "confirms: make it with sparse.guarantee exact and let requests ask for sparse, or turn sparse off in this "
         "one");
  }
  check_ids("the prompt", state.prompt, itself);
  check_ids("stop_token_ids", request.sampling.stop_token_ids, itself);
  check_ids("logit_bias", state.logit_bias, [](const LogitBias& bias) { return bias.token; });
  if (static_cast<int>(state.prompt.size()) >= config_.max_model_len) {
    fail(ErrorCode::kInvalidArgument, "the prompt has ", state.prompt.size(), " tokens; with max_model_len ",
         config_.max_model_len, " it may have ", config_.max_model_len - 1);
  }
  if (request.sampling.logprobs.value_or(0) > vocab_size) {
    fail(ErrorCode::kInvalidArgument, "logprobs is ", *request.sampling.logprobs, ", the vocabulary has ", vocab_size);
  }
  if (!request.sampling.stop.empty() && parts_.tokenizer == nullptr) {
    fail(ErrorCode::kInvalidArgument, "stop strings need a tokenizer.json in ", config_.model);
  }
}

void EngineCore::check_alive() const {
  if (getpid() != process_) {
    fail(ErrorCode::kInvalidArgument, "this engine was made in another process: its threads did not follow the fork; ",
         "make one here");
  }
  if (poisoned_) fail(ErrorCode::kDeviceFailure, "the device failed in an earlier step: make a new engine");
}

RequestId EngineCore::submit(const Request& request) {
  check_alive();
  const std::shared_ptr<RequestState> state = make_request_state(request);
  check_request(*state, request);
  const std::lock_guard lock(mutex_);
  state->id = next_request_++;
  state->seed =
      request.sampling.seed ? *request.sampling.seed : (static_cast<std::uint64_t>(entropy_()) << 32 | entropy_());
  state->submitted = Clock::now();
  submitted_.push_back(state);
  ++num_unfinished_;
  return state->id;
}

void EngineCore::cancel(RequestId request) {
  const std::lock_guard lock(mutex_);
  cancelled_.push_back(request);
  num_at_rest_ = 0;
}

void EngineCore::take_inbox() {
  std::vector<std::unique_ptr<Sequence>> sequences;
  std::vector<RequestId> cancelled;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& state : submitted_) {
      for (int sample = 0; sample < state->sampling.n; ++sample) {
        sequences.push_back(std::make_unique<Sequence>(next_seq_++, state, sample, parts_.tokenizer));
      }
    }
    submitted_.clear();  // only now: what is not taken stays
    cancelled.swap(cancelled_);
    if (std::exchange(reset_requested_, false)) {
      runner_->reset_stats();
      operation_seconds_ = 0;
    }
  }
  for (auto& sequence : sequences) {
    unfinished_samples_[sequence->request().id] = sequence->request().sampling.n;
    scheduler_->add(std::move(sequence));
  }
  for (const RequestId request : cancelled) {
    for (const SeqId seq : scheduler_->sequences_of(request)) {
      undelivered_.push_back(*runner_->finish(seq, FinishReason::kCancelled));
    }
  }
}

void EngineCore::start_on_noise() {
  check_alive();
  take_inbox();
  if (!kv_is_noise_) {
    const NoiseFill noise(*parts_.backend.device, parts_.dtype, 1.0f);
    const int num_pages = kv_->num_pages() + kv_->num_scratch_slots() / kv_->page_size();
    for (const KvView& layer : target_kv_->layers()) {
      const auto elements = static_cast<std::size_t>(layer.page_stride) * static_cast<std::size_t>(num_pages);
      noise.fill(layer.base, elements * size_of(layer.dtype));
    }
    kv_is_noise_ = true;
  }
  scheduler_->admit_as_computed();
  if (parts_.drafter == nullptr) return;
  for (const auto& sequence : scheduler_->running_sequences()) {
    parts_.drafter->start_on_noise(sequence->id(), kv_->kv_len(sequence->id()));
  }
}

void EngineCore::record_graphs(int max_sequences) {
  const Turn turn(stepping_);
  check_alive();
  runner_->record_graphs(std::min(max_sequences, config_.max_num_seqs));
  publish_stats();
}

void EngineCore::set_row_budget(const std::string& mode) {
  const Turn turn(stepping_);
  check_alive();
  if (parts_.drafter == nullptr) fail(ErrorCode::kInvalidArgument, "a row budget needs a drafter: configure one");
  if (has_work()) fail(ErrorCode::kInvalidArgument, "the row budget is changed while no request runs or waits");
  BudgetConfig budget = config_.speculation.budget;
  budget.set_mode(mode);
  prepare_costs(budget);
  config_.speculation.budget = budget;
  runner_->budget().configure(budget);
}

CostProfile EngineCore::profile() {
  const Turn turn(stepping_);
  check_alive();
  if (parts_.drafter == nullptr) {
    fail(ErrorCode::kInvalidArgument, "costs are measured for the row budget, which needs a drafter: configure one");
  }
  if (has_work() || scheduler_->has_work()) {
    fail(ErrorCode::kInvalidArgument, "costs are measured while no request runs or waits");
  }
  return measure_costs();
}

StepReport EngineCore::step() {
  const Turn turn(stepping_);
  return run_step();
}

StepReport EngineCore::run_step() {
  check_alive();
  take_inbox();
  StepReport report;
  try {
    report = runner_->run();
  } catch (const Error& error) {
    poisoned_ = error.code() == ErrorCode::kDeviceFailure;
    publish_stats();  // cancelled sequences are gone all the same
    throw;
  }
  report.outputs.insert(report.outputs.begin(), std::make_move_iterator(undelivered_.begin()),
                        std::make_move_iterator(undelivered_.end()));
  undelivered_.clear();
  for (const Output& output : report.outputs) {
    if (!output.finished()) continue;
    const auto found = unfinished_samples_.find(output.request);
    if (--found->second == 0) {
      unfinished_samples_.erase(found);
      --num_unfinished_;
    }
  }
  publish_stats();
  const std::lock_guard lock(mutex_);
  num_at_rest_ = report.num_sequences == 0 && cancelled_.empty() ? scheduler_->num_held() : 0;
  return report;
}

std::vector<Output> EngineCore::generate(const std::vector<Request>& requests, const OutputCallback& callback) {
  const Turn turn(stepping_);
  if (std::any_of(requests.begin(), requests.end(), [](const Request& request) { return request.hold; })) {
    fail(ErrorCode::kInvalidArgument, "a request with hold has no end to wait for: submit() it");
  }
  std::unordered_map<RequestId, std::size_t> first_output;  // where a request's samples begin in `outputs`
  std::vector<Output> outputs;
  std::vector<RequestId> ids;
  const auto cancel_all = [&] {
    for (const RequestId id : ids) cancel(id);
  };
  try {
    for (const Request& request : requests) {
      ids.push_back(submit(request));
      first_output[ids.back()] = outputs.size();
      outputs.resize(outputs.size() + request.sampling.n);
    }
    while (has_work()) {
      for (Output& delta : run_step().outputs) {
        const auto found = first_output.find(delta.request);
        if (found == first_output.end()) continue;  // submitted by someone else before
        if (callback && !callback(delta)) cancel(delta.request);
        Output& whole = outputs[found->second + delta.sample];
        delta.text.insert(0, whole.text);
        delta.token_ids.insert(delta.token_ids.begin(), whole.token_ids.begin(), whole.token_ids.end());
        delta.logprobs.insert(delta.logprobs.begin(), std::make_move_iterator(whole.logprobs.begin()),
                              std::make_move_iterator(whole.logprobs.end()));
        delta.min_margin = std::min(delta.min_margin, whole.min_margin);
        whole = std::move(delta);
      }
    }
  } catch (...) {
    cancel_all();  // nothing of a failed call goes on running
    throw;
  }
  return outputs;
}

void EngineCore::publish_stats() {
  EngineStats stats = runner_->stats();
  stats.operation_seconds = operation_seconds_;
  stats.pages_total = kv_->num_pages();
  stats.pages_used = kv_->num_pages() - kv_->num_free_pages();
  stats.sequences_running = scheduler_->num_running();
  stats.sequences_waiting = scheduler_->num_waiting();
  const std::lock_guard lock(mutex_);
  published_ = std::move(stats);
}

EngineStats EngineCore::stats() const {
  const std::lock_guard lock(mutex_);
  if (!reset_requested_) return published_;
  EngineStats stats;  // what is counted begins anew, what is there now stays
  stats.graphs = published_.graphs;
  stats.graph_bytes = published_.graph_bytes;
  stats.pages_total = published_.pages_total;
  stats.pages_used = published_.pages_used;
  stats.sequences_running = published_.sequences_running;
  stats.sequences_waiting = published_.sequences_waiting;
  return stats;
}

void EngineCore::reset_stats() {
  const std::lock_guard lock(mutex_);
  reset_requested_ = true;
}

void EngineCore::start_trace() {
  const Turn turn(stepping_);
  check_alive();
  parts_.backend.device->start_trace();
}

StepTrace EngineCore::stop_trace(int max_steps) {
  const Turn turn(stepping_);
  check_alive();
  parts_.backend.device->synchronize();
  return summarize(parts_.backend.device->stop_trace(), max_steps);
}

void EngineCore::check_invariants() const {
  kv_->check_invariants();
  for (const auto& sequence : scheduler_->running_sequences()) {
    FS_CHECK(sequence->visible_len() <= sequence->shown_len() && sequence->exact_len() <= sequence->shown_len() &&
                 sequence->shown_len() <= sequence->len(),
             "lengths of sequence ", sequence->id());
    // A dense pass begins again where the K/V is as it should be.
    FS_CHECK(sequence->num_provisional() == 0 || kv_->dense_len(sequence->id()) == sequence->exact_len() - 1,
             "sequence ", sequence->id(), " has dense K/V of ", kv_->dense_len(sequence->id()), " tokens and ",
             sequence->exact_len(), " exact ones");
    FS_CHECK(kv_->kv_len(sequence->id()) < sequence->len(), "sequence ", sequence->id(), " caches ",
             kv_->kv_len(sequence->id()), " of ", sequence->len(), " tokens");
    FS_CHECK(sequence->len() <= config_.max_model_len, "sequence ", sequence->id(), " has ", sequence->len(),
             " tokens");
  }
  FS_CHECK(scheduler_->has_work() || kv_->num_free_pages() == kv_->num_pages(), "pages leaked: ", kv_->num_free_pages(),
           " of ", kv_->num_pages(), " are free");
}

}  // namespace fastspec
