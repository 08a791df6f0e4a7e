// Continuous batching with chunked prompts, shared prompts and preemption by recomputation.
#include "engine/scheduler.h"

#include <algorithm>
#include <functional>

#include "base/check.h"

namespace fastspec {

namespace {

bool is_held(const std::unique_ptr<Sequence>& sequence) {
  return sequence->request().hold;
}

}  // namespace

StepPlan Scheduler::plan() {
  StepPlan plan;
  planned_pages_ = 0;
  std::stable_partition(running_.begin(), running_.end(), std::not_fn(is_held));
  const Rows rows = divide_rows();
  int prompt_rows = rows.prompt;
  plan_running(prompt_rows, plan);
  admit(prompt_rows, plan);
  plan.max_drafted_rows = rows.drafted + prompt_rows;  // what prompts left over
  plan_drafts(plan);
  return plan;
}

Scheduler::Rows Scheduler::divide_rows() const {
  int claimed = 0;
  int wanted = 0;
  bool prompts = !waiting_.empty();
  for (const auto& sequence : running_) {
    const int known = num_known(*sequence);
    if (known == 1) {
      claimed += 1 + num_reread(*sequence);
      wanted += wanted_drafts(*sequence);
    } else if (known > 1) {
      prompts = true;
    }
  }
  const int left = limits_.max_batch_rows - claimed;
  const int drafted = prompts ? std::min(wanted, left / 2) : left;
  return {.prompt = left - drafted, .drafted = drafted};
}

int Scheduler::wanted_drafts(const Sequence& sequence) const {
  // A drafted token after the last allowed one would be verified for nothing; the bonus token takes its place.
  if (sequence.num_remaining() <= 1 || !sequence.drafting.drafts) return 0;
  return std::min(limits_.max_tree_nodes, sequence.request().max_drafted);
}

int Scheduler::first_position(const Sequence& sequence) const {
  const int kv_len = kv_.kv_len(sequence.id());
  if (sequence.len() - kv_len > 1) return kv_len;
  return sequence.sparse.refreshes || num_reread(sequence) > 0 ? kv_.dense_len(sequence.id()) : kv_len;
}

int Scheduler::num_reread(const Sequence& sequence) const {
  return sequence.sparse.next == KvMode::kDense ? sequence.num_provisional() : 0;
}

void Scheduler::plan_rows(const Sequence& sequence, int num_rows, StepPlan& plan) {
  SequencePlan& planned = plan.sequences.emplace_back();
  planned.seq = sequence.id();
  planned.first_position = first_position(sequence);
  planned.num_known_rows = num_rows;
  planned.num_provisional = num_reread(sequence);
  planned.refreshes = sequence.sparse.refreshes;
  const int end = planned.first_position + num_rows + planned.num_provisional;
  planned_pages_ += kv_.missing_pages(sequence.id(), end);
  planned.samples = end == sequence.len();
  planned.is_decoding = planned.samples && num_rows == 1 && sequence.num_generated() > 0;
  if (!planned.is_decoding || sequence.sparse.next == KvMode::kDense) return;
  planned.kv_mode = KvMode::kSparse;
  planned.num_slots = std::min(limits_.kv_budget, planned.first_position);
}

void Scheduler::plan_running(int& prompt_rows, StepPlan& plan) {
  for (std::size_t index = 0; index < running_.size(); ++index) {
    const Sequence& sequence = *running_[index];
    const int first = first_position(sequence);
    const int reread = num_reread(sequence);
    const int known = num_known(sequence);
    int num_rows = known == 1 ? 1 : std::min(known, prompt_rows);
    if (num_rows == 0) continue;
    if (!make_room(index, first + num_rows + reread, plan)) {
      const int room = (static_cast<int>(kv_.pages(sequence.id()).size()) + free_pages()) * kv_.page_size() - first;
      num_rows = std::min(num_rows, room - reread);
      FS_CHECK(num_rows > 0 || index > 0, "the oldest sequence cannot grow past ", first, " tokens");
      if (num_rows <= 0) {
        // A prompt waits with what it has; a decoding sequence makes room for the older ones.
        if (known == 1) preempt_last(plan);
        continue;
      }
    }
    if (known > 1) prompt_rows -= num_rows;
    plan_rows(sequence, num_rows, plan);
  }
}

bool Scheduler::make_room(std::size_t index, int num_tokens, StepPlan& plan) {
  const SeqId seq = running_[index]->id();
  while (kv_.missing_pages(seq, num_tokens) > free_pages()) {
    if (index + 1 == running_.size()) return false;
    preempt_last(plan);
  }
  return true;
}

void Scheduler::preempt_last(StepPlan& plan) {
  std::unique_ptr<Sequence> victim = std::move(running_.back());
  running_.pop_back();
  kv_.forget(victim->id());
  victim->truncate(victim->shown_len());  // what is computed again is computed as it stands
  victim->sparse.refreshes = false;
  ++victim->stats.preemptions;
  plan.preempted.push_back(victim->id());
  waiting_.insert(is_held(victim) ? waiting_.end() : waiting_.begin(), std::move(victim));
}

bool Scheduler::preempt_held(StepPlan& plan) {
  if (running_.empty() || !is_held(running_.front()) || !is_held(running_.back())) return false;
  if (num_known(*running_.back()) > 0) return false;
  preempt_last(plan);
  return true;
}

const Sequence* Scheduler::prompt_holder(const Sequence& sequence, bool& blocked) const {
  const Sequence* holder = nullptr;
  blocked = false;
  for (const auto& other : running_) {
    const RequestState& request = other->request();
    const bool is_same = request.id == sequence.request().id;
    if (!is_same && !(request.hold && request.prompt == sequence.request().prompt)) continue;
    if (kv_.kv_len(other->id()) < sequence.prompt_len() - 1) {
      blocked = true;
    } else {
      holder = other.get();
    }
  }
  return holder;
}

void Scheduler::admit(int& prompt_rows, StepPlan& plan) {
  if (!plan.preempted.empty()) return;  // pages just ran out
  // What running prompts still lack is spoken for; a prompt let in on it would be preempted or would preempt.
  int promised = 0;
  for (const auto& other : running_) promised += kv_.missing_pages(other->id(), other->wanted_len());
  std::size_t next = 0;
  bool has_admitted = false;
  while (next < waiting_.size() && prompt_rows > 0) {
    const Sequence& sequence = *waiting_[next];
    bool blocked = false;
    const Sequence* holder = prompt_holder(sequence, blocked);
    if (holder == nullptr && blocked) {
      ++next;  // the prompt is being computed: its pages will be there in a few steps
      continue;
    }
    // The last prompt token is computed again: its logits give the sample's first token.
    const int shared = holder == nullptr ? 0 : (sequence.prompt_len() - 1) / kv_.page_size();
    const bool fits = num_running() < limits_.max_num_seqs &&
                      kv_.pages_for(sequence.wanted_len()) - shared <= kv_.num_free_pages() - promised;
    if (sequence.request().hold) {
      const bool gave_way = sequence.stats.preemptions > 0;
      if (!fits || (gave_way && !std::all_of(waiting_.begin(), waiting_.end(), is_held))) {
        ++next;  // and holds up nobody meanwhile
        continue;
      }
    } else if (!fits) {
      // First come, first served; and who is let in now is not sent away now.
      if (has_admitted || !preempt_held(plan)) return;
      continue;  // what it would have started on may be gone
    }
    has_admitted = true;
    if (shared > 0) {
      const int length = kv_.add_shared(holder->id(), sequence.id(), shared * kv_.page_size());
      plan.shared.push_back({.from = holder->id(), .to = sequence.id(), .length = length});
    } else {
      kv_.add(sequence.id());
    }
    const int num_rows = std::min(num_known(sequence), prompt_rows);
    prompt_rows -= num_rows;
    if (num_rows > 0) plan_rows(sequence, num_rows, plan);
    promised += kv_.missing_pages(sequence.id(), sequence.wanted_len());
    running_.push_back(std::move(waiting_[next]));
    waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(next));
  }
}

