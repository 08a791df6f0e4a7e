// See attention_timing.h. Distinct layers of K/V follow one another in one captured graph, so that no layer finds its
// keys in L2; the time of a layer is the median replay over the number of layers, launch gaps included.
#include <cuda_bf16.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

#include "attention/attention.h"
#include "cuda/attention_timing.h"
#include "cuda/device_memory.h"

namespace fastspec::gpu_check {
namespace {

constexpr double kBytesPerSecond = 4.2e12;  // what one H200 reads at most in practice
constexpr int kHeadDim = 128;
constexpr int kPageShift = 4;
constexpr int kPageSize = 1 << kPageShift;
constexpr int kReplays = 9;

struct TimingCase {
  const char* name;
  int batch;
  int context;
  int rows;
  NewMask mask;
  int num_heads = 28;
  int num_kv_heads = 4;
  bool pages = true;
  bool ragged = false;     // the same number of keys in all, 8 to 1 between longest and shortest
  double goal_us = 0;      // must show; 0 = none
  double expected_us = 0;  // by count of bytes and operations, first version
};

// Expected: bytes at 4.2 TB/s plus about 6 us of start, drain and merge, or the matrix unit's time where that is longer
// (16 x 8 x 16 instructions at 350 TFLOP/s, warpgroup instructions at 550 TFLOP/s, padding rows included).
const TimingCase kCases[] = {
    {"16 x 32K, 1 row", 16, 32768, 1, NewMask::kCausal, 28, 4, true, false, 275, 262},
    {"16 x 32K, 8 rows", 16, 32768, 8, NewMask::kAncestor, 28, 4, true, false, 282, 268},
    {"16 x 32K, 16 rows", 16, 32768, 16, NewMask::kAncestor, 28, 4, true, false, 325, 290},
    {"16 x 32K, 69 rows", 16, 32768, 69, NewMask::kAncestor, 28, 4, true, false, 2000, 1050},
    {"16 x 32K ragged, 1 row", 16, 32768, 1, NewMask::kCausal, 28, 4, true, true, 0, 265},
    {"16 x 32K ragged, 16 rows", 16, 32768, 16, NewMask::kAncestor, 28, 4, true, true, 0, 293},
    {"32/8 heads, 16 x 32K, 1 row", 16, 32768, 1, NewMask::kCausal, 32, 8, true, false, 0, 520},
    {"32/8 heads, 16 x 32K, 8 rows", 16, 32768, 8, NewMask::kAncestor, 32, 8, true, false, 0, 525},
    {"16 x 8K, 1 row", 16, 8192, 1, NewMask::kCausal, 28, 4, true, false, 0, 71},
    {"64 x 2K, 1 row", 64, 2048, 1, NewMask::kCausal, 28, 4, true, false, 0, 73},
    {"64 x 2K, 8 rows", 64, 2048, 8, NewMask::kAncestor, 28, 4, true, false, 0, 76},
    {"1 x 32K, 1 row", 1, 32768, 1, NewMask::kCausal, 28, 4, true, false, 0, 26},
    {"1 x 32K, 8 rows", 1, 32768, 8, NewMask::kAncestor, 28, 4, true, false, 0, 32},
    {"1 x 1K, 1 row", 1, 1024, 1, NewMask::kCausal, 28, 4, true, false, 0, 9},
    {"16 x 512 slots, 8 rows", 16, 512, 8, NewMask::kAncestor, 28, 4, false, false, 0, 13},
};

__global__ void fill_normal_kernel(__nv_bfloat16* data, std::size_t size, std::uint64_t seed) {
  const std::size_t step = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  for (std::size_t i = blockIdx.x * static_cast<std::size_t>(blockDim.x) + threadIdx.x; i < size; i += step) {
    std::uint64_t bits = (i + seed) * 0x9e3779b97f4a7c15ull;
    bits = (bits ^ (bits >> 31)) * 0xbf58476d1ce4e5b9ull;
    bits ^= bits >> 29;
    // The sum of four uniform numbers, scaled to variance 1.
    float sum = 0;
    for (int part = 0; part < 4; ++part) sum += static_cast<float>((bits >> (16 * part)) & 0xffff) * 0x1p-16f - 0.5f;
    data[i] = __float2bfloat16(sum * 1.7320508f);
  }
}

void fill_normal(const DeviceArray<__nv_bfloat16>& array, std::uint64_t seed) {
  fill_normal_kernel<<<2048, 256>>>(array.data(), array.size(), seed);
  check(cudaGetLastError(), "fill_normal_kernel");
}

struct HostBatch {
  std::vector<std::int32_t> row_offsets{0}, positions;
  std::vector<KvList> lists;
  std::vector<NewMask> masks;
  std::vector<Slot> entries, slots;
  std::vector<std::uint64_t> mask_bits;
  Slot num_pages = 0;
  std::int64_t num_keys = 0;
};

std::vector<int> contexts_of(const TimingCase& shape, std::mt19937& random) {
  std::vector<int> contexts(static_cast<std::size_t>(shape.batch), shape.context);
  if (!shape.ragged) return contexts;
  for (int i = 0; i < shape.batch; ++i) {
    const double part = (i + 0.5) / shape.batch;  // from 2/9 to 16/9 of the mean
    contexts[static_cast<std::size_t>(i)] = static_cast<int>(shape.context * (2.0 + 14.0 * part) / 9.0);
  }
  std::shuffle(contexts.begin(), contexts.end(), random);
  return contexts;
}

HostBatch make_batch(const TimingCase& shape) {
  std::mt19937 random(5);
  HostBatch batch;
  const std::vector<int> contexts = contexts_of(shape, random);
  const int row_pages = (shape.rows + kPageSize - 1) / kPageSize;
  for (const int context : contexts) batch.num_pages += (context + kPageSize - 1) / kPageSize + row_pages;
  std::vector<Slot> pages(static_cast<std::size_t>(batch.num_pages));
  for (std::size_t i = 0; i < pages.size(); ++i) pages[i] = static_cast<Slot>(i);
  std::shuffle(pages.begin(), pages.end(), random);
  for (const int context : contexts) {
    batch.lists.push_back({static_cast<std::int64_t>(batch.entries.size()), context, shape.pages});
    batch.masks.push_back(shape.mask);
    batch.num_keys += context + shape.rows;
    Slot page = 0;
    for (int key = 0; key < context; ++key) {
      if (key % kPageSize == 0) {
        page = pages.back();
        pages.pop_back();
        if (shape.pages) batch.entries.push_back(page);
      }
      if (!shape.pages) batch.entries.push_back(page * kPageSize + key % kPageSize);
    }
    for (int row = 0; row < shape.rows; ++row) {
      if (row % kPageSize == 0) {
        page = pages.back();
        pages.pop_back();
      }
      batch.slots.push_back(page * kPageSize + row % kPageSize);
      batch.positions.push_back(context + row);
      // A binary tree: the ancestors of row r are r, (r - 1) / 2, ...
      std::uint64_t bits[kMaskWords] = {};
      for (int node = row;; node = (node - 1) / 2) {
        bits[node / 64] |= std::uint64_t{1} << (node % 64);
        if (node == 0) break;
      }
      batch.mask_bits.insert(batch.mask_bits.end(), bits, bits + kMaskWords);
    }
    batch.row_offsets.push_back(batch.row_offsets.back() + shape.rows);
  }
  return batch;
}

struct Result {
  std::vector<float> output, lse;
};

/// One case on the device.
class TimedCase {
 public:
  TimedCase(const TimingCase& shape, const cuda::DeviceLimits& limits)
      : shape_(shape),
        batch_(make_batch(shape)),
        layer_elements_(static_cast<std::size_t>(batch_.num_pages) * kPageSize * 2 * shape.num_kv_heads * kHeadDim),
        num_layers_(static_cast<int>(std::clamp<std::size_t>(600'000'000 / (layer_elements_ * 2) + 1, 2, 64))),
        pool_(layer_elements_ * static_cast<std::size_t>(num_layers_)),
        query_(static_cast<std::size_t>(shape.batch) * shape.rows * shape.num_heads * kHeadDim),
        output_(query_.size()),
        lse_(static_cast<std::size_t>(shape.batch) * shape.rows * shape.num_heads),
        row_offsets_(batch_.row_offsets),
        positions_(batch_.positions),
        lists_(batch_.lists),
        masks_(batch_.masks),
        entries_(batch_.entries),
        slots_(batch_.slots),
        mask_bits_(batch_.mask_bits),
        plan_memory_(cuda::attention_plan_bytes(limits.num_sms, shape.batch)),
        workspace_(cuda::attention_workspace_bytes(limits.num_sms, kHeadDim)) {
    fill_normal(pool_, 1);
    fill_normal(query_, 99991);
    workspace_.fill_bytes(0);
    const int rows = shape.batch * shape.rows;
    const int width = shape.num_heads * kHeadDim;
    params_.query = {query_.data(), DType::kBFloat16, rows, width, width};
    params_.output = {output_.data(), DType::kBFloat16, rows, width, width};
    params_.num_heads = shape.num_heads;
    params_.scale = 1.0f / std::sqrt(static_cast<float>(kHeadDim));
    params_.num_sequences = shape.batch;
    params_.row_offsets = row_offsets_.data();
    params_.lists = lists_.data();
    params_.entries = entries_.data();
    params_.masks = masks_.data();
    params_.mask_bits = mask_bits_.data();
    params_.positions = positions_.data();
    params_.slots = slots_.data();
    params_.lse = lse_.data();
    KvView& kv = params_.kv;
    kv.dtype = DType::kBFloat16;
    kv.page_shift = kPageShift;
    kv.num_kv_heads = shape.num_kv_heads;
    kv.head_dim = kHeadDim;
    kv.slot_stride = kHeadDim;
    kv.value_offset = kPageSize * kHeadDim;
    kv.head_stride = 2 * kv.value_offset;
    kv.page_stride = shape.num_kv_heads * kv.head_stride;
    plan_ = cuda::attention_plan_at(plan_memory_.data(), shape.batch);
  }

