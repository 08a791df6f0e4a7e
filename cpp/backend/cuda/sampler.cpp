// See sampler.h.
#include "backend/cuda/sampler.h"

#include <algorithm>
#include <cstring>
#include <span>

#include "backend/cuda/cuda_error.h"

namespace fastspec::cuda {
namespace {

constexpr std::size_t kAdjustedBytes = std::size_t{64} << 20;  // of changed rows of logits at a time
constexpr std::size_t kListBytes = std::size_t{64} << 20;

}  // namespace

Sampler::Sampler(std::shared_ptr<CudaContext> context) : context_(std::move(context)), pack_(context_) {}

SamplingBatch Sampler::prepare(const Matrix& logits, int list_length) {
  SamplingBatch batch{};
  batch.logits = logits;
  choose_chunks(static_cast<int>(arguments_.tasks.size()), context_->num_multiprocessors(), batch);
  batch.list_length = std::min(list_length, batch.chunk_size);
  batch.adjusted_stride = (std::int64_t{logits.cols} + 3) / 4 * 4;
  const std::size_t row_bytes = static_cast<std::size_t>(batch.adjusted_stride) * sizeof(float);
  const std::size_t adjusted = std::clamp<std::size_t>(kAdjustedBytes / row_bytes, 1, size(kMaxSliceTasks));
  arguments_.make_slices({.max_tasks = rows_of_lists(batch, batch.list_length, kListBytes),
                          .max_adjusted = static_cast<int>(adjusted),
                          .max_filtered = kMaxSliceFiltered});
  upload_arguments(batch);
  place_workspace(batch);
  int most_filtered = 0;
  for (const TaskSlice& slice : arguments_.slices) most_filtered = std::max(most_filtered, slice.num_filtered);
  filter_memory_.place(most_filtered, *context_, batch);
  return batch;
}

void Sampler::upload_arguments(SamplingBatch& batch) {
  pack_.clear();
  const auto tasks = pack_.add(arguments_.tasks);
  const auto rules = pack_.add(arguments_.rules.rules());
  const auto tokens = pack_.add(arguments_.path_tokens);
  const auto counts = pack_.add(arguments_.rules.counts());
  const auto bias = pack_.add(arguments_.rules.bias());
  const auto forbidden = pack_.add(arguments_.rules.forbidden());
  const auto adjusted_tasks = pack_.add(arguments_.adjusted_tasks);
  const auto filtered_tasks = pack_.add(arguments_.filtered_tasks);
  const auto trees = pack_.add(arguments_.trees);
  const auto node_tokens = pack_.add(arguments_.node_tokens);
  const auto node_parents = pack_.add(arguments_.node_parents);
  const auto top_nodes = pack_.add(arguments_.top_nodes);
  const auto top_node_trees = pack_.add(arguments_.top_node_trees);
  pack_.place();
  arguments_.rules.point_to(pack_.at(counts), pack_.at(bias), pack_.at(forbidden));
  pack_.replace(rules, arguments_.rules.rules());
  pack_.upload();
  batch.tasks = pack_.at(tasks);
  batch.rules = pack_.at(rules);
  batch.tokens = pack_.at(tokens);
  adjusted_tasks_ = pack_.at(adjusted_tasks);
  filtered_tasks_ = pack_.at(filtered_tasks);
  trees_ = pack_.at(trees);
  node_tokens_ = pack_.at(node_tokens);
  node_parents_ = pack_.at(node_parents);
  top_nodes_ = pack_.at(top_nodes);
  top_node_trees_ = pack_.at(top_node_trees);
}

void Sampler::place_workspace(SamplingBatch& batch) {
  TaskSlice most;
  for (const TaskSlice& slice : arguments_.slices) {
    most.num_tasks = std::max(most.num_tasks, slice.num_tasks);
    most.num_adjusted = std::max(most.num_adjusted, slice.num_adjusted);
    most.num_filtered = std::max(most.num_filtered, slice.num_filtered);
  }
  const std::size_t tasks = arguments_.tasks.size();
  const std::size_t chunks = size(batch.num_chunks);
  std::size_t list_keys = size(most.num_tasks) * chunks * size(batch.list_length);
  if (!arguments_.top_nodes.empty()) {
    const int length = std::min(arguments_.max_top_logprobs, batch.chunk_size);
    const std::size_t rows = std::min(arguments_.top_nodes.size(), size(rows_of_lists(batch, length, kListBytes)));
    list_keys = std::max(list_keys, rows * chunks * size(length));
  }
  Sections sections;
  const std::size_t statistics = sections.add<RowStatistics>(tasks * chunks);
  const std::size_t adjusted_rows = size(most.num_adjusted) * static_cast<std::size_t>(batch.adjusted_stride);
  const std::size_t adjusted = sections.add<float>(adjusted_rows);
  const std::size_t adjusted_statistics = sections.add<RowStatistics>(size(most.num_adjusted) * chunks);
  const std::size_t gathered = sections.add<std::uint64_t>(size(most.num_filtered) * kMaxGathered);
  const std::size_t lists = sections.add<std::uint64_t>(list_keys);
  const std::size_t draws = sections.add<Draw>(tasks);
  const std::size_t depths = sections.add<int>(tasks);
  if (sections.bytes() > workspace_.bytes()) {
    workspace_ = Buffer();  // both at once may not fit
    workspace_ = context_->allocate(sections.bytes() + sections.bytes() / 2, "workspace of sampling");
  }
  batch.statistics = at<RowStatistics>(workspace_, statistics);
  batch.adjusted = at<float>(workspace_, adjusted);
  batch.adjusted_statistics = at<RowStatistics>(workspace_, adjusted_statistics);
  batch.gathered = at<std::uint64_t>(workspace_, gathered);
  batch.lists = at<std::uint64_t>(workspace_, lists);
  batch.draws = at<Draw>(workspace_, draws);
  depths_ = at<int>(workspace_, depths);
}

void Sampler::run_slice(SamplingBatch& batch, const TaskSlice& slice) const {
  batch.first_task = slice.first_task;
  batch.num_tasks = slice.num_tasks;
  batch.adjusted_tasks = adjusted_tasks_ + slice.first_adjusted;
  batch.num_adjusted = slice.num_adjusted;
  batch.filtered_tasks = filtered_tasks_ + slice.first_filtered;
  batch.num_filtered = slice.num_filtered;
  const cudaStream_t stream = context_->stream();
  launch_statistics(batch, stream);
  launch_filters(batch, stream);
  // Greedy draws need no scores.
  const std::span<const RowTask> tasks(arguments_.tasks.data() + slice.first_task, size(slice.num_tasks));
  const bool scores = std::any_of(tasks.begin(), tasks.end(), [&](const RowTask& task) {
    return arguments_.rules.rules()[size(task.rule)].temperature != 0;
  });
  if (scores) launch_scores(batch, stream);
  check_launch("sampling");
}

WalkParams Sampler::make_walk(const SamplingBatch& batch) {
  const std::size_t nodes = arguments_.tasks.size();
  Sections sections;
  const std::size_t results = sections.add<TreeResult>(arguments_.trees.size());
  const std::size_t paths = sections.add<std::int32_t>(nodes);
  const std::size_t sampled = sections.add<SampledToken>(nodes);
  const std::size_t top = sections.add<TopLogprob>(static_cast<std::size_t>(arguments_.num_top_logprobs));
  if (sections.bytes() > results_.bytes()) {
    results_ = context_->allocate_pinned(2 * sections.bytes(), "results of sampling");
  }
  WalkParams walk{};
  walk.trees = trees_;
  walk.num_trees = static_cast<int>(arguments_.trees.size());
  walk.max_tree_nodes = arguments_.max_tree_nodes;
  walk.tokens = node_tokens_;
  walk.parents = node_parents_;
  walk.draws = batch.draws;
  walk.depths = depths_;
  walk.results = at<TreeResult>(results_, results);
  walk.paths = at<std::int32_t>(results_, paths);
  walk.sampled = at<SampledToken>(results_, sampled);
  walk.top_logprobs = at<TopLogprob>(results_, top);
  return walk;
}

void Sampler::accept(const AcceptParams& params) {
  context_->activate();
  if (pending_) context_->synchronize();  // its arguments are in the memory that is about to be used again
  pending_.reset();
  arguments_.clear();
  arguments_.add_trees(params);
  if (arguments_.tasks.empty()) return;
  SamplingBatch batch = prepare(params.logits, 2);
  const WalkParams walk = make_walk(batch);
  for (const TaskSlice& slice : arguments_.slices) {
    run_slice(batch, slice);
    launch_draws(batch, context_->stream());
    check_launch("draws");
  }
  launch_walk(walk, context_->stream());
  check_launch("acceptance walk");
  if (!arguments_.top_nodes.empty()) find_top_logprobs(batch, walk);
  pending_ = Pending{params.results, walk, context_->signal(true)};
}

void Sampler::await_accept() {
  if (!pending_) return;
  context_->wait(pending_->signal);
  copy_results(pending_->results, pending_->walk);
  pending_.reset();
}

void Sampler::find_top_logprobs(SamplingBatch batch, const WalkParams& walk) const {
  batch.list_length = std::min(arguments_.max_top_logprobs, batch.chunk_size);
  const int most = rows_of_lists(batch, batch.list_length, kListBytes);
  const int total = static_cast<int>(arguments_.top_nodes.size());
  for (int first = 0; first < total; first += most) {
    const TopLogprobParams params{top_nodes_ + first, top_node_trees_ + first, std::min(most, total - first)};
    launch_top_logprobs(batch, walk, params, context_->stream());
    check_launch("top logprobs");
  }
}

void Sampler::copy_results(AcceptResult* results, const WalkParams& walk) const {
  for (int i = 0; i < walk.num_trees; ++i) {
    const DeviceTree& tree = arguments_.trees[size(i)];
    AcceptResult& result = results[i];
    result.failed = walk.results[i].failed;
    result.num_accepted = walk.results[i].num_accepted;
    if (result.failed) continue;
    std::copy_n(walk.paths + tree.first_node, result.num_accepted, result.path);
    std::copy_n(walk.sampled + tree.first_node, result.num_accepted + 1, result.sampled);
    if (tree.num_top_logprobs == 0) continue;
    std::copy_n(walk.top_logprobs + tree.first_top, std::int64_t{result.num_accepted + 1} * tree.num_top_logprobs,
                result.top_logprobs);
  }
}

}  // namespace fastspec::cuda