void Scheduler::admit_as_computed() {
  while (!waiting_.empty()) {
    const Sequence& sequence = *waiting_.front();
    const int length = sequence.len() - 1;
    if (num_running() >= limits_.max_num_seqs || kv_.pages_for(length) > kv_.num_free_pages()) {
      fail(ErrorCode::kOutOfMemory, "a context of ", length, " tokens: ", num_running(), " of ", limits_.max_num_seqs,
           " sequences run, ", kv_.num_free_pages(), " pages of ", kv_.page_size(), " tokens are free");
    }
    kv_.add(sequence.id());
    StepPlan plan;
    plan.sequences.push_back({.seq = sequence.id(), .first_position = 0, .num_known_rows = length});
    KvReservation reservation = kv_.reserve(plan);
    kv_.commit(reservation, {&length, 1});
    running_.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
  }
}

void Scheduler::plan_drafts(StepPlan& plan) {
  if (plan.max_drafted_rows <= 0) return;
  for (SequencePlan& planned : plan.sequences) {
    if (!planned.is_decoding) continue;
    const Sequence& sequence = running(planned.seq);
    const int nodes = std::min(wanted_drafts(sequence), plan.max_drafted_rows);
    // Drafts take only pages that nobody else needs.
    const int cached = planned.first_position + planned.num_known_rows + planned.num_provisional;
    const int own = std::max(static_cast<int>(kv_.pages(planned.seq).size()), kv_.pages_for(cached));
    const int room = (own + free_pages()) * kv_.page_size() - cached;
    int depth = std::min({limits_.max_tree_depth, nodes, sequence.num_remaining() - 1, room});
    if (planned.kv_mode == KvMode::kSparse && sequence.request().guarantee == Guarantee::kExact) {
      depth = std::min(depth, limits_.max_provisional - sequence.num_provisional() - 1);
    }
    if (depth <= 0) continue;
    planned.max_drafted = nodes;
    planned.max_depth = depth;
    planned_pages_ += kv_.pages_for(cached + depth) - own;
  }
}

