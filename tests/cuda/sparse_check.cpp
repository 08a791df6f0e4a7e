// What sparse passes cost on a GPU, beside dense ones: scoring, selection and attention over slots, for the attention
// shape of a 7B model (28/4 heads x 128, bf16), 8 rows a sequence. Microseconds, medians of interleaved runs of
// recorded work over layers of distinct K/V; "x" is over the time that the bytes need at the read rate.
//   fastspec_cuda_sparse_check [--device cuda:0] [--rate TB/s] [--all 1] [--contexts 4096,32768] [--batches 1,16]
//                              [--budgets 512]
// --all 1: contexts 4K to 128K, batches 1 to 32, budgets 128 to 2048. Exit code 77 where there is no GPU.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <memory>
#include <numeric>
#include <sstream>
#include <string>
#include <vector>

#include "backend/cuda/cuda_error.h"
#include "backend/cuda/cuda_ops.h"
#include "backend/graph.h"
#include "cuda/ops_gpu.h"

namespace fastspec::gpu_check {
namespace {

constexpr int kHeads = 28, kKvHeads = 4, kHeadDim = 128, kLayers = 28, kRows = 8, kPageSize = 16, kRuns = 9;
constexpr int kWidth = kHeads * kHeadDim;
constexpr std::size_t kSlotBytes = std::size_t{2} * kKvHeads * kHeadDim * 2;  // K and V of a token, one layer
const std::vector<std::int32_t> kNamedHeads = {7, 9, 10, 13};                 // of one K/V head

struct Settings {
  std::string device = "cuda:0";
  double rate = 4.1;
  std::vector<int> contexts = {32768}, batches = {16}, budgets = {512};
};

/// Recorded work and its times.
struct Timed {
  std::string name;
  std::unique_ptr<Graph> graph;
  int repeats = 1;   // in the recording
  double bytes = 0;  // of one, that must be read
  std::vector<float> times = {};

  double microseconds() {
    std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2), times.end());
    return times[times.size() / 2] * 1e3 / repeats;
  }
};

/// K/V of layers, noise: of all of them or as many as there is memory for.
class Pool {
 public:
  /// @param most_slots of the largest point, one layer.
  Pool(Sides& sides, std::int64_t most_slots) {
    Random random(1);
    const std::vector<std::byte> noise = to_bytes(normal(std::size_t{1} << 22, 1, random), DType::kBFloat16);
    const std::size_t wanted = kSlotBytes * kLayers * static_cast<std::size_t>(most_slots);
    const std::size_t bytes = std::min(wanted, sides.gpu.device->available_bytes() / 10 * 8);
    buffer_ = sides.gpu.device->allocate(std::max(bytes, noise.size()), "K/V of the measurement");
    sides.gpu.device->copy_to_device(buffer_.data(), noise.data(), noise.size());
    sides.gpu.device->synchronize();  // the copies below are on another stream
    for (std::size_t filled = noise.size(); filled < buffer_.bytes();) {
      const std::size_t next = std::min(filled, buffer_.bytes() - filled);
      cuda::check_cuda(cudaMemcpy(buffer_.as<std::byte>() + filled, buffer_.data(), next, cudaMemcpyDeviceToDevice),
                       "cudaMemcpy of noise");
      filled += next;
    }
    cuda::check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }

  int num_layers(std::int64_t slots) const {
    return static_cast<int>(
        std::min<std::size_t>(kLayers, buffer_.bytes() / (kSlotBytes * static_cast<std::size_t>(slots))));
  }
  KvView layer(int index, std::int64_t slots) const {
    KvView view;
    view.base =
        buffer_.as<std::byte>() + kSlotBytes * static_cast<std::size_t>(slots) * static_cast<std::size_t>(index);
    view.dtype = DType::kBFloat16;
    view.page_shift = 4;
    view.num_kv_heads = kKvHeads;
    view.head_dim = kHeadDim;
    view.slot_stride = kHeadDim;
    view.value_offset = kPageSize * kHeadDim;
    view.head_stride = 2 * view.value_offset;
    view.page_stride = kKvHeads * view.head_stride;
    return view;
  }

 private:
  Buffer buffer_;
};