  double bytes() const { return 4.0 * kHeadDim * shape_.num_kv_heads * static_cast<double>(batch_.num_keys); }

  void plan(const cuda::AttentionConfig& config, cudaStream_t stream) {
    cuda::AttentionPlanParams plan_params;
    plan_params.num_sequences = params_.num_sequences;
    plan_params.num_heads = params_.num_heads;
    plan_params.num_kv_heads = params_.kv.num_kv_heads;
    plan_params.row_offsets = params_.row_offsets;
    plan_params.lists = params_.lists;
    plan_params.masks = params_.masks;
    plan_params.positions = params_.positions;
    plan_params.config = config;
    plan_params.plan = plan_;
    check(cuda::launch_attention_plan(plan_params, stream), "launch_attention_plan");
  }

  void attend(const cuda::AttentionConfig& config, int layer, cudaStream_t stream) {
    params_.kv.base = pool_.data() + layer_elements_ * static_cast<std::size_t>(layer);
    check(cuda::launch_attention(params_, config, plan_, workspace_.data(), stream), "launch_attention");
  }

  /// Outputs and LSE of layer 0.
  Result result(const cuda::AttentionConfig& config) {
    output_.fill_bytes(0xff);
    lse_.fill_bytes(0xff);
    plan(config, nullptr);
    attend(config, 0, nullptr);
    check(cudaDeviceSynchronize(), shape_.name);
    Result result;
    result.lse = lse_.read();
    for (const __nv_bfloat16 element : output_.read()) result.output.push_back(__bfloat162float(element));
    return result;
  }