int Scheduler::num_held() const {
  return static_cast<int>(std::count_if(running_.begin(), running_.end(), is_held) +
                          std::count_if(waiting_.begin(), waiting_.end(), is_held));
}

Sequence& Scheduler::running(SeqId seq) {
  const auto found = std::find_if(running_.begin(), running_.end(), [&](const auto& s) { return s->id() == seq; });
  FS_CHECK(found != running_.end(), "sequence ", seq, " is not running");
  return **found;
}

void Scheduler::find_planned(const StepPlan& plan, std::vector<Sequence*>& sequences) const {
  sequences.clear();
  auto next = running_.begin();  // a plan follows the order of admission
  for (const SequencePlan& planned : plan.sequences) {
    while (next != running_.end() && (*next)->id() != planned.seq) ++next;
    FS_CHECK(next != running_.end(), "sequence ", planned.seq, " is not running");
    sequences.push_back(next->get());
  }
}

std::vector<SeqId> Scheduler::sequences_of(RequestId request) const {
  std::vector<SeqId> result;
  for (const auto& sequence : running_) {
    if (sequence->request().id == request) result.push_back(sequence->id());
  }
  for (const auto& sequence : waiting_) {
    if (sequence->request().id == request) result.push_back(sequence->id());
  }
  return result;
}

std::unique_ptr<Sequence> Scheduler::remove(SeqId seq) {
  const auto is_it = [&](const auto& sequence) { return sequence->id() == seq; };
  kv_.forget(seq);
  if (const auto found = std::find_if(running_.begin(), running_.end(), is_it); found != running_.end()) {
    std::unique_ptr<Sequence> sequence = std::move(*found);
    running_.erase(found);
    return sequence;
  }
  if (const auto found = std::find_if(waiting_.begin(), waiting_.end(), is_it); found != waiting_.end()) {
    std::unique_ptr<Sequence> sequence = std::move(*found);
    waiting_.erase(found);
    return sequence;
  }
  return nullptr;
}

}  // namespace fastspec