/// One batch of sequences of one length, with the arrays that all operations read.
class Point {
 public:
  Point(Sides& sides, const Pool& pool, int batch, int context)
      : sides_(sides),
        pool_(pool),
        batch_(batch),
        context_(context),
        slots_(std::int64_t{batch} * (context + kPageSize)) {
    num_layers_ = pool.num_layers(slots_);
    Random random(5);
    const int pages_each = context / kPageSize;
    std::vector<Slot> pages(static_cast<std::size_t>(batch * (pages_each + 1)));
    std::iota(pages.begin(), pages.end(), 0);
    std::shuffle(pages.begin(), pages.end(), random);
    std::vector<KvList> lists;
    std::vector<Slot> own_slots;
    std::vector<std::int32_t> positions, offsets = {0}, last = {};
    for (int s = 0; s < batch; ++s) {
      lists.push_back({std::int64_t{s} * pages_each, context, true});
      for (int row = 0; row < kRows; ++row) {
        own_slots.push_back(pages[static_cast<std::size_t>(batch * pages_each + s)] * kPageSize + row);
        positions.push_back(context + row);
      }
      offsets.push_back((s + 1) * kRows);
      last.push_back(s * kRows);
    }
    std::vector<std::int32_t> ones(static_cast<std::size_t>(batch) + 1);
    std::iota(ones.begin(), ones.end(), 0);
    lists_ = sides.put(lists);
    entries_ = sides.put(pages);
    own_slots_ = sides.put(own_slots);
    positions_ = sides.put(positions);
    offsets_ = sides.put(offsets);
    one_each_ = sides.put(ones);
    last_ = sides.put(last);
    masks_ = sides.put(std::vector<NewMask>(static_cast<std::size_t>(batch), NewMask::kCausal));
    query_ = sides.put(normal(static_cast<std::size_t>(batch * kRows * kWidth), 1, random), DType::kBFloat16);
    output_ = sides.poisoned(static_cast<std::size_t>(batch * kRows * kWidth), DType::kBFloat16);
    history_ = sides.poisoned(static_cast<std::size_t>(batch) * static_cast<std::size_t>(context), DType::kFloat32);
    lookahead_ = sides.poisoned(static_cast<std::size_t>(batch) * static_cast<std::size_t>(context), DType::kFloat32);
    mass_ = sides.gpu.device->allocate_host(static_cast<std::size_t>(batch) * 2 * sizeof(float), "masses");
  }

  int num_layers() const { return num_layers_; }

  Timed dense() {
    return timed("dense", kSlotBytes * double(batch_) * context_, [&, params = attention()](int layer) mutable {
      params.lists = lists_.as<KvList>();
      params.entries = entries_.as<Slot>();
      params.kv = pool_.layer(layer, slots_);
      sides_.gpu.ops->attention(params);
    });
  }
  /// @param rows 1: history; more: lookahead.
  Timed score(int rows) {
    ScoreKeysParams params;
    params.query = {query_.data(), DType::kBFloat16, batch_ * kRows, kWidth, kWidth};
    params.num_heads = kHeads;
    params.heads = kNamedHeads.data();
    params.num_scored_heads = static_cast<int>(kNamedHeads.size());
    params.scale = 0.0884f;
    params.num_sequences = batch_;
    params.row_offsets = (rows == 1 ? one_each_ : offsets_).as<std::int32_t>();
    params.rows = rows == 1 ? last_.as<std::int32_t>() : nullptr;
    params.max_rows_per_sequence = rows;
    params.lists = lists_.as<KvList>();
    params.entries = entries_.as<Slot>();
    params.max_keys = context_;
    params.scores = (rows == 1 ? history_ : lookahead_).as<float>();
    params.score_stride = context_;
    return timed(rows == 1 ? "history" : "lookahead", 2.0 * kHeadDim * batch_ * context_,
                 [&, params](int layer) mutable {
                   params.kv = pool_.layer(layer, slots_);
                   sides_.gpu.ops->score_keys(params);
                 });
  }
  Timed select(int budget) {
    SelectSlotsParams params;
    params.num_sequences = batch_;
    params.lists = lists_.as<KvList>();
    params.entries = entries_.as<Slot>();
    params.page_shift = 4;
    params.max_keys = context_;
    params.history = history_.as<float>();
    params.lookahead = lookahead_.as<float>();
    params.score_stride = context_;
    params.sinks = 4;
    params.recent = 16;
    params.lookahead_slots = budget / 2;
    params.budget = budget;
    chosen_.push_back(sides_.gpu.device->allocate(static_cast<std::size_t>(batch_ * budget) * sizeof(Slot), "slots"));
    params.slots = chosen_.back().as<Slot>();
    params.mass = mass_.as<float>();
    return timed("select", 2.0 * sizeof(float) * batch_ * context_,
                 [&, params](int) { sides_.gpu.ops->select_slots(params); });
  }
  /// Over the slots of the last select().
  Timed sparse(int budget) {
    std::vector<KvList> lists;
    for (int s = 0; s < batch_; ++s) lists.push_back({std::int64_t{s} * budget, budget, false});
    sparse_lists_.push_back(sides_.put(lists));
    return timed("sparse", kSlotBytes * double(batch_) * budget, [&, params = attention()](int layer) mutable {
      params.lists = sparse_lists_.back().as<KvList>();
      params.entries = chosen_.back().as<Slot>();
      params.kv = pool_.layer(layer, slots_);
      sides_.gpu.ops->attention(params);
    });
  }
  float history_mass() const { return *mass_.as<float>(); }

