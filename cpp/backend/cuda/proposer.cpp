// See proposer.h.
#include "backend/cuda/proposer.h"

#include <algorithm>
#include <cstring>

#include "backend/cuda/cuda_error.h"
#include "backend/cuda/sampling_arguments.h"
#include "base/check.h"

namespace fastspec::cuda {
namespace {

constexpr int kMostRules = 4096;
constexpr std::size_t kListBytes = std::size_t{8} << 20;

bool adjusts(const DeviceRule& rule) {
  return rule.penalises || rule.num_bias > 0 || (rule.num_forbidden > 0 && rule.num_forbidding > 0);
}

}  // namespace

Proposer::Proposer(std::shared_ptr<CudaContext> context) : context_(std::move(context)), pack_(context_) {
  constexpr std::size_t kBytes = kMostRules * sizeof(DeviceRule);
  pinned_rules_ = context_->allocate_pinned(kBytes, "rules of proposals");
  device_rules_ = context_->allocate(kBytes, "rules of proposals");
  std::memset(pinned_rules_.data(), 0, kBytes);
  check_cuda(cudaMemsetAsync(device_rules_.data(), 0, kBytes, context_->stream()), "cudaMemsetAsync of ", kBytes,
             " bytes");
}

int Proposer::set_rules(const ProposalRules& rules) {
  context_->activate();
  if (rules.num_rules > kMostRules) {
    fail(ErrorCode::kUnsupported, "propose: ", rules.num_rules, " sequences draft together; at most ", kMostRules,
         " on the GPU");
  }
  if (!is_awaited_) context_->synchronize();  // a draft was given up: the device may still read pinned memory
  rules_.clear();
  for (int i = 0; i < rules.num_rules; ++i) rules_.add(rules.rules[i], rules.num_columns);
  upload_rules();
  const std::vector<DeviceRule>& packed = rules_.rules();
  adjusts_ = std::any_of(packed.begin(), packed.end(), adjusts);
  filters_ = std::any_of(packed.begin(), packed.end(), [](const DeviceRule& rule) { return rule.filters; });
  return (adjusts_ ? 1 : 0) + (filters_ ? 2 : 0);
}

void Proposer::upload_rules() {
  is_awaited_ = false;
  pack_.clear();
  const auto counts = pack_.add(rules_.counts());
  const auto bias = pack_.add(rules_.bias());
  const auto forbidden = pack_.add(rules_.forbidden());
  pack_.upload();
  rules_.point_to(pack_.at(counts), pack_.at(bias), pack_.at(forbidden));
  const int count = static_cast<int>(rules_.rules().size());
  auto* pinned = pinned_rules_.as<DeviceRule>();
  std::copy(rules_.rules().begin(), rules_.rules().end(), pinned);
  std::fill(pinned + count, pinned + std::max(count, num_uploaded_), DeviceRule{});
  context_->copy_staged({.destination = device_rules_.data(),
                         .source = pinned,
                         .bytes = size(std::max(count, num_uploaded_)) * sizeof(DeviceRule)},
                        false);
  num_uploaded_ = count;
}

int Proposer::slice_rows(const ProposeParams& params) const {
  SamplingBatch batch{};
  batch.logits = params.logits;
  choose_chunks(params.logits.rows, context_->num_multiprocessors(), batch);
  const int rows =
      std::min(params.logits.rows, rows_of_lists(batch, std::min(params.top_k, batch.chunk_size), kListBytes));
  return filters_ ? std::min(rows, kMaxSliceFiltered) : rows;
}

SamplingBatch Proposer::make_batch(const ProposeParams& params, int slice_rows) {
  SamplingBatch batch{};
  batch.logits = params.logits;
  choose_chunks(params.logits.rows, context_->num_multiprocessors(), batch);
  batch.rules = device_rules_.as<const DeviceRule>();
  batch.tokens = params.paths;
  batch.positions = params.positions;
  batch.rows_per_rule = params.rows_per_rule;
  batch.path_length = params.path_length;
  batch.token_ids = params.token_ids;
  batch.list_length = std::min(params.top_k, batch.chunk_size);
  const std::size_t chunks = size(batch.num_chunks);
  Sections sections;
  const std::size_t statistics = sections.add<RowStatistics>(size(params.logits.rows) * chunks);
  const std::size_t lists = sections.add<std::uint64_t>(size(slice_rows) * chunks * size(batch.list_length));
  const std::size_t sums = sections.add<ChunkSum>(size(slice_rows) * chunks);
  const std::size_t gathered = sections.add<std::uint64_t>(filters_ ? size(slice_rows) * kMaxGathered : 0);
  if (workspaces_.empty() || sections.bytes() > workspaces_.back().bytes()) {
    workspaces_.push_back(context_->allocate(sections.bytes() + sections.bytes() / 2, "workspace of proposals"));
  }
  const Buffer& workspace = workspaces_.back();
  batch.statistics = at<RowStatistics>(workspace, statistics);
  batch.lists = at<std::uint64_t>(workspace, lists);
  batch.chunk_sums = at<ChunkSum>(workspace, sums);
  batch.gathered = at<std::uint64_t>(workspace, gathered);
  if (filters_) filter_memory_.place(slice_rows, *context_, batch);
  return batch;
}

void Proposer::run_slice(const SamplingBatch& batch) const {
  const cudaStream_t stream = context_->stream();
  if (adjusts_) launch_adjustments(batch, stream);
  launch_statistics(batch, stream);
  launch_filters(batch, stream);
  launch_scores(batch, stream);
}

void Proposer::propose(const ProposeParams& params) {
  context_->activate();
  check_logits(params.logits, "propose");
  FS_CHECK(params.top_k > 0 && params.rows_per_rule > 0 && params.path_length >= 0 && params.path_length <= kMaxPath,
           "propose: top_k ", params.top_k, ", ", params.rows_per_rule, " rows a rule, paths of ", params.path_length,
           " tokens (at most ", kMaxPath, ")");
  const int rows = params.logits.rows;
  FS_CHECK(rows <= std::int64_t{kMostRules} * params.rows_per_rule, "propose: ", rows, " rows");
  if (rows == 0) return;
  const int together = slice_rows(params);
  SamplingBatch batch = make_batch(params, together);
  for (int first = 0; first < rows; first += together) {
    batch.first_task = first;
    batch.num_tasks = std::min(together, rows - first);
    batch.num_filtered = filters_ ? batch.num_tasks : 0;
    run_slice(batch);
    launch_proposals(batch, params.top_k, params.tokens, params.confidences, context_->stream());
    check_launch("proposals");
  }
}

void Proposer::grow_beam(const GrowBeamParams& params) {
  context_->activate();
  FS_CHECK(params.num_parents > 0 && params.num_parents <= kMaxBeamWidth && params.width > 0 &&
               params.width <= kMaxBeamWidth && params.top_k > 0 && params.depth >= 0,
           "grow_beam: ", params.num_parents, " parents, ", params.width, " children, top_k ", params.top_k, ", depth ",
           params.depth);
  launch_grow_beam(params, context_->stream());
  check_launch("grow_beam");
}

void Proposer::await_proposals() {
  context_->wait(context_->signal(false));
  is_awaited_ = true;
}

}  // namespace fastspec::cuda