  /// Median microseconds of one layer.
  double time(const cuda::AttentionConfig& config) {
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    cudaEvent_t start, stop;
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
    check(cudaEventCreate(&start), "cudaEventCreate");
    check(cudaEventCreate(&stop), "cudaEventCreate");
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "begin capture");
    plan(config, stream);
    for (int layer = 0; layer < num_layers_; ++layer) attend(config, layer, stream);
    check(cudaStreamEndCapture(stream, &graph), "end capture");
    check(cudaGraphInstantiate(&executable, graph, 0), "instantiate");
    std::vector<float> times;
    for (int replay = -3; replay < kReplays; ++replay) {
      check(cudaEventRecord(start, stream), "record");
      check(cudaGraphLaunch(executable, stream), "replay");
      check(cudaEventRecord(stop, stream), "record");
      check(cudaStreamSynchronize(stream), shape_.name);
      float milliseconds = 0;
      check(cudaEventElapsedTime(&milliseconds, start, stop), "elapsed");
      if (replay >= 0) times.push_back(milliseconds);
    }
    cudaGraphExecDestroy(executable);
    cudaGraphDestroy(graph);
    cudaEventDestroy(start);
    cudaEventDestroy(stop);
    cudaStreamDestroy(stream);
    std::nth_element(times.begin(), times.begin() + kReplays / 2, times.end());
    return 1000.0 * times[kReplays / 2] / num_layers_;
  }