 private:
  AttentionParams attention() const {
    AttentionParams params;
    params.query = {query_.data(), DType::kBFloat16, batch_ * kRows, kWidth, kWidth};
    params.output = {output_.data(), DType::kBFloat16, batch_ * kRows, kWidth, kWidth};
    params.num_heads = kHeads;
    params.scale = 0.0884f;
    params.num_sequences = batch_;
    params.max_rows_per_sequence = kRows;
    params.row_offsets = offsets_.as<std::int32_t>();
    params.masks = masks_.as<NewMask>();
    params.positions = positions_.as<std::int32_t>();
    params.slots = own_slots_.as<Slot>();
    return params;
  }
  template <typename Work>
  Timed timed(const char* name, double bytes, Work work) {
    const auto all = [&] {
      for (int i = 0; i < kLayers; ++i) work(i % num_layers_);
    };
    all();
    sides_.gpu.device->synchronize();
    return {name, sides_.gpu.device->capture(all), kLayers, bytes};
  }

  Sides& sides_;
  const Pool& pool_;
  int batch_, context_;
  std::int64_t slots_;
  int num_layers_ = 0;
  Buffer lists_, entries_, own_slots_, positions_, offsets_, one_each_, last_, masks_, query_, output_, history_,
      lookahead_, mass_;
  std::vector<Buffer> chosen_, sparse_lists_;
};

void time_interleaved(cudaStream_t stream, std::vector<Timed>& works) {
  cudaEvent_t begin = nullptr, end = nullptr;
  cuda::check_cuda(cudaEventCreate(&begin), "cudaEventCreate");
  cuda::check_cuda(cudaEventCreate(&end), "cudaEventCreate");
  for (int run = -2; run < kRuns; ++run) {
    for (Timed& work : works) {
      FS_CHECK(work.graph != nullptr, work.name, " was not recorded");
      cuda::check_cuda(cudaEventRecord(begin, stream), "cudaEventRecord");
      work.graph->launch();
      cuda::check_cuda(cudaEventRecord(end, stream), "cudaEventRecord");
      cuda::check_cuda(cudaEventSynchronize(end), "cudaEventSynchronize");
      float milliseconds = 0;
      cuda::check_cuda(cudaEventElapsedTime(&milliseconds, begin, end), "cudaEventElapsedTime");
      if (run >= 0) work.times.push_back(milliseconds);
    }
  }
  (void)cudaEventDestroy(begin);
  (void)cudaEventDestroy(end);
}

