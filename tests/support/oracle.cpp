// See oracle.h.
#include "support/oracle.h"

#include <cmath>
#include <cstring>
#include <limits>

namespace fastspec::oracle {
namespace {

double half_value(std::uint16_t bits, int exponent_bits, int mantissa_bits) {
  const int sign = bits >> 15;
  const int exponent = (bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  const int bias = (1 << (exponent_bits - 1)) - 1;
  double value = 0;
  if (exponent == (1 << exponent_bits) - 1) {
    value = mantissa == 0 ? std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN();
  } else if (exponent == 0) {
    value = std::ldexp(mantissa, 1 - bias - mantissa_bits);
  } else {
    value = std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
  }
  return sign != 0 ? -value : value;
}

/// Values of all 65,536 patterns of a type.
const std::vector<double>& all_values(int exponent_bits) {
  const auto build = [](int exponent, int mantissa) {
    std::vector<double> values;
    for (int bits = 0; bits < 65536; ++bits) {
      values.push_back(half_value(static_cast<std::uint16_t>(bits), exponent, mantissa));
    }
    return values;
  };
  static const std::vector<double> brain = build(8, 7), half = build(5, 10);
  return exponent_bits == 8 ? brain : half;
}

/// Nearest 16-bit pattern, ties to even, by search among all finite patterns of the sign.
std::uint16_t nearest_half(double value, int exponent_bits, int mantissa_bits) {
  const std::vector<double>& values = all_values(exponent_bits);
  const double magnitude = std::fabs(value);
  int low = 0;
  int high = (((1 << exponent_bits) - 1) << mantissa_bits) - 1;  // largest finite pattern
  while (low < high) {  // the first pattern whose value is not below the magnitude
    const int middle = (low + high) / 2;
    if (values[static_cast<std::size_t>(middle)] < magnitude) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  int best = low;
  if (low > 0) {
    const double above = values[static_cast<std::size_t>(low)] - magnitude;
    const double below = magnitude - values[static_cast<std::size_t>(low - 1)];
    if (below < above || (below == above && low % 2 == 1)) best = low - 1;
  }
  return static_cast<std::uint16_t>(best | (std::signbit(value) ? 0x8000 : 0));
}

double activation(const Matrix& matrix, int row, std::int64_t column) {
  return static_cast<const float*>(matrix.data)[row * matrix.stride + column];
}

/// Norm (where given) and rotation of one head.
void rotate(const Matrix& qkv, int row, int first, const Vector& norm, const RopeStoreParams& params, double* output) {
  const int head_dim = params.kv.head_dim;
  std::vector<double> values;
  double squares = 0;
  for (int d = 0; d < head_dim; ++d) {
    values.push_back(activation(qkv, row, first + d));
    squares += values.back() * values.back();
  }
  if (norm.data != nullptr) {
    const double rms = std::sqrt(squares / head_dim + params.norm_eps);
    for (int d = 0; d < head_dim; ++d) values[static_cast<std::size_t>(d)] *= norm.data[d] / rms;
  }
  for (int d = 0; d < head_dim; ++d) {
    const int pair = d % (head_dim / 2);
    // The angle is a float32 product, as in the models' own code; at large positions its rounding is part of the
    // result.
    const double angle = static_cast<float>(params.positions[row]) * params.inverse_frequencies[pair];
    const double cosine = std::cos(angle) * params.attention_factor;
    const double sine = std::sin(angle) * params.attention_factor;
    const double partner = values[static_cast<std::size_t>((d + head_dim / 2) % head_dim)];
    output[d] = values[static_cast<std::size_t>(d)] * cosine + (d < head_dim / 2 ? -partner : partner) * sine;
  }
}

struct VisibleKey {
  Slot slot;
  double score = 0;
};

std::vector<VisibleKey> visible_keys(const AttentionParams& params, int sequence, int row) {
  std::vector<VisibleKey> keys;
  const auto near = [&](int key_position) {
    return params.window == 0 || key_position > params.positions[row] - params.window || key_position < params.sinks;
  };
  const KvList& list = params.lists[sequence];
  const int page_size = 1 << params.kv.page_shift;
  for (int key = 0; key < list.length; ++key) {
    if (!list.pages) {
      keys.push_back({params.entries[list.offset + key]});
    } else if (near(key)) {
      keys.push_back({params.entries[list.offset + key / page_size] * page_size + key % page_size});
    }
  }
  const int first = params.row_offsets[sequence];
  for (int other = first; other < params.row_offsets[sequence + 1]; ++other) {
    bool seen = false;
    switch (params.masks[sequence]) {
      case NewMask::kCausal:
        seen = other <= row;
        break;
      case NewMask::kAncestor:
        seen = (params.mask_bits[row * kMaskWords + (other - first) / 64] >> ((other - first) % 64) & 1) != 0;
        break;
      case NewMask::kFull:
        seen = true;
        break;
      case NewMask::kNone:
        break;
    }
    if (seen && near(params.positions[other])) keys.push_back({params.slots[other]});
  }
  return keys;
}

}  // namespace

double read_element(const void* data, DType dtype, std::int64_t index) {
  if (dtype == DType::kFloat32) return static_cast<const float*>(data)[index];
  std::uint16_t bits;
  std::memcpy(&bits, static_cast<const char*>(data) + 2 * index, 2);
  return all_values(dtype == DType::kBFloat16 ? 8 : 5)[bits];
}

void write_element(void* data, DType dtype, std::int64_t index, double value) {
  if (dtype == DType::kFloat32) {
    static_cast<float*>(data)[index] = static_cast<float>(value);
    return;
  }
  std::uint16_t bits = 0x7fff;  // NaN in both
  if (!std::isnan(value)) bits = dtype == DType::kBFloat16 ? nearest_half(value, 8, 7) : nearest_half(value, 5, 10);
  std::memcpy(static_cast<char*>(data) + 2 * index, &bits, 2);
}

std::int64_t kv_index(const KvView& kv, Slot slot, int kv_head, int which, int d) {
  const Slot page_size = Slot{1} << kv.page_shift;
  return slot / page_size * kv.page_stride + kv_head * kv.head_stride + which * kv.value_offset +
         slot % page_size * kv.slot_stride + d;
}

std::vector<double> embed(const EmbeddingParams& params) {
  std::vector<double> result;
  for (int row = 0; row < params.output.rows; ++row) {
    for (int i = 0; i < params.table.in_features; ++i) {
      const std::int64_t at = std::int64_t{params.tokens[row]} * params.table.in_features + i;
      result.push_back(read_element(params.table.data, params.table.dtype, at));
    }
  }
  return result;
}

std::vector<double> rms_norm(const RmsNormParams& params) {
  std::vector<double> result;
  for (int row = 0; row < params.output.rows; ++row) {
    const int source = params.row_index != nullptr ? params.row_index[row] : row;
    double squares = 0;
    for (int i = 0; i < params.input.cols; ++i) {
      squares += activation(params.input, source, i) * activation(params.input, source, i);
    }
    const double rms = std::sqrt(squares / params.input.cols + params.eps);
    for (int i = 0; i < params.input.cols; ++i) {
      result.push_back(activation(params.input, source, i) / rms * params.weight.data[i]);
    }
  }
  return result;
}

std::vector<double> linear(const LinearParams& params) {
  std::vector<double> result;
  const int size = params.weight.in_features;
  for (int row = 0; row < params.input.rows; ++row) {
    for (int feature = 0; feature < params.weight.out_features; ++feature) {
      double sum = params.bias.data != nullptr ? params.bias.data[feature] : 0.0;
      if (params.accumulate) sum += activation(params.output, row, feature);
      for (int i = 0; i < size; ++i) {
        sum += activation(params.input, row, i) *
               read_element(params.weight.data, params.weight.dtype, std::int64_t{feature} * size + i);
      }
      result.push_back(sum);
    }
  }
  return result;
}

std::vector<double> silu_mul(const SiluMulParams& params) {
  std::vector<double> result;
  for (int row = 0; row < params.output.rows; ++row) {
    for (int i = 0; i < params.output.cols; ++i) {
      const double gate = activation(params.gate_up, row, i);
      result.push_back(gate / (1 + std::exp(-gate)) * activation(params.gate_up, row, params.output.cols + i));
    }
  }
  return result;
}

RopeResult rope_store(const RopeStoreParams& params) {
  const int head_dim = params.kv.head_dim;
  const int kv_heads = params.kv.num_kv_heads;
  const auto rows = static_cast<std::size_t>(params.qkv.rows);
  RopeResult result;
  result.query.resize(rows * static_cast<std::size_t>(params.num_heads * head_dim));
  result.key.resize(rows * static_cast<std::size_t>(kv_heads * head_dim));
  for (int row = 0; row < params.qkv.rows; ++row) {
    for (int head = 0; head < params.num_heads; ++head) {
      rotate(params.qkv, row, head * head_dim, params.q_norm, params,
             result.query.data() + (row * params.num_heads + head) * head_dim);
    }
    for (int head = 0; head < kv_heads; ++head) {
      rotate(params.qkv, row, (params.num_heads + head) * head_dim, params.k_norm, params,
             result.key.data() + (row * kv_heads + head) * head_dim);
      for (int d = 0; d < head_dim; ++d) {
        result.value.push_back(activation(params.qkv, row, (params.num_heads + kv_heads + head) * head_dim + d));
      }
    }
  }
  return result;
}

AttentionResult attention(const AttentionParams& params) {
  const KvView& kv = params.kv;
  const int group = params.num_heads / kv.num_kv_heads;
  AttentionResult result;
  for (int sequence = 0; sequence < params.num_sequences; ++sequence) {
    for (int row = params.row_offsets[sequence]; row < params.row_offsets[sequence + 1]; ++row) {
      std::vector<VisibleKey> keys = visible_keys(params, sequence, row);
      for (int head = 0; head < params.num_heads; ++head) {
        double top = -std::numeric_limits<double>::infinity();
        for (VisibleKey& key : keys) {
          key.score = 0;
          for (int d = 0; d < kv.head_dim; ++d) {
            key.score += activation(params.query, row, head * kv.head_dim + d) *
                         read_element(kv.base, kv.dtype, kv_index(kv, key.slot, head / group, 0, d));
          }
          key.score *= params.scale;
          top = std::fmax(top, key.score);
        }
        double sum = 0;
        std::vector<double> output(static_cast<std::size_t>(kv.head_dim), 0.0);
        for (const VisibleKey& key : keys) {
          const double weight = std::exp(key.score - top);
          sum += weight;
          for (int d = 0; d < kv.head_dim; ++d) {
            output[static_cast<std::size_t>(d)] +=
                weight * read_element(kv.base, kv.dtype, kv_index(kv, key.slot, head / group, 1, d));
          }
        }
        for (double value : output) result.output.push_back(keys.empty() ? 0.0 : value / sum);
        result.lse.push_back(keys.empty() ? -std::numeric_limits<double>::infinity() : top + std::log(sum));
      }
    }
  }
  return result;
}

}  // namespace fastspec::oracle
