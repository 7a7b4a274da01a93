// SPDX-License-Identifier: MIT
// Arguments of fused_moe as the plain data of its steps, and these: rows sorted by expert, copied or quantised, two products, the sums.
#include <cstring>

#include "kernels/gemm/blocks.h"
#include "kernels/gemm/panels.h"
#include "kernels/generated/operators/fused_moe_entries.h"
#include "kernels/moe/fused_moe/lists.h"

namespace tilekiln::op::fused_moe {

using matrix::Grouped;
using matrix::i64;
using matrix::kPanelLanes;
using matrix::Matrix;
using matrix::moved;
using matrix::Problem;
using moe::Experts;
using moe::Lists;
using Weights = tilekiln::fused_moe::Weights;
using Layout = tilekiln::fused_moe::Layout;

namespace {

long long shown(int64_t number) { return static_cast<long long>(number); }

// Elements of a row that a word of panels holds, and the last dimension, bytes for what is quantised.
struct Word {
  explicit Word(const Call& call) {
    const bool pairs = call.signature.dtype == tilekiln::fused_moe::Dtype::bf16;
    last = call.signature.weights != Weights::same ? 4 : pairs ? 2 : 1;
    const bool halves = call.signature.weights == Weights::int4 || call.signature.weights == Weights::mxfp4;
    elements = halves ? 8 : last;
  }
  i64 elements, last;
};

// The rows between the products, by down: a matrix, or panels of quantised words.
i64 inter_of(const tilekiln_tensor& down) {
  return down.ndim == 3 ? down.shape[2] : down.shape[2] * (down.dtype == TILEKILN_UINT8 ? 8 : down.shape[4]);
}

// A factor a lane and group of k of each panel.
tilekiln_shape factors_of(const tilekiln_tensor& panels, i64 k, i64 group) {
  return {4, {panels.shape[0], panels.shape[1], matrix::divide_up(k, group), kPanelLanes}};
}

tilekiln_status check_plain(Call& call) {
  const Arrays& in = call.in;
  call.signature.gated = call.N != call.I;
  if (call.N != call.I && call.N != 2 * call.I)
    return fail_argument("gate_up", "rows was %lld, must be %lld, twice the inter of down, or %lld without up",
                         shown(call.N), shown(2 * call.I), shown(call.I));
  const Matrix first(in.gate_up), second(in.down);
  const bool either = in.gate_up.empty(), other = in.down.empty();  // they have no stride to look at
  const bool rows = (either || first.may_be_row()) && (other || second.may_be_row());
  if (!rows && !((either || first.may_be_column()) && (other || second.may_be_column())))
    return fail_argument(
        "down", "was %s, must be as gate_up: of both, one stride of the last two dimensions is 1, the same one",
        second.may_be_row() ? "row-major" : "column-major");
  call.signature.layout = rows ? Layout::row : Layout::column;
  return TILEKILN_OK;
}

tilekiln_status check_scales(const Args& args, const Call& call) {
  const Arrays& in = call.in;
  constexpr i64 least_group = 32, least_k = 8;
  if (args.group % least_group != 0)
    return fail_argument("group", "was %d, must be a multiple of 32", static_cast<int>(args.group));
  if (call.H % least_k != 0)
    return fail_argument("x", "hidden was %lld, must be a multiple of 8 with weights of int8 and int4", shown(call.H));
  const bool int8 = call.signature.weights == Weights::int8;
  if (args.quantise_x == 0 && (int8 || in.smooth_scale.given()))
    return fail_argument("quantise_x", "was no, must be yes with %s",
                         int8 ? "weights of int8" : "smooth_scale, of rows that become int8");
  if (int8 && args.gate_up_scale->dtype != TILEKILN_FP32)
    return fail_argument("gate_up_scale", "dtype was uint8, must be fp32 with weights of int8");
  TILEKILN_TRY(matrix::check_contiguous_from(in.gate_up_scale, 1));
  return matrix::check_contiguous_from(in.down_scale, 1);
}

tilekiln_status check_packed(const Args& args, Call& call) {
  const Arrays& in = call.in;
  const Word word(call);
  const i64 panels = matrix::divide_up(call.U * word.elements, kPanelLanes);
  TILEKILN_TRY(matrix::check_panels(in.gate_up, 3, "lane count", kPanelLanes, "always"));
  TILEKILN_TRY(matrix::check_panels(in.gate_up, 4, "word elements", word.last, "those of its dtype"));
  TILEKILN_TRY(matrix::check_panels(in.gate_up, 2, "words", matrix::divide_up(call.H, word.elements),
                                    "hidden by elements of a word"));
  TILEKILN_TRY(
      matrix::check_panels(in.down, 1, "panels", matrix::divide_up(call.H, kPanelLanes), "hidden by 64, rounded up"));
  call.signature.gated = call.P != panels;
  if (call.P != panels && call.P != 2 * panels)
    return fail_argument("gate_up",
                         "panels was %lld, must be %lld, twice those of the inter of down, or %lld without up",
                         shown(call.P), shown(2 * panels), shown(panels));
  TILEKILN_TRY(matrix::check_contiguous_from(in.gate_up, 1));
  TILEKILN_TRY(matrix::check_contiguous_from(in.down, 1));
  call.signature.layout = Layout::packed;
  return call.signature.weights == Weights::same ? TILEKILN_OK : check_scales(args, call);
}

tilekiln_status check_blocks(const Args& args, Call& call) {
  TILEKILN_TRY(check_plain(call));
  if (call.signature.weights != Weights::fp8) return TILEKILN_OK;
  if (call.H % matrix::kBlock != 0)
    return fail_argument("x", "hidden was %lld, must be a multiple of 128 with weights of fp8", shown(call.H));
  if (call.I % matrix::kBlock != 0)
    return fail_argument("down", "inter was %lld, must be a multiple of 128 with weights of fp8", shown(call.I));
  if (args.quantise_x == 0) return fail_argument("quantise_x", "was no, must be yes with weights of fp8");
  if (args.gate_up_scale->dtype != TILEKILN_FP32)
    return fail_argument("gate_up_scale", "dtype was uint8, must be fp32 with weights of fp8");
  TILEKILN_TRY(matrix::check_contiguous_from(call.in.gate_up_scale, 1));
  return matrix::check_contiguous_from(call.in.down_scale, 1);
}

// Sets the packed weight of n columns and k rows, in panels for each expert, and its scales.
void fill_packed(const Array& b, const Array& scale, i64 n, i64 k, Grouped* to) {
  to->product.n = static_cast<int>(n);
  to->product.k = static_cast<int>(k);
  to->product.b = b.data;
  to->product.b_panels = static_cast<int>(b.shape[4]);
  to->b_scale = matrix::numbers(scale);
}

void fill_plain(const Array& weight, i64 n, Grouped* to) {
  const Matrix b = Matrix(weight).transposed();
  Problem& p = to->product;
  p.n = static_cast<int>(n);
  p.k = static_cast<int>(b.rows);
  p.b = b.data;
  p.b_columns = !b.may_be_row();
  p.ldb = p.b_columns ? b.column : b.row;
}

}  // namespace

tilekiln_status masks(const Args& args, tilekiln_shape* shape) {
  *shape = {1, {args.expert_mask->shape[0]}};
  return TILEKILN_OK;
}

tilekiln_status down_columns(const Args& args, tilekiln_shape* shape) {
  *shape = {2, {args.down->shape[0], inter_of(*args.down)}};
  return TILEKILN_OK;
}

// Shape of the bias beside a matrix of each expert (experts, rows, columns), or panels.
static tilekiln_status bias_of(const tilekiln_tensor& weight, tilekiln_shape* shape) {
  if (weight.ndim == 3) *shape = {2, {weight.shape[0], weight.shape[1]}};
  if (weight.ndim != 3) *shape = {3, {weight.shape[0], weight.shape[1], kPanelLanes}};
  return TILEKILN_OK;
}

tilekiln_status biases(const Args& args, tilekiln_shape* shape) { return bias_of(*args.gate_up, shape); }
tilekiln_status down_biases(const Args& args, tilekiln_shape* shape) { return bias_of(*args.down, shape); }

// A factor a block of 128 x 128 of matrices.
static tilekiln_shape blocks_of(const tilekiln_tensor& matrices) {
  return {3,
          {matrices.shape[0], matrix::divide_up(matrices.shape[1], matrix::kBlock),
           matrix::divide_up(matrices.shape[2], matrix::kBlock)}};
}

tilekiln_status factors(const Args& args, tilekiln_shape* shape) {
  if (args.gate_up->ndim == 3) return *shape = blocks_of(*args.gate_up), TILEKILN_OK;
  *shape = factors_of(*args.gate_up, args.x->shape[1], args.group);
  return TILEKILN_OK;
}

tilekiln_status down_factors(const Args& args, tilekiln_shape* shape) {
  if (args.down->ndim == 3) return *shape = blocks_of(*args.down), TILEKILN_OK;
  *shape = factors_of(*args.down, inter_of(*args.down), args.group);
  return TILEKILN_OK;
}

tilekiln_status slopes(const Args& args, Call& call) {
  const bool asked = call.signature.activation == tilekiln::fused_moe::Activation::clamped_swiglu;
  if (asked && args.alpha == 0) return fail_argument("alpha", "was 0, must not be 0 with activation clamped_swiglu");
  return TILEKILN_OK;
}

// Checks what must hold before shapes of scales are looked at.
tilekiln_status scales(const Args& args, Call& call) {
  const Array& weight = call.in.gate_up;
  const bool quantised = weight.dtype != call.in.x.dtype, blocks = weight.dtype == TILEKILN_FP8;
  if (blocks && weight.ndim != 3)
    return fail_argument("gate_up", "had 5 dimensions, must have 3: weights of fp8 are matrices");
  if (quantised && !blocks && weight.ndim == 3)
    return fail_argument("gate_up", "had 3 dimensions, must have 5: weights of int8 and int4 are packed");
  if (quantised && args.gate_up_scale == nullptr)
    return fail_argument("gate_up_scale",
                         "was null, must be given, as down_scale, with weights of int8, int4, mxfp4 and fp8");
  if (!quantised && args.gate_up_scale != nullptr)
    return fail_argument("gate_up_scale",
                         "was given, must be null, as down_scale, but with weights of int8, int4, mxfp4 and fp8");
  return TILEKILN_OK;
}

tilekiln_status features(const Args& args, Call& call) {
  for (const Array* bias : {&call.in.gate_up_bias, &call.in.down_bias})
    if (bias->given()) TILEKILN_TRY(matrix::check_contiguous_from(*bias, 1));
  if (call.in.gate_up.ndim == 3) return check_blocks(args, call);
  return check_packed(args, call);
}

// Everything is checked: the problem of the steps.
void fill(const Args& args, Call& call) {
  using matrix::Activation;
  constexpr Activation activations[] = {Activation::silu, Activation::gelu, Activation::gelu_tanh, Activation::relu,
                                        Activation::none};  // clamped_swiglu: gate comes as it is
  using Ours = tilekiln::fused_moe::Activation;
  static_assert(static_cast<int>(Ours::relu) == 3 && static_cast<int>(Ours::clamped_swiglu) == 4);
  matrix::check_dtypes<tilekiln::fused_moe::Dtype>();
  const Arrays& in = call.in;
  Experts& to = call.to.problem;
  const auto bytes_from = [](const Array& array, int dimension) {
    return array.stride[dimension] * dtype_bytes(array.dtype);
  };
  to.dtype = static_cast<matrix::Dtype>(call.signature.dtype);
  to.gated = call.signature.gated;
  to.fp8 = call.signature.weights == Weights::fp8;
  to.quantised = call.signature.weights != Weights::same && !to.fp8;
  to.int8_rows = to.quantised && args.quantise_x != 0;
  to.tokens = static_cast<int>(call.M), to.topk = static_cast<int>(call.K);
  to.experts = static_cast<int>(call.E), to.hidden = static_cast<int>(call.H);
  to.all_experts = in.expert_mask.given() ? static_cast<int>(in.expert_mask.shape[0]) : 0;
  to.x = in.x.data, to.x_row = bytes_from(in.x, 0);
  to.out = in.out.data, to.out_row = bytes_from(in.out, 0);
  to.topk_ids = reinterpret_cast<const int*>(in.topk_ids.data), to.ids_row = in.topk_ids.stride[0];
  to.topk_weights = matrix::numbers(in.topk_weights), to.weights_row = in.topk_weights.stride[0];
  if (in.expert_mask.given()) to.expert_mask = reinterpret_cast<const int*>(in.expert_mask.data);
  to.smooth_scale = matrix::numbers(in.smooth_scale), to.down_smooth_scale = matrix::numbers(in.down_smooth_scale);
  if (in.local_tokens.given()) to.local_tokens = reinterpret_cast<const int*>(in.local_tokens.data);
  to.gate_bias = matrix::numbers(in.gate_up_bias), to.down_bias = matrix::numbers(in.down_bias);
  if (in.gate_up_bias.given()) to.gate_bias_row = in.gate_up_bias.stride[0];
  if (in.down_bias.given()) to.down_bias_row = in.down_bias.stride[0];
  if (in.smooth_scale.given())
    to.smooth_row = in.smooth_scale.stride[0], to.down_smooth_row = in.down_smooth_scale.stride[0];
  to.gate_step = bytes_from(in.gate_up, 0), to.down_step = bytes_from(in.down, 0);
  if (call.signature.layout == Layout::packed) {
    const i64 panels = call.P / (to.gated ? 2 : 1);
    to.inter = static_cast<int>(call.U * Word(call).elements);
    fill_packed(in.gate_up, in.gate_up_scale, panels * kPanelLanes, call.H, &to.gate);
    fill_packed(in.down, in.down_scale, to.quantised ? call.Q * kPanelLanes : call.H, to.inter, &to.down);
    to.up_offset = panels * bytes_from(in.gate_up, 1);
  } else {
    to.inter = static_cast<int>(call.I);
    fill_plain(in.gate_up, call.I, &to.gate);
    fill_plain(in.down, call.H, &to.down);
    to.up_offset = call.I * bytes_from(in.gate_up, 1);
  }
  if (to.quantised || to.fp8) {
    to.gate_scale_step = bytes_from(in.gate_up_scale, 0), to.down_scale_step = bytes_from(in.down_scale, 0);
    to.up_scale = (to.fp8 ? call.I / matrix::kBlock : call.P / 2) * bytes_from(in.gate_up_scale, 1);
  }
  if (to.fp8) {
    const auto of = [](const Array& scale) {
      return matrix::BlockFactors{nullptr, matrix::numbers(scale), 0, 1, scale.stride[1], scale.stride[2]};
    };
    to.gate.product.blocks = of(in.gate_up_scale), to.down.product.blocks = of(in.down_scale);
    to.gate.product.blocks.a_row = call.H / matrix::kBlock, to.down.product.blocks.a_row = call.I / matrix::kBlock;
  }
  for (Grouped* product : {&to.gate, &to.down}) {
    product->a_dtype = to.int8_rows ? matrix::Dtype::int8 : to.dtype;
    product->weights = call.signature.weights == Weights::int4    ? matrix::Weights::int4
                       : call.signature.weights == Weights::mxfp4 ? matrix::Weights::mxfp4
                                                                  : matrix::Weights::int8;
    product->group = args.group;
    product->product.dtype = to.fp8 ? matrix::Dtype::fp8 : to.quantised ? matrix::Dtype::fp32 : to.dtype;
    product->product.alpha = 1;
    product->product.out_dtype = matrix::OutDtype::fp32;
  }
  if (!to.int8_rows && !to.fp8) to.gate.product.out_dtype = static_cast<matrix::OutDtype>(to.dtype);
  to.gate.product.activation = activations[static_cast<int>(call.signature.activation)];
  to.swiglu = call.signature.activation == Ours::clamped_swiglu;
  to.gate.product.clamp_min = -args.limit, to.gate.product.clamp_max = args.limit;
  to.gate.product.slope = args.alpha, to.gate.product.per_slope = 1 / args.alpha;
  int64_t* const sizes = call.to.query.sizes;
  sizes[tilekiln::fused_moe::sizes::tokens] = call.M;
  sizes[tilekiln::fused_moe::sizes::topk] = call.K;
  sizes[tilekiln::fused_moe::sizes::experts] = call.E;
  sizes[tilekiln::fused_moe::sizes::hidden] = call.H;
  sizes[tilekiln::fused_moe::sizes::inter] = to.inter;
}

namespace {

// Rows of int8, their factors and sums.
struct Quantised {
  Quantised(moe::Parts& parts, i64 rows, i64 columns)
      : columns(columns),
        blocks(matrix::divide_up(columns, matrix::kSummed)),
        numbers(parts.take<signed char>(rows * columns)),
        scale(parts.take<float>(rows)),
        sums(parts.take<int>(rows * blocks)) {}
  // One row, as engines are asked for it.
  [[nodiscard]] matrix::Rows row(i64 number, const void* from, matrix::Dtype dtype, const float* column_scale) const {
    return {from,
            0,
            dtype,
            column_scale,
            static_cast<int>(columns),
            numbers + number * columns,
            scale + number,
            sums + number * blocks};
  }
  i64 columns, blocks;
  signed char* numbers;
  float* scale;
  int* sums;
};

// Rows of e4m3, and a factor for each kBlock numbers of one.
struct Blocks {
  Blocks(moe::Parts& parts, i64 rows, i64 columns)
      : columns(columns),
        count(columns / matrix::kBlock),
        numbers(parts.take<char>(rows * columns)),
        scale(parts.take<float>(rows * count)) {}
  void fill(const matrix::Engine& engine, i64 row, const void* from, matrix::Dtype dtype) const {
    const matrix::QuantisedRows of = {from, matrix::kBlock,          dtype,          matrix::kBlock,
                                      true, numbers + row * columns, matrix::kBlock, scale + row * count};
    for (int i = 0; i < count; ++i) engine.quantise(of, i);
  }
  i64 columns, count;
  char* numbers;
  float* scale;
};

// A unit of a product with factors of blocks, by pieces whose sums lie behind the engine's own scratch.
void run_pieces(const matrix::Engine& engine, const Problem& p, const matrix::Unit& unit, void* scratch) {
  if (p.k == 0) return engine.run[static_cast<int>(p.dtype)](p, unit, scratch);
  float* const sums = static_cast<float*>(moved(scratch, matrix::own_scratch(engine)));
  matrix::each_piece(unit, [&](const matrix::Unit& piece) { matrix::run_piece(p, engine, piece, sums, scratch); });
}

// The parts of a call's workspace, and its size in bytes.
struct Work {
  Work(char* memory, const Experts& call)
      : Work(moe::Parts(memory), call, i64{call.tokens} * call.topk, call.gate.product.n,
             (call.down.product.n + 63) / 64 * 64) {}
  Work(moe::Parts parts, const Experts& call, i64 rows, i64 columns, i64 sum_columns)
      : rows(rows),
        between_row(columns * (call.int8_rows || call.fp8 ? 4 : matrix::dtype_size(call.dtype))),
        sums_row(sum_columns),
        lists(parts, call),
        x(parts, call.int8_rows ? rows : 0, call.hidden),
        h(parts, call.int8_rows ? rows : 0, call.inter),
        x_blocks(parts, call.fp8 ? rows : 0, call.hidden),
        h_blocks(parts, call.fp8 ? rows : 0, call.inter),
        copied(parts.take<char>(call.int8_rows || call.fp8 ? 0 : rows * call.hidden * matrix::dtype_size(call.dtype))),
        between(parts.take<char>(rows * between_row)),
        sums(parts.take<float>(rows * sum_columns)),
        bytes(parts.bytes()) {}