void time_point(Sides& sides, const Pool& pool, int batch, int context, const Settings& settings) {
  Point point(sides, pool, batch, context);
  if (point.num_layers() < 4) {
    std::printf("%3d x %6d: no room for 4 layers of K/V\n", batch, context);
    return;
  }
  std::vector<Timed> works;
  works.push_back(point.dense());
  works.push_back(point.score(1));
  works.push_back(point.score(kRows));
  std::vector<int> budgets;
  for (const int budget : settings.budgets) {
    if (budget >= context) continue;
    budgets.push_back(budget);
    works.push_back(point.select(budget));
    works.push_back(point.sparse(budget));
  }
  time_interleaved(dynamic_cast<cuda::CudaOps&>(*sides.gpu.ops).context().stream(), works);
  const auto over = [&](Timed& work) { return work.microseconds() / (work.bytes / settings.rate * 1e-6); };
  const double dense = works[0].microseconds(), history = works[1].microseconds(), lookahead = works[2].microseconds();
  std::printf(
      "%3d x %6d, %2d layers of K/V: dense %8.2f us (%.2fx), history %7.2f us (%.2fx), lookahead %7.2f us (%.2fx)\n",
      batch, context, point.num_layers(), dense, over(works[0]), history, over(works[1]), lookahead, over(works[2]));
  for (std::size_t i = 0; i < budgets.size(); ++i) {
    Timed &select = works[3 + 2 * i], &sparse = works[4 + 2 * i];
    const double selection = history + lookahead + select.microseconds();
    std::printf(
        "      budget %4d: select %6.2f us, sparse %7.2f us (%.2fx); dense / sparse %6.2f, of %d layers with "
        "scoring and selection %6.2f\n",
        budgets[i], select.microseconds(), sparse.microseconds(), over(sparse), dense / sparse.microseconds(), kLayers,
        kLayers * dense / (kLayers * sparse.microseconds() + selection));
    if (batch == 16 && context == 32768 && budgets[i] == 512) {
      const auto verdict = [](bool holds) { return holds ? "met" : "MISSED"; };
      std::printf("      goals: history <= 1.3x %s, lookahead <= 1.3x %s, select <= 25 us %s, sparse <= 10.2 us %s\n",
                  verdict(over(works[1]) <= 1.3), verdict(over(works[2]) <= 1.3), verdict(select.microseconds() <= 25),
                  verdict(sparse.microseconds() <= 10.2));
    }
  }
  std::fflush(stdout);
}

void run(const Settings& settings) {
  Sides sides(settings.device, DType::kBFloat16);
  const int most_batch = *std::max_element(settings.batches.begin(), settings.batches.end());
  const int longest = *std::max_element(settings.contexts.begin(), settings.contexts.end());
  sides.gpu.ops->reserve({.max_rows = most_batch * kRows,
                          .max_sequences = most_batch,
                          .max_keys = longest,
                          .num_heads = kHeads,
                          .num_kv_heads = kKvHeads,
                          .head_dim = kHeadDim,
                          .hidden_size = kWidth,
                          .max_scored_rows = kRows * static_cast<int>(kNamedHeads.size())});
  const Pool pool(sides, std::int64_t{most_batch} * (longest + kPageSize));
  std::printf("%s, bf16, heads %d/%d x %d, %d rows a sequence, named heads: %zu of one K/V head; x of %.2f TB/s\n",
              sides.gpu.device->model_name().c_str(), kHeads, kKvHeads, kHeadDim, kRows, kNamedHeads.size(),
              settings.rate);
  for (const int context : settings.contexts) {
    for (const int batch : settings.batches) time_point(sides, pool, batch, context, settings);
  }
}

std::vector<int> numbers(const std::string& list) {
  std::vector<int> values;
  std::istringstream stream(list);
  for (std::string part; std::getline(stream, part, ',');) values.push_back(std::stoi(part));
  return values;
}

}  // namespace
}  // namespace fastspec::gpu_check

int main(int argc, char** argv) {
  using namespace fastspec;
  gpu_check::Settings settings;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string option = argv[i], value = argv[i + 1];
    if (option == "--device") settings.device = value;
    if (option == "--rate") settings.rate = std::stod(value);
    if (option == "--all" && value != "0") {
      settings.contexts = {4096, 8192, 16384, 32768, 65536, 131072};
      settings.batches = {1, 4, 16, 32};
      settings.budgets = {128, 256, 512, 1024, 2048};
    }
    if (option == "--contexts") settings.contexts = gpu_check::numbers(value);
    if (option == "--batches") settings.batches = gpu_check::numbers(value);
    if (option == "--budgets") settings.budgets = gpu_check::numbers(value);
  }
  try {
    gpu_check::run(settings);
  } catch (const Error& error) {
    std::printf("stopped: %s\n", error.what());
    return error.code() == ErrorCode::kUnsupported ? 77 : 1;
  } catch (const std::exception& error) {
    std::printf("stopped: %s\n", error.what());
    return 1;
  }
  return 0;
}
