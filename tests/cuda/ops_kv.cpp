// Cases of RoPE with K/V writes, attention over the pool, and slot copies.
#include <algorithm>
#include <bit>
#include <numeric>

#include "cuda/ops_cases.h"

namespace fastspec::gpu_check {

namespace {

struct PoolShape {
  int layers, pages, page_size, kv_heads, head_dim;
};

/// A K/V pool on both sides, [layer][page][kv_head][K,V][slot][head_dim], with the same contents.
class PairedPool {
 public:
  PairedPool(Sides& sides, const PoolShape& shape, Random& random) : sides_(sides), shape_(shape) {
    host_ = rounded(normal(layer_elements() * shape.layers, 1, random), sides.dtype);
    device_ = sides.put(host_, sides.dtype);
  }

  std::vector<KvView> host() { return views(host_.data(), DType::kFloat32); }
  std::vector<KvView> device() { return views(device_.data(), sides_.dtype); }
  std::vector<float> seen() { return sides_.get(device_, host_.size(), sides_.dtype); }
  const std::vector<float>& expected() const { return host_; }
  int num_slots() const { return shape_.pages * shape_.page_size; }

 private:
  std::size_t layer_elements() const {
    return std::size_t{2} * shape_.pages * shape_.page_size * shape_.kv_heads * shape_.head_dim;
  }
  std::vector<KvView> views(void* base, DType dtype) const {
    std::vector<KvView> result;
    for (int layer = 0; layer < shape_.layers; ++layer) {
      KvView view;
      view.base = static_cast<std::byte*>(base) + layer_elements() * layer * size_of(dtype);
      view.dtype = dtype;
      view.page_shift = std::countr_zero(static_cast<unsigned>(shape_.page_size));
      view.num_kv_heads = shape_.kv_heads;
      view.head_dim = shape_.head_dim;
      view.slot_stride = shape_.head_dim;
      view.value_offset = std::int64_t{shape_.page_size} * shape_.head_dim;
      view.head_stride = 2 * view.value_offset;
      view.page_stride = shape_.kv_heads * view.head_stride;
      result.push_back(view);
    }
    return result;
  }