  i64 rows, between_row, sums_row;  // bytes, floats
  Lists lists;
  Quantised x, h;
  Blocks x_blocks, h_blocks;
  char *copied, *between;
  float* sums;
  i64 bytes;
};

// The panel of b, panels of words, that column n begins; null where b is a matrix.
const void* panel_of(const Problem& p, const void* b, i64 n) {
  if (p.b_panels == 0) return nullptr;
  return moved(b, n / kPanelLanes * matrix::divide_up(p.k, p.b_panels) * kPanelLanes * 4);
}

// Blocks of rows of a step that costs `work` each.
template <class OfRow>
tilekiln_status each_row(const StageCall<Experts>& call, i64 rows, double work, OfRow&& of_row) {
  constexpr i64 many = 8;
  return launch_stage(call, call.choice, call.problem, matrix::divide_up(rows, many), work * static_cast<double>(rows),
                      0, [&](i64 unit, void*) {
                        for (i64 row = unit * many; row < std::min(rows, (unit + 1) * many); ++row) of_row(row);
                      });
}

// The blocks of one product of all experts: of_block(expert, rows of it, unit, scratch).
template <class OfBlock>
tilekiln_status each_block(const StageCall<Experts>& call, const Lists& lists, const Problem& p, int tile_rows,
                           int products, OfBlock&& of_block) {
  const Experts& e = call.problem;
  const auto& engine = *static_cast<const matrix::Engine*>(call.choice.engine);
  const i64 rows = i64{e.tokens} * e.topk;
  const i64 most = std::min<i64>(e.experts, rows) + rows / tile_rows;  // some tiles of every expert are not full
  i64 columns = engine.most_columns;
  while (columns >= 512 && most * matrix::divide_up(p.n, columns) < 4 * i64{call.threads}) columns /= 2;
  const i64 across = matrix::divide_up(p.n, columns);
  return launch_stage(call, call.choice, e, most * across, static_cast<double>(rows) * products * p.n * (p.k + 1.0),
                      e.fp8 ? matrix::block_scratch(engine) : engine.scratch_bytes, [&](i64 number, void* scratch) {
                        const int tile = static_cast<int>(number / across);
                        if (tile >= lists.tiles[e.experts]) return;
                        const int expert = lists.expert_of_tile(e, tile),
                                  m = lists.firsts[expert + 1] - lists.firsts[expert];
                        const int m0 = (tile - lists.tiles[expert]) * tile_rows;
                        const i64 n0 = number % across * columns;
                        of_block(expert, m,
                                 matrix::Unit{m0, std::min(m, m0 + tile_rows), static_cast<int>(n0),
                                              static_cast<int>(std::min<i64>(p.n, n0 + columns))},
                                 scratch);
                      });
}

}  // namespace

tilekiln_status launch(StageCall<Experts>& call) {
  const Experts& e = call.problem;
  if (__builtin_expect(!call.backend->takes_units, 0)) return launch_kernel(call, call.choice, e);
  const auto& engine = *static_cast<const matrix::Engine*>(call.choice.engine);
  CallMemory memory;
  TILEKILN_TRY(memory.get(call, static_cast<size_t>(Work(nullptr, e).bytes) + 64));
  const Work work(memory.as<char>(), e);
  const Lists& lists = work.lists;
  const i64 size = matrix::dtype_size(e.dtype), x_bytes = e.hidden * size;
  // Cut for as many threads; a product does not depend on where.
  constexpr i64 least_rows = 48, most_rows = 960;
  const i64 block = engine.block_rows > 0 ? engine.block_rows : 1;
  const int tile_rows = static_cast<int>(
      call.threads > 1
          ? matrix::divide_up(std::clamp(matrix::divide_up(work.rows, 4 * i64{call.threads}), least_rows, most_rows),
                              block) *
                block
          : most_rows);

  TILEKILN_TRY(launch_stage(call, call.choice, e, 1, 8.0 * static_cast<double>(work.rows) + e.experts, 0,
                            [&](i64, void*) { lists.sort(e, tile_rows); }));
  TILEKILN_TRY(each_row(call, work.rows, e.hidden, [&](i64 row) {
    if (row >= lists.rows(e)) return;
    const char* from = e.x + lists.tokens[row] * e.x_row;
    if (e.fp8) return work.x_blocks.fill(engine, row, from, e.dtype);
    if (!e.int8_rows) return void(std::memcpy(work.copied + row * x_bytes, from, static_cast<size_t>(x_bytes)));
    const float* smooth = e.smooth_scale;
    if (smooth != nullptr) smooth += lists.expert_of_row(e, static_cast<int>(row)) * e.smooth_row;
    engine.rows(work.x.row(row, from, e.dtype, smooth), 0);
  }));
  // A product of the rows of one expert, from what `a` holds.
  const auto of_expert = [&](const Grouped& product, int expert, int m, i64 b_step, i64 scale_step, const Quantised& a,
                             const Blocks& blocks, const void* rows, i64 row_bytes, const float* bias, i64 bias_row) {
    Grouped g = product;
    g.product.bias = bias != nullptr ? bias + expert * bias_row : nullptr;
    const i64 first = lists.firsts[expert];
    g.product.m = m;
    g.product.b = moved(g.product.b, expert * b_step);
    g.product.lda = g.product.k;
    g.product.a = moved(rows, first * row_bytes);
    if (e.fp8) {
      g.product.a = blocks.numbers + first * blocks.columns;
      g.product.blocks.a = blocks.scale + first * blocks.count;
      g.product.blocks.b = static_cast<const float*>(moved(g.product.blocks.b, expert * scale_step));
    }
    if (e.quantised) g.b_scale = static_cast<const float*>(moved(g.b_scale, expert * scale_step));
    if (e.int8_rows) {
      g.product.a = a.numbers + first * a.columns;
      g.product.row_scale = a.scale + first;
      g.product.row_scale_step = 1;
      g.a_sums = a.sums + first * a.blocks;
    }
    return g;
  };
  // Panels of words that a thread reads after those of a unit, if it takes units in turn: b of `g`, or of the next expert.
  const auto after = [&](const Grouped& first, i64 step, const Grouped& g, int expert, const matrix::Unit& unit) {
    const Problem& p = g.product;
    if (unit.n1 < p.n) return panel_of(p, p.b, unit.n1);
    if (unit.m1 < p.m) return panel_of(p, p.b, 0);
    return expert + 1 < e.experts ? panel_of(p, moved(first.product.b, (expert + 1) * step), 0) : nullptr;
  };
  const auto run = [&](const Grouped& g, const matrix::Unit& unit, void* scratch) {
    if (e.quantised) return engine.groups(g, unit, scratch);
    if (e.fp8) return run_pieces(engine, g.product, unit, scratch);
    engine.run[static_cast<int>(g.product.dtype)](g.product, unit, scratch);
  };
  TILEKILN_TRY(each_block(call, lists, e.gate.product, tile_rows, e.gated ? 2 : 1,
                          [&](int expert, int m, const matrix::Unit& unit, void* scratch) {
                            Grouped g = of_expert(e.gate, expert, m, e.gate_step, e.gate_scale_step, work.x,
                                                  work.x_blocks, work.copied, x_bytes, e.gate_bias, e.gate_bias_row);
                            Problem& p = g.product;
                            p.out = work.between + lists.firsts[expert] * work.between_row;
                            p.out_row = p.n;
                            const void* const next = after(e.gate, e.gate_step, g, expert, unit);
                            p.after = e.gated ? panel_of(p, moved(p.b, e.up_offset), unit.n0) : next;
                            run(g, unit, scratch);
                            if (!e.gated) return;
                            p.after = next;
                            p.b = moved(p.b, e.up_offset);
                            if (p.bias != nullptr) p.bias += p.n;
                            g.b_scale = static_cast<const float*>(moved(g.b_scale, e.up_scale));
                            if (e.fp8) p.blocks.b = static_cast<const float*>(moved(p.blocks.b, e.up_scale));
                            p.activation = matrix::Activation::none;
                            p.multiply = !e.swiglu, p.swiglu = e.swiglu;
                            p.d[0] = {p.out, p.out_row, 1};
                            run(g, unit, scratch);
                          }));
  if (e.int8_rows) {
    TILEKILN_TRY(each_row(call, work.rows, e.inter, [&](i64 row) {
      if (row >= lists.rows(e)) return;
      const float* smooth = e.down_smooth_scale;
      if (smooth != nullptr) smooth += lists.expert_of_row(e, static_cast<int>(row)) * e.down_smooth_row;
      engine.rows(work.h.row(row, work.between + row * work.between_row, matrix::Dtype::fp32, smooth), 0);
    }));
  }
  if (e.fp8) {
    TILEKILN_TRY(each_row(call, work.rows, e.inter, [&](i64 row) {
      if (row < lists.rows(e))
        work.h_blocks.fill(engine, row, work.between + row * work.between_row, matrix::Dtype::fp32);
    }));
  }
  TILEKILN_TRY(each_block(
      call, lists, e.down.product, tile_rows, 1, [&](int expert, int m, const matrix::Unit& unit, void* scratch) {
        Grouped g = of_expert(e.down, expert, m, e.down_step, e.down_scale_step, work.h, work.h_blocks, work.between,
                              work.between_row, e.down_bias, e.down_bias_row);
        if (!e.int8_rows && !e.fp8) g.product.lda = work.between_row / size;
        g.product.out = work.sums + lists.firsts[expert] * work.sums_row;
        g.product.out_row = work.sums_row;
        g.product.after = after(e.down, e.down_step, g, expert, unit);
        run(g, unit, scratch);
      }));
  return each_row(call, e.tokens, static_cast<double>(e.topk) * e.hidden, [&](i64 token) {
    int rows[127];
    float factors[127];
    const int count = lists.of_token(e, token, rows, factors);
    engine.combine({work.sums, work.sums_row, rows, factors, count, e.hidden, static_cast<matrix::OutDtype>(e.dtype),
                    e.out + token * e.out_row});
  });
}

}  // namespace tilekiln::op::fused_moe
