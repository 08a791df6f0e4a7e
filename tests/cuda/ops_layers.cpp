// Cases of embedding, norms, linear layers, SiLU and merge.
#include <limits>

#include "cuda/ops_cases.h"

namespace fastspec::gpu_check {

namespace {

std::string named(const char* operation, DType dtype, int rows, int cols, const std::string& more = "") {
  return text(operation, " ", to_string(dtype), " [", rows, ", ", cols, "]", more);
}

void finish(PairedMatrix& output, Sides& sides, double limit, Outcome& outcome) {
  compare(output.seen(sides), output.expected(), limit, "output", outcome);
  if (outcome.failure.empty() && !output.padding_untouched(sides)) outcome.failure = "wrote between rows";
}

Outcome embedding(Sides& sides, int rows, int width, int padding, Random& random) {
  const int vocab = pick(random, 1, 500);
  const std::vector<float> table = rounded(normal(std::size_t(vocab) * width, 1, random), sides.dtype);
  std::vector<TokenId> tokens;
  for (int row = 0; row < rows; ++row) tokens.push_back(pick(random, 0, vocab - 1));
  PairedMatrix output(sides, rows, width, padding, sides.dtype);
  const Buffer device_table = sides.put(table, sides.dtype);
  const Buffer device_tokens = sides.put(tokens);
  sides.gpu.ops->embed(
      {device_tokens.as<TokenId>(), {device_table.data(), sides.dtype, vocab, width}, output.device()});
  sides.cpu.ops->embed({tokens.data(), {table.data(), DType::kFloat32, vocab, width}, output.host()});
  Outcome outcome;
  finish(output, sides, 0, outcome);
  return outcome;
}

/// Columns of a wider matrix to columns of another, row by row.
Outcome copy_rows(Sides& sides, int rows, int width, int padding, bool gather, Random& random) {
  const int input_rows = gather ? pick(random, 1, 40) : rows;
  PairedMatrix input(sides, input_rows, width, padding, 2, random, sides.dtype);
  PairedMatrix output = gather ? PairedMatrix(sides, rows, width, padding, 2, random, sides.dtype)
                               : PairedMatrix(sides, rows, width, padding, sides.dtype);
  std::vector<std::int32_t> index;
  for (int row = 0; row < rows; ++row) index.push_back(pick(random, -1, input_rows - 1));  // -1: left as it was
  const Buffer device_index = sides.put(index);
  sides.gpu.ops->copy_rows({input.device(), gather ? device_index.as<std::int32_t>() : nullptr, output.device()});
  sides.cpu.ops->copy_rows({input.host(), gather ? index.data() : nullptr, output.host()});
  Outcome outcome;
  finish(output, sides, 0, outcome);
  return outcome;
}

Outcome rms_norm(Sides& sides, int rows, int width, int padding, bool gather, Random& random) {
  const int input_rows = gather ? pick(random, 1, 40) : rows;
  PairedMatrix input(sides, input_rows, width, padding, 2, random, sides.dtype);
  PairedMatrix output(sides, rows, width, padding, sides.dtype);
  const std::vector<float> weight = normal(width, 1, random);
  std::vector<std::int32_t> index;
  for (int row = 0; row < rows; ++row) index.push_back(pick(random, 0, input_rows - 1));
  const Buffer device_weight = sides.put(weight), device_index = sides.put(index);
  sides.gpu.ops->rms_norm({input.device(),
                           {device_weight.as<float>(), width},
                           1e-5f,
                           gather ? device_index.as<std::int32_t>() : nullptr,
                           output.device()});
  sides.cpu.ops->rms_norm(
      {input.host(), {weight.data(), width}, 1e-5f, gather ? index.data() : nullptr, output.host()});
  Outcome outcome;
  finish(output, sides, tolerance(sides.dtype), outcome);
  return outcome;
}

struct LinearCase {
  int rows, in, out, padding;
  bool bias, accumulate, float_output;
};

Outcome linear(Sides& sides, const LinearCase& shape, Random& random) {
  const DType output_dtype = shape.float_output ? DType::kFloat32 : sides.dtype;
  PairedMatrix input(sides, shape.rows, shape.in, shape.padding, 1, random, sides.dtype);
  const float scale = 1.0f / std::sqrt(static_cast<float>(shape.in));
  const std::vector<float> weight = rounded(normal(std::size_t(shape.out) * shape.in, scale, random), sides.dtype);
  const std::vector<float> bias = rounded(normal(shape.out, 1, random), sides.dtype);
  PairedMatrix output = shape.accumulate
                            ? PairedMatrix(sides, shape.rows, shape.out, shape.padding, 1, random, output_dtype)
                            : PairedMatrix(sides, shape.rows, shape.out, shape.padding, output_dtype);
  const Buffer device_weight = sides.put(weight, sides.dtype), device_bias = sides.put(bias);
  const Vector no_bias;
  sides.gpu.ops->linear({input.device(),
                         {device_weight.data(), sides.dtype, shape.out, shape.in},
                         shape.bias ? Vector{device_bias.as<float>(), shape.out} : no_bias,
                         shape.accumulate,
                         output.device()});
  sides.cpu.ops->linear({input.host(),
                         {weight.data(), DType::kFloat32, shape.out, shape.in},
                         shape.bias ? Vector{bias.data(), shape.out} : no_bias,
                         shape.accumulate,
                         output.host()});
  Outcome outcome;
  // TF32 would be off by about 3e-4.
  finish(output, sides, shape.float_output ? 4e-5 : 2 * tolerance(sides.dtype), outcome);
  return outcome;
}

Outcome silu_mul(Sides& sides, int rows, int width, int padding, Random& random) {
  PairedMatrix gate_up(sides, rows, 2 * width, 2 * padding, 4, random, sides.dtype);
  PairedMatrix output(sides, rows, width, padding, sides.dtype);
  sides.gpu.ops->silu_mul({gate_up.device(), output.device()});
  sides.cpu.ops->silu_mul({gate_up.host(), output.host()});
  Outcome outcome;
  finish(output, sides, tolerance(sides.dtype), outcome);
  return outcome;
}

Outcome merge(Sides& sides, int rows, int heads, int head_dim, Random& random) {
  PairedMatrix output(sides, rows, heads * head_dim, 0, 1, random, sides.dtype);
  PairedMatrix other(sides, rows, heads * head_dim, 0, 1, random, sides.dtype);
  std::vector<float> lse = normal(std::size_t(rows) * heads, 8, random);
  std::vector<float> other_lse = normal(std::size_t(rows) * heads, 8, random);
  for (std::size_t i = 0; i < lse.size(); ++i) {
    if (pick(random, 0, 3) == 0) lse[i] = -std::numeric_limits<float>::infinity();
    if (pick(random, 0, 3) == 0) other_lse[i] = -std::numeric_limits<float>::infinity();
  }
  const Buffer device_lse = sides.put(lse), device_other = sides.put(other_lse);
  sides.gpu.ops->merge({output.device(), device_lse.as<float>(), other.device(), device_other.as<float>(), heads});
  sides.cpu.ops->merge({output.host(), lse.data(), other.host(), other_lse.data(), heads});
  Outcome outcome;
  finish(output, sides, tolerance(sides.dtype), outcome);
  compare(sides.get(device_lse, lse.size(), DType::kFloat32), lse, 1e-5, "lse", outcome);
  return outcome;
}

void check_linear(Sides& sides, Report& report, Random& random) {
  constexpr int kWidths[][2] = {{32, 61}, {48, 32}, {8, 8}, {896, 1152}, {4864, 896}, {576, 1000}, {3584, 512}};
  for (const int rows : {1, 2, 3, 8, 17, 64, 130, 300}) {
    for (const auto& width : kWidths) {
      const LinearCase shape{rows,
                             width[0],
                             width[1],
                             8 * pick(random, 0, 1),
                             pick(random, 0, 1) == 0,
                             pick(random, 0, 1) == 0,
                             pick(random, 0, 2) == 0};
      const std::string more = text(" x ", shape.out, shape.bias ? " bias" : "", shape.accumulate ? " accumulate" : "",
                                    shape.float_output ? " to float32" : "", shape.padding > 0 ? " strided" : "");
      report.run(named("linear", sides.dtype, rows, shape.in, more), [&] { return linear(sides, shape, random); });
    }
  }
}

}  // namespace

void check_layers(Sides& sides, Report& report) {
  Random random(101);
  const DType dtype = sides.dtype;
  for (const int width : {8, 32, 61, 896, 3584, 8192, 20000}) {
    for (const int rows : {1, 5, 64, 300}) {
      if (std::int64_t{rows} * width > 2'000'000) continue;
      const int padding = pick(random, 0, 2) * 4;
      report.run(named("embed", dtype, rows, width), [&] { return embedding(sides, rows, width, padding, random); });
      report.run(named("silu_mul", dtype, rows, width), [&] { return silu_mul(sides, rows, width, padding, random); });
      for (const bool gather : {false, true}) {
        report.run(named("rms_norm", dtype, rows, width, gather ? " gathered" : ""),
                   [&] { return rms_norm(sides, rows, width, padding, gather, random); });
        report.run(named("copy_rows", dtype, rows, width, gather ? " gathered" : ""),
                   [&] { return copy_rows(sides, rows, width, padding, gather, random); });
      }
    }
  }
  check_linear(sides, report, random);
  for (const int head_dim : {8, 64, 96, 128, 256}) {
    const int rows = pick(random, 1, 40), heads = pick(random, 1, 9);
    report.run(named("merge", dtype, rows, heads * head_dim),
               [&] { return merge(sides, rows, heads, head_dim, random); });
  }
}

}  // namespace fastspec::gpu_check