  Sides& sides_;
  PoolShape shape_;
  std::vector<float> host_;
  Buffer device_;
};

std::vector<Slot> shuffled_slots(int count, Random& random) {
  std::vector<Slot> slots(count);
  std::iota(slots.begin(), slots.end(), 0);
  std::shuffle(slots.begin(), slots.end(), random);
  return slots;
}

enum class RopeParts { kAll, kQuery, kKeyValue };

void keep_columns(Matrix& matrix, int first, int count) {
  matrix.data = static_cast<std::byte*>(matrix.data) + std::size_t(first) * size_of(matrix.dtype);
  matrix.cols = count;
}

Outcome rope_store(Sides& sides, const PoolShape& shape, int rows, int heads, bool norms, RopeParts parts,
                   Random& random) {
  PairedPool pool(sides, shape, random);
  const int head_dim = shape.head_dim;
  PairedMatrix qkv(sides, rows, (heads + 2 * shape.kv_heads) * head_dim, 0, 1, random, sides.dtype);
  PairedMatrix query(sides, rows, heads * head_dim, 0, sides.dtype);
  const std::vector<float> q_norm = normal(head_dim, 1, random), k_norm = normal(head_dim, 1, random);
  std::vector<float> frequencies;
  for (int i = 0; i < head_dim / 2; ++i) frequencies.push_back(std::pow(1e4f, -2.0f * i / head_dim));
  std::vector<std::int32_t> positions;
  for (int row = 0; row < rows; ++row) positions.push_back(pick(random, 0, pick(random, 0, 1) == 0 ? 50 : 130000));
  std::vector<Slot> slots = shuffled_slots(pool.num_slots(), random);
  slots.resize(rows);
  const Buffer device_q = sides.put(q_norm), device_k = sides.put(k_norm), device_frequencies = sides.put(frequencies);
  const Buffer device_positions = sides.put(positions), device_slots = sides.put(slots);

  RopeStoreParams params;
  params.num_heads = heads;
  params.norm_eps = 1e-6f;
  params.attention_factor = 1.25f;
  RopeStoreParams on_device = params;
  params.qkv = qkv.host();
  params.query = query.host();
  params.positions = positions.data();
  params.slots = slots.data();
  params.inverse_frequencies = frequencies.data();
  params.kv = pool.host()[0];
  on_device.qkv = qkv.device();
  on_device.query = query.device();
  on_device.positions = device_positions.as<std::int32_t>();
  on_device.slots = device_slots.as<Slot>();
  on_device.inverse_frequencies = device_frequencies.as<float>();
  on_device.kv = pool.device()[0];
  if (norms) {
    params.q_norm = {q_norm.data(), head_dim};
    params.k_norm = {k_norm.data(), head_dim};
    on_device.q_norm = {device_q.as<float>(), head_dim};
    on_device.k_norm = {device_k.as<float>(), head_dim};
  }
  if (parts == RopeParts::kQuery) {
    keep_columns(params.qkv, 0, heads * head_dim);
    keep_columns(on_device.qkv, 0, heads * head_dim);
    params.slots = on_device.slots = nullptr;
  } else if (parts == RopeParts::kKeyValue) {
    keep_columns(params.qkv, heads * head_dim, 2 * shape.kv_heads * head_dim);
    keep_columns(on_device.qkv, heads * head_dim, 2 * shape.kv_heads * head_dim);
    params.num_heads = on_device.num_heads = 0;
  }
  sides.gpu.ops->rope_store(on_device);
  sides.cpu.ops->rope_store(params);
  Outcome outcome;
  // Angles reach 1.3e5 radians, where float32 itself is 8e-3 apart: both sides round the same product.
  if (parts != RopeParts::kKeyValue) {
    compare(query.seen(sides), query.expected(), 2 * tolerance(sides.dtype), "query", outcome);
  }
  compare(pool.seen(), pool.expected(), 2 * tolerance(sides.dtype), "pool", outcome);
  return outcome;
}

Outcome copy_slots(Sides& sides, const PoolShape& shape, int num_moves, Random& random) {
  PairedPool pool(sides, shape, random);
  const std::vector<Slot> slots = shuffled_slots(pool.num_slots(), random);
  std::vector<SlotMove> moves;
  for (int i = 0; i < num_moves; ++i) moves.push_back({slots[2 * i], slots[2 * i + 1]});
  const std::vector<KvView> device_views = pool.device(), host_views = pool.host();
  sides.gpu.ops->copy_slots({device_views.data(), shape.layers, moves.data(), num_moves});
  sides.cpu.ops->copy_slots({host_views.data(), shape.layers, moves.data(), num_moves});
  Outcome outcome;
  compare(pool.seen(), rounded(pool.expected(), sides.dtype), 0, "pool", outcome);
  return outcome;
}

/// Ragged sequences over one pool: host arrays of an AttentionParams.
struct AttentionArrays {
  std::vector<std::int32_t> row_offsets{0}, positions;
  std::vector<KvList> lists;
  std::vector<Slot> entries, slots;
  std::vector<NewMask> masks;
  std::vector<std::uint64_t> mask_bits;
};

AttentionArrays make_arrays(const PoolShape& shape, int num_sequences, Random& random) {
  AttentionArrays arrays;
  std::vector<Slot> pages = shuffled_slots(shape.pages, random);
  std::size_t next_page = 0;
  for (int s = 0; s < num_sequences; ++s) {
    const int rows = pick(random, 1, 9), cached = pick(random, 0, 2) == 0 ? 0 : pick(random, 1, 90);
    const bool slots = pick(random, 0, 2) == 0;
    const int page_count = (cached + rows + shape.page_size - 1) / shape.page_size;
    const auto slot_at = [&](int index) {
      return pages[next_page + index / shape.page_size] * shape.page_size + index % shape.page_size;
    };
    arrays.lists.push_back({static_cast<std::int64_t>(arrays.entries.size()), cached, !slots});
    for (int i = 0; slots && i < cached; ++i) arrays.entries.push_back(slot_at(i));
    for (int i = 0; !slots && i * shape.page_size < cached; ++i) arrays.entries.push_back(pages[next_page + i]);
    const auto mask = static_cast<NewMask>(pick(random, 0, 3));
    arrays.masks.push_back(mask);
    for (int row = 0; row < rows; ++row) {
      arrays.positions.push_back(cached + row);
      arrays.slots.push_back(slot_at(cached + row));
      arrays.mask_bits.push_back((random() & ((std::uint64_t{1} << row) - 1)) | std::uint64_t{1} << row);
      arrays.mask_bits.resize(arrays.mask_bits.size() + kMaskWords - 1, 0);
    }
    arrays.row_offsets.push_back(static_cast<std::int32_t>(arrays.positions.size()));
    next_page += page_count;
  }
  return arrays;
}

Outcome attention(Sides& sides, const PoolShape& shape, int group, int window, int sinks, Random& random) {
  PairedPool pool(sides, shape, random);
  AttentionArrays arrays = make_arrays(shape, pick(random, 1, 5), random);
  const int rows = static_cast<int>(arrays.positions.size()), heads = group * shape.kv_heads;
  PairedMatrix query(sides, rows, heads * shape.head_dim, 0, 1, random, sides.dtype);
  PairedMatrix output(sides, rows, heads * shape.head_dim, 0, sides.dtype);
  std::vector<float> lse(std::size_t(rows) * heads);
  const Buffer device_lse = sides.poisoned(lse.size(), DType::kFloat32);
  AttentionParams params;
  params.num_heads = heads;
  params.scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
  params.num_sequences = static_cast<int>(arrays.lists.size());
  params.window = window;
  params.sinks = sinks;
  AttentionParams on_device = params;
  params.query = query.host();
  params.output = output.host();
  params.row_offsets = arrays.row_offsets.data();
  params.lists = arrays.lists.data();
  params.entries = arrays.entries.data();
  params.masks = arrays.masks.data();
  params.mask_bits = arrays.mask_bits.data();
  params.positions = arrays.positions.data();
  params.slots = arrays.slots.data();
  params.kv = pool.host()[0];
  params.lse = lse.data();
  const Buffer offsets = sides.put(arrays.row_offsets), lists = sides.put(arrays.lists),
               entries = sides.put(arrays.entries), masks = sides.put(arrays.masks), bits = sides.put(arrays.mask_bits),
               positions = sides.put(arrays.positions), slots = sides.put(arrays.slots);
  on_device.query = query.device();
  on_device.output = output.device();
  on_device.row_offsets = offsets.as<std::int32_t>();
  on_device.lists = lists.as<KvList>();
  on_device.entries = entries.as<Slot>();
  on_device.masks = masks.as<NewMask>();
  on_device.mask_bits = bits.as<std::uint64_t>();
  on_device.positions = positions.as<std::int32_t>();
  on_device.slots = slots.as<Slot>();
  on_device.kv = pool.device()[0];
  on_device.lse = device_lse.as<float>();
  Outcome outcome;
  sides.cpu.ops->attention(params);
  for (int run = 0; run < 2 && outcome.failure.empty(); ++run) {  // the second finds counters as the first left them
    sides.gpu.ops->attention(on_device);
    compare(output.seen(sides), output.expected(), 2 * tolerance(sides.dtype), "output", outcome);
    compare(sides.get(device_lse, lse.size(), DType::kFloat32), lse, 1e-2, "lse", outcome);
  }
  return outcome;
}

}  // namespace

void check_kv_operations(Sides& sides, Report& report) {
  Random random(202);
  const char* dtype = to_string(sides.dtype);
  for (const int head_dim : {8, 64, 96, 128, 256}) {
    for (const int page_size : report.small() ? std::vector{4} : std::vector{1, 4, 16, 64}) {
      const PoolShape shape{1, 256 / page_size, page_size, pick(random, 1, 4), head_dim};
      const int rows = pick(random, 1, report.small() ? 12 : 200), heads = shape.kv_heads * pick(random, 1, 7);
      const bool norms = pick(random, 0, 1) == 0;
      report.run(text("rope_store ", dtype, " rows ", rows, " heads ", heads, "/", shape.kv_heads, " x ", head_dim,
                      " page ", page_size, norms ? " norms" : ""),
                 [&] { return rope_store(sides, shape, rows, heads, norms, RopeParts::kAll, random); });
      report.run(text("rope_store of queries alone ", dtype, " rows ", rows, " x ", head_dim),
                 [&] { return rope_store(sides, shape, rows, heads, norms, RopeParts::kQuery, random); });
      report.run(text("rope_store of keys and values alone ", dtype, " rows ", rows, " x ", head_dim),
                 [&] { return rope_store(sides, shape, rows, heads, norms, RopeParts::kKeyValue, random); });
      const PoolShape layers{pick(random, 1, report.small() ? 3 : 30), 128 / page_size, page_size, shape.kv_heads,
                             head_dim};
      const int moves = pick(random, 1, 60);
      report.run(
          text("copy_slots ", dtype, " layers ", layers.layers, " moves ", moves, " x ", head_dim, " page ", page_size),
          [&] { return copy_slots(sides, layers, moves, random); });
      const PoolShape cached{1, 512 / page_size + 16, page_size, shape.kv_heads, head_dim};
      const int group = pick(random, 1, 7), window = pick(random, 0, 1) * pick(random, 1, 40),
                sinks = window > 0 ? pick(random, 0, 4) : 0;
      report.run(text("attention ", dtype, " group ", group, " x ", head_dim, " page ", page_size, " window ", window,
                      " sinks ", sinks),
                 [&] { return attention(sides, cached, group, window, sinks, random); });
    }
  }
}

}  // namespace fastspec::gpu_check