 private:
  TimingCase shape_;
  HostBatch batch_;
  std::size_t layer_elements_;
  int num_layers_;
  DeviceArray<__nv_bfloat16> pool_, query_, output_;
  DeviceArray<float> lse_;
  DeviceArray<std::int32_t> row_offsets_, positions_;
  DeviceArray<KvList> lists_;
  DeviceArray<NewMask> masks_;
  DeviceArray<Slot> entries_, slots_;
  DeviceArray<std::uint64_t> mask_bits_;
  DeviceArray<unsigned char> plan_memory_, workspace_;
  AttentionParams params_;
  cuda::AttentionPlan plan_;
};

/// Relative error in the Euclidean norm; NaN stays NaN.
double relative_error(const std::vector<float>& got, const std::vector<float>& wanted) {
  double difference = 0;
  double norm = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    difference += (double{got[i]} - wanted[i]) * (double{got[i]} - wanted[i]);
    norm += double{wanted[i]} * wanted[i];
  }
  return std::sqrt(difference / norm);
}

bool time_case(const TimingCase& shape, const cuda::DeviceLimits& limits) {
  TimedCase timed(shape, limits);
  const int packed = shape.rows * shape.num_heads / shape.num_kv_heads;
  const Result wanted = timed.result({});
  bool all_ok = true;
  for (const bool hopper : {true, false}) {
    for (const int rows : {16, 32, 64, 128}) {
      // The choice itself, and its neighbours where they might be faster.
      const cuda::AttentionConfig config = cuda::choose_attention({DType::kBFloat16, kHeadDim, rows, hopper}, limits);
      if ((config.path == cuda::AttentionPath::kHopper) != hopper || config.tile_rows != rows) continue;
      if (rows < packed && rows != 128 && !(rows == 64 && packed > 128)) continue;
      if (rows > 4 * packed && rows > 64) continue;
      const Result got = timed.result(config);
      const double error = relative_error(got.output, wanted.output);
      const double lse_error = relative_error(got.lse, wanted.lse);
      // Both round outputs to bf16 and this one rounds weights too; LSE is float throughout.
      const bool ok = error < 6e-3 && lse_error < 1e-5;
      all_ok = all_ok && ok;
      const double us = timed.time(config);
      const double floor_us = timed.bytes() / kBytesPerSecond * 1e6;
      std::printf(
          "%-29s %-6s %3d rows: %8.1f us %5.2f TB/s, floor %7.1f us, ratio %4.2f, expected %6.0f us, goal %5.0f %s, "
          "error %.1e, lse %.1e%s\n",
          shape.name, hopper ? "hopper" : "mma", rows, us, timed.bytes() / us * 1e-6, floor_us, us / floor_us,
          shape.expected_us, shape.goal_us,
          shape.goal_us == 0    ? "-"
          : us <= shape.goal_us ? "MET"
                                : "missed",
          error, lse_error, ok ? "" : "  WRONG");
      std::fflush(stdout);
    }
  }
  return all_ok;
}

}  // namespace

bool time_attention(const cuda::DeviceLimits& limits, const std::string& only) {
  bool all_ok = true;
  for (const TimingCase& shape : kCases) {
    if (!only.empty() && std::string(shape.name).find(only) == std::string::npos) continue;
    try {
      all_ok = time_case(shape, limits) && all_ok;
    } catch (const std::exception& error) {
      std::printf("%-29s FAILED: %s\n", shape.name, error.what());
      all_ok = false;
    }
  }
  return all_ok;
}

}  // namespace fastspec::gpu_check
