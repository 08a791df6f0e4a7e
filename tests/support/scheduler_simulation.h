// A scheduler over a page cache, and the rest of a step played by random numbers: no device, no model. Checks what
// every plan must fulfil.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <vector>

#include "engine/scheduler.h"

namespace fastspec::test {

using Ids = std::vector<SeqId>;

/// A scheduler over a cache, and the rest of a step played by random numbers. Checks every plan.
class Simulation {
 public:
  Simulation(const SchedulerLimits& limits, int num_pages, int page_size, unsigned seed = 1)
      : limits_(limits),
        kv_(num_pages, (limits.max_num_seqs * limits.max_tree_nodes + page_size - 1) / page_size, page_size),
        scheduler_(limits, kv_),
        random_(seed) {}

  /// Queues the samples of a request; their ids.
  Ids submit(int prompt_len, int max_tokens, int n = 1, int max_drafted = 1000) {
    auto request = std::make_shared<RequestState>();
    request->id = next_request_++;
    for (int i = 0; i < prompt_len; ++i) request->prompt.push_back(i);
    request->max_tokens = request->sampling.max_tokens = max_tokens;
    request->max_drafted = max_drafted;
    Ids ids;
    for (int sample = 0; sample < n; ++sample) {
      ids.push_back(next_seq_++);
      scheduler_.add(std::make_unique<Sequence>(ids.back(), request, sample, nullptr));
    }
    return ids;
  }

  /// Queues a held prompt, which begins as all others do; its id.
  SeqId hold(int prompt_len) {
    auto request = std::make_shared<RequestState>();
    request->id = next_request_++;
    for (int i = 0; i < prompt_len; ++i) request->prompt.push_back(i);
    request->hold = true;
    held_.insert(next_seq_);
    scheduler_.add(std::make_unique<Sequence>(next_seq_, request, 0, nullptr));
    return next_seq_++;
  }

  /// Plans and commits a step in which `accept` drafted rows of every sequence are accepted (-1: random).
  StepPlan step(int accept = 0, bool fails = false) {
    Ids old_running = running();
    std::stable_partition(old_running.begin(), old_running.end(), [&](SeqId seq) { return !held_.contains(seq); });
    std::map<SeqId, bool> decoding;
    for (const auto& sequence : scheduler_.running_sequences()) {
      const bool is_root = sequence->len() - kv_.kv_len(sequence->id()) == 1;
      decoding[sequence->id()] = is_root && !held_.contains(sequence->id());
    }
    const StepPlan plan = scheduler_.plan();
    check_rows(plan);
    check_preemption(plan, old_running);
    for (const auto& sequence : scheduler_.running_sequences()) {
      EXPECT_TRUE(!decoding[sequence->id()] || find(plan, sequence->id()) != nullptr)
          << "decoding sequence " << sequence->id() << " got no row";
      EXPECT_LT(kv_.kv_len(sequence->id()), sequence->len());
    }
    {
      KvReservation reservation = kv_.reserve(plan);  // throws when the plan counts on pages that are not there
      if (!fails) commit(plan, reservation, accept);
    }
    kv_.check_invariants();
    return plan;
  }

  Ids running() const {
    Ids ids;
    for (const auto& sequence : scheduler_.running_sequences()) ids.push_back(sequence->id());
    return ids;
  }

  static const SequencePlan* find(const StepPlan& plan, SeqId seq) {
    const auto found = std::find_if(plan.sequences.begin(), plan.sequences.end(),
                                    [&](const SequencePlan& planned) { return planned.seq == seq; });
    return found == plan.sequences.end() ? nullptr : &*found;
  }

  int below(int limit) { return static_cast<int>(random_() % static_cast<unsigned>(limit)); }
  Scheduler& scheduler() { return scheduler_; }
  PagedKvCache& kv() { return kv_; }
  const Ids& finished() const { return finished_; }

 private:
  void check_rows(const StepPlan& plan) {
    int rows = 0;
    int drafted = 0;
    std::set<SeqId> seen;
    for (const SequencePlan& planned : plan.sequences) {
      const Sequence& sequence = scheduler_.running(planned.seq);
      EXPECT_TRUE(seen.insert(planned.seq).second);
      EXPECT_EQ(planned.first_position, kv_.kv_len(planned.seq));
      EXPECT_GE(planned.num_known_rows, 1);
      const int end = planned.first_position + planned.num_known_rows;
      EXPECT_LE(end, sequence.wanted_len());
      EXPECT_EQ(planned.samples, end == sequence.len());
      EXPECT_EQ(planned.is_decoding, planned.samples && planned.num_known_rows == 1 && sequence.num_generated() > 0);
      EXPECT_EQ(planned.max_drafted > 0, planned.max_depth > 0);
      if (planned.max_drafted > 0) {
        EXPECT_TRUE(planned.is_decoding);
        EXPECT_LE(planned.max_depth, std::min(limits_.max_tree_depth, sequence.num_remaining() - 1));
        EXPECT_LE(planned.max_drafted, std::min(limits_.max_tree_nodes, sequence.request().max_drafted));
      }
      rows += planned.num_known_rows;
      drafted += planned.max_drafted;
    }
    EXPECT_GE(plan.max_drafted_rows, 0);
    EXPECT_LE(rows + std::min(drafted, plan.max_drafted_rows), limits_.max_batch_rows);
    EXPECT_LE(scheduler_.num_running(), limits_.max_num_seqs);
  }

  void check_preemption(const StepPlan& plan, Ids old_running) {
    bool ran_out = false;
    for (const SeqId seq : plan.preempted) {
      ASSERT_TRUE(old_running.size() > 1 || held_.contains(seq)) << "the oldest sequence was preempted";
      ran_out = ran_out || !held_.contains(seq);
      EXPECT_EQ(seq, old_running.back()) << "not the youngest";
      old_running.pop_back();
      EXPECT_TRUE(!kv_.contains(seq) || held_.contains(seq));
    }
    const Ids now = running();
    ASSERT_GE(now.size(), old_running.size());
    EXPECT_TRUE(std::equal(old_running.begin(), old_running.end(), now.begin())) << "order of admission changed";
    EXPECT_TRUE(!ran_out || now.size() == old_running.size()) << "admitted while pages ran out";
  }

  void commit(const StepPlan& plan, KvReservation& reservation, int accept) {
    int rows_left = plan.max_drafted_rows;
    std::vector<int> kv_lens;
    std::vector<Acceptance> acceptances;
    for (const SequencePlan& planned : plan.sequences) {
      Acceptance& acceptance = acceptances.emplace_back();
      if (planned.samples) {
        const int most = std::min({planned.max_depth, planned.max_drafted, rows_left});
        const int accepted = accept < 0 ? below(most + 1) : std::min(accept, most);
        rows_left -= accepted;
        for (int i = 0; i < accepted; ++i) acceptance.path.push_back(i + 1);
        acceptance.tokens.resize(accepted + 1);
        for (CommittedToken& token : acceptance.tokens) token.token = below(50);
        scheduler_.running(planned.seq).find_end(acceptance);
      }
      kv_lens.push_back(planned.first_position + planned.num_known_rows + static_cast<int>(acceptance.path.size()));
    }
    kv_.commit(reservation, kv_lens);
    for (std::size_t i = 0; i < acceptances.size(); ++i) {
      const SeqId seq = plan.sequences[i].seq;
      Sequence& sequence = scheduler_.running(seq);
      sequence.commit(acceptances[i]);
      EXPECT_LT(kv_.kv_len(seq), sequence.len());
      if (acceptances[i].finish == FinishReason::kNone) continue;
      EXPECT_EQ(sequence.num_remaining(), 0);
      EXPECT_NE(scheduler_.remove(seq), nullptr);
      finished_.push_back(seq);
    }
  }

  SchedulerLimits limits_;
  PagedKvCache kv_;
  Scheduler scheduler_;
  std::mt19937 random_;
  RequestId next_request_ = 0;
  SeqId next_seq_ = 0;
  Ids finished_;
  std::set<SeqId> held_;
};

}  // namespace fastspec::test
