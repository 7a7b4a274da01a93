// SPDX-License-Identifier: MIT
// Depthwise convolutions, of one channel a group, for one target: lanes run along outputs whatever the layout. A tile of x lies in cache, padded,
// as vectors of channels; sums of its pixels become out by the epilogue of gemm, transposed where y has its pixels side by side.
#include <type_traits>

#include "kernels/conv/cpu/channels.h"
#include "kernels/gemm/cpu/scratch.h"
#include "kernels/gemm/cpu/shared.h"

#define TILEKILN_JOIN(a, b, c) a##b##c
#define TILEKILN_ENGINE(target) TILEKILN_JOIN(tilekiln_, target, _conv_fwd_depthwise)

namespace tilekiln::cpu::inline TILEKILN_TARGET {
namespace {

// A row of x that a row of taps meets, from the place of its first pixel's first tap on; `column` floats from column to column: 0 of padding.
struct Line {
  const float* at;
  i64 column;
};
constexpr int kMostLines = 1024;  // as many as taps, which are no more: the engine's `needs` in kernels/targets

// Sums of N pixels of a row, from number `first` on: taps of a filter over lines.
template <int N, int Step>
TILEKILN_INLINE void pixel_sums(const Taps& taps, const Line* lines, i64 first, const float* w, float* to) {
  vf sum[N];
  TILEKILN_UNROLL(8) for (int i = 0; i < N; ++i) sum[i] = zero();
  for (i64 b = 0; b < taps.planes * taps.rows; ++b) {
    const i64 column = lines[b].column, step = (Step ? Step : taps.step) * column, next = taps.column / kLanes * column;
    const float* from = lines[b].at + first * step;
    for (i64 t = 0; t < taps.columns; ++t, from += next, w += kLanes) {
      const vf factor = load(w);
      TILEKILN_UNROLL(8) for (int i = 0; i < N; ++i) sum[i] = fma(load_unaligned(from + i * step), factor, sum[i]);
    }
  }
  TILEKILN_UNROLL(8) for (int i = 0; i < N; ++i) store(to + i * kLanes, sum[i]);
}
// Sums over lines of F taps that lie side by side, Step 1 or 2: each vector of x is read once for all of them. back: the last tap comes first.
template <int N, int Step, int F>
TILEKILN_INLINE void filter_sums(const Taps& taps, const Line* lines, i64 first, const float* w, float* to) {
  constexpr int kRead = (N - 1) * Step + F;
  const bool back = taps.column < 0;
  const i64 next = back ? -kLanes : kLanes, left = first * Step - (back ? F - 1 : 0);
  w += back ? (F - 1) * kLanes : 0;
  vf sum[N];
  TILEKILN_UNROLL(8) for (int i = 0; i < N; ++i) sum[i] = zero();
  for (i64 b = 0; b < taps.planes * taps.rows; ++b, w += F * kLanes) {
    const i64 column = lines[b].column;
    const float* const from = lines[b].at + left * column;
    vf row[kRead];
    TILEKILN_UNROLL(24) for (int i = 0; i < kRead; ++i) row[i] = load_unaligned(from + i * column);
    TILEKILN_UNROLL(8) for (int t = 0; t < F; ++t) {
      const vf factor = load(w + t * next);
      TILEKILN_UNROLL(8) for (int i = 0; i < N; ++i) sum[i] = fma(row[i * Step + t], factor, sum[i]);
    }
  }
  TILEKILN_UNROLL(8) for (int i = 0; i < N; ++i) store(to + i * kLanes, sum[i]);
}
template <int N, int Step>
TILEKILN_INLINE void block_sums(const Taps& taps, const Line* lines, i64 first, const float* w, float* to) {
  if constexpr (kLanes == 16 && N >= 7 && Step > 0) {
    if (taps.column == kLanes || taps.column == -kLanes) {
      if (taps.columns == 3) return filter_sums<N, Step, 3>(taps, lines, first, w, to);
      if (taps.columns == 5) return filter_sums<N, Step, 5>(taps, lines, first, w, to);
      if (taps.columns == 7 && Step == 1) return filter_sums<N, Step, 7>(taps, lines, first, w, to);
    }
  }
  pixel_sums<N, Step>(taps, lines, first, w, to);
}

// Pixels [i, end) of a row, as evenly as 8 at a time allow.
template <int Step> void row_sums(const Taps& taps, const Line* lines, const float* w, float* to, i64 i, i64 end) {
  for (i64 parts = (end - i + 7) / 8; i < end; --parts) {
    const i64 some = (end - i + parts - 1) / parts;
    float* const sums = to + i * kLanes;
    switch (some) {
      case 1: block_sums<1, Step>(taps, lines, i, w, sums); break;
      case 2: block_sums<2, Step>(taps, lines, i, w, sums); break;
      case 3: block_sums<3, Step>(taps, lines, i, w, sums); break;
      case 4: block_sums<4, Step>(taps, lines, i, w, sums); break;
      case 5: block_sums<5, Step>(taps, lines, i, w, sums); break;
      case 6: block_sums<6, Step>(taps, lines, i, w, sums); break;
      case 7: block_sums<7, Step>(taps, lines, i, w, sums); break;
      default: block_sums<8, Step>(taps, lines, i, w, sums);
    }
    i += some;
  }
}

// A vector of outputs of a tile.
class Tile {
 public:
  Tile(const Convolution& c, i64 unit, void* scratch)
      : c_(c), size_(c.out_dtype == matrix::OutDtype::fp16 || c.out_dtype == matrix::OutDtype::bf16 ? 2 : 4) {
    const i64 outputs = c.groups * c.outputs, vectors = (outputs + kLanes - 1) / kLanes;
    k_ = unit % vectors * kLanes, count_ = least<i64>(kLanes, outputs - k_);
    place_ = TilePlace(c, unit / vectors);
    x_ = (float*)scratch, sums_ = (float*)((char*)scratch + c.gathered);
    panel_ = sums_ + (c.tile * c.some + kPanel) * kLanes, block_ = (char*)(panel_ + kPanel * kPanel);
  }

  void run() {
    const Taps taps(c_, place_);
    const i64 columns = place_.columns, count = taps.planes * taps.rows;
    const float* const w = (const float*)c_.rows + k_ * taps_of(c_);
    const auto sums = taps.step == 1 ? row_sums<1> : taps.step == 2 ? row_sums<2> : row_sums<0>;
    const bool rows = c_.y_step.channel == 1;
    const Range whole = whole_columns();
    // A copy is dearer than it saves, but for many edges, and pixels that share few sets of the cache.
    const bool in_place = kLanes == 16 && c_.dtype == matrix::Dtype::fp32 && c_.x_step.channel == 1 &&
                          c_.outputs == 1 && count_ == kLanes && c_.x_step.at[2] % 512 != 0 &&
                          12 * (columns - whole.high + whole.low) <= columns;
    if (!in_place) fill_channels(c_, c_.x, c_.x_step, place_, k_, c_.outputs, count_, x_);
    for (i64 i = 0; i < place_.rows; ++i) {
      float* const to = sums_ + (rows ? 0 : i * columns * kLanes);
      Line lines[kMostLines];
      for (i64 b = 0; b < count; ++b)
        lines[b] = in_place ? line_of_x(i, b / taps.rows, b % taps.rows)
                            : Line{x_ + taps.first + i * c_.step[1] * taps.line + b / taps.rows * taps.plane +
                                       b % taps.rows * taps.row,
                                   kLanes};
      if (in_place) {
        edge_sums(lines, count, w, to, 0, whole.low);
        sums(taps, lines, w, to, whole.low, whole.high);
        edge_sums(lines, count, w, to, whole.high, columns);
      } else {
        sums(taps, lines, w, to, 0, columns);
      }
      if (rows) finish_row(i);
    }
    if (!rows) finish_lanes();
  }

 private:
  i64 left() const { return place_.pixel.at[2] * c_.step[2] + c_.start[2]; }
  // Columns of the tile all of whose taps lie in x.
  Range whole_columns() const {
    const Range first = range_inside(left(), c_.step[2], c_.in[2], place_.columns);
    const Range last = range_inside(left() + (c_.filter[2] - 1) * c_.tap[2], c_.step[2], c_.in[2], place_.columns);
    const i64 low = first.low > last.low ? first.low : last.low, high = least(first.high, last.high);
    return {low, high < low ? low : high};
  }
  Line line_of_x(i64 i, i64 a, i64 b) const {
    const i64 depth = place(c_, 0, place_.pixel.at[0], a), height = place(c_, 1, place_.pixel.at[1] + i, b);
    if (!inside(c_, 0, depth) || !inside(c_, 1, height)) return {zeros_, 0};
    const conv::Steps& s = c_.x_step;
    const float* const x = (const float*)c_.x + place_.pixel.image * s.batch + k_;
    return {x + depth * s.at[0] + height * s.at[1] + left() * s.at[2], s.at[2]};
  }
  // Pixels some of whose taps lie in the padding.
  void edge_sums(const Line* lines, i64 count, const float* w, float* to, i64 low, i64 high) const {
    for (i64 j = low; j < high; ++j) {
      const float* factor = w;
      vf sum = zero();
      for (i64 b = 0; b < count; ++b) {
        for (i64 t = 0; t < c_.filter[2]; ++t, factor += kLanes) {
          const i64 at = j * c_.step[2] + t * c_.tap[2];
          const vf x = inside(c_, 2, left() + at) ? load_unaligned(lines[b].at + at * lines[b].column) : zero();
          sum = fma(x, load(factor), sum);
        }
      }
      store(to + j * kLanes, sum);
    }
  }
  matrix::Problem problem(i64 rows, i64 columns) const {
    matrix::Problem p = {};
    p.dtype = c_.dtype, p.out_dtype = c_.out_dtype, p.activation = c_.activation, p.alpha = 1, p.beta = 1;
    p.clamp_min = c_.clamp_min, p.clamp_max = c_.clamp_max, p.row_scale_step = 1;
    p.m = (int)rows, p.n = (int)columns;
    p.bias = c_.bias ? c_.bias + k_ : nullptr;
    return p;
  }
  const char* residual(const Pixel& at) const {
    return c_.residual ? c_.residual + (at.in(c_.residual_step) + k_ * c_.residual_step.channel) * size_ : nullptr;
  }
  // Exact sums of int8, which fp32 holds, as integers.
  void to_integers(float* sums, i64 count) const {
    if (c_.dtype != matrix::Dtype::int8) return;
    for (i64 i = 0; i < count; ++i) {
      const int whole = (int)sums[i];
      __builtin_memcpy(sums + i, &whole, sizeof whole);
    }
  }

  // A row of pixels of y, whose channels lie together.
  void finish_row(i64 row) {
    Pixel at = place_.pixel;
    at.at[1] += row;
    char* const y = c_.y + (at.in(c_.y_step) + k_) * size_;
    const bool plain = c_.activation == matrix::Activation::none || c_.activation == matrix::Activation::relu;
    if (plain && !c_.residual && c_.dtype != matrix::Dtype::int8) {
      switch (c_.out_dtype) {
        case matrix::OutDtype::fp16: return put_pixels((fp16*)y);
        case matrix::OutDtype::bf16: return put_pixels((bf16*)y);
        default: return put_pixels((float*)y);
      }
    }
    matrix::Problem p = problem(place_.columns, count_);
    p.column_scale = c_.scale ? c_.scale + k_ : nullptr;
    p.out = y, p.out_row = c_.y_step.at[2];
    p.c = {residual(at), c_.residual_step.at[2], c_.residual_step.channel};
    to_integers(sums_, place_.columns * kLanes);
    const Finish finish = finish_of(p);
    for (i64 m = 0; m < place_.columns; m += kPanel) {
      const i64 some = least<i64>(kPanel, place_.columns - m);
      for (i64 i = 0; i < some; ++i) store(panel_ + i * kPanel, load(sums_ + (m + i) * kLanes));
      finish.block(p, panel_, (int)m, 0, (int)some, (int)count_);
    }
  }
  template <class T> void put_pixels(T* y) const {
    const vf bias = c_.bias ? widen_some(c_.bias + k_, (int)count_) : zero();
    const bool relu = c_.activation == matrix::Activation::relu;
    for (i64 i = 0; i < place_.columns; ++i, y += c_.y_step.at[2]) {
      vf x = load(sums_ + i * kLanes);
      if (c_.bias) x = add(x, bias);
      if (relu) x = max(zero(), x);
      count_ == kLanes ? narrow(y, x) : narrow_some(y, x, (int)count_);
    }
  }

  // Pixels of y that lie side by side, by panels that are transposed first.
  void finish_lanes() {
    const i64 pixels = place_.rows * place_.columns;
    to_integers(sums_, pixels * kLanes);
    const bool together = c_.out[2] == place_.columns && c_.y_step.at[1] == c_.out[2] * c_.y_step.at[2] &&
                          (!c_.residual || c_.residual_step.at[1] == c_.out[2] * c_.residual_step.at[2]);
    const i64 run = together ? pixels : place_.columns;
    for (i64 first = 0; first < pixels; first += run) {
      Pixel at = place_.pixel;
      at.at[1] += first / place_.columns;
      finish_run(at, first, run);
    }
  }
  void finish_run(const Pixel& at, i64 first, i64 run) {
    matrix::Problem p = problem(count_, run);
    p.bias_of_rows = true, p.row_scale = c_.scale ? c_.scale + k_ : nullptr;
    p.c = {residual(at), c_.residual_step.channel, c_.residual_step.at[2]};
    char* const y = c_.y + (at.in(c_.y_step) + k_ * c_.y_step.channel) * size_;
    const bool direct = c_.y_step.at[2] == 1;
    p.out = direct ? y : block_, p.out_row = direct ? c_.y_step.channel : kPanel;
    const Finish finish = finish_of(p);
    for (i64 n = 0; n < run; n += kPanel) {
      const i64 some = least<i64>(kPanel, run - n);
      for (i64 i = 0; i < some; i += kLanes) {
        vf r[kLanes];
        TILEKILN_UNROLL(16) for (int j = 0; j < kLanes; ++j) r[j] = load(sums_ + (first + n + i + j) * kLanes);
        transpose(r);
        TILEKILN_UNROLL(16) for (int j = 0; j < kLanes; ++j) store(panel_ + j * kPanel + i, r[j]);
      }
      if (!direct) p.c.data = c_.residual ? residual(at) + n * c_.residual_step.at[2] * size_ : nullptr;
      finish.block(p, panel_, 0, direct ? (int)n : 0, (int)count_, (int)some);
      if (!direct && size_ == 4) put_apart((const uint32_t*)block_, (uint32_t*)y + n * c_.y_step.at[2], some);
      if (!direct && size_ == 2) put_apart((const uint16_t*)block_, (uint16_t*)y + n * c_.y_step.at[2], some);
    }
  }
  // Pixels of a block to their places, a step apart.
  template <class E> void put_apart(const E* block, E* y, i64 some) const {
    const i64 step = c_.y_step.at[2];
    for (i64 k = 0; k < count_; ++k, block += kPanel, y += c_.y_step.channel)
      for (i64 i = 0; i < some; ++i) y[i * step] = block[i];
  }

  const Convolution& c_;
  const i64 size_;
  i64 k_, count_;
  TilePlace place_;
  alignas(64) float zeros_[kLanes] = {};
  float *x_, *sums_, *panel_;
  char* block_;
};

void forward(const Convolution& c, i64 unit, void* scratch) { Tile(c, unit, scratch).run(); }

// A vector of outputs, [tap][lane].
template <class T> void pack_taps(const Convolution& c, i64 unit, float* to) {
  const i64 all = c.groups * c.outputs, taps = c.filter[0] * c.filter[1] * c.filter[2];
  const Words words = {0, taps, 0, 1};
  const bool lies = sizeof(T) > 1 && c.w_group == c.outputs * c.w_step.batch && c.filters_lie;
  for (i64 first = unit * kLanes; first < (unit + 1) * kLanes; first += kLanes) {
    float* const block = to + first * taps;
    if (lies && first < all) {
      using Word = std::conditional_t<sizeof(T) == sizeof(float), float, uint16_t>;
      turn_rows((const Word*)c.w + first * c.w_step.batch, c.w_step.batch, all - first, taps, [&](i64 t, vf x) {
        alignas(64) Word row[kLanes];
        put_words(row, x);
        if constexpr (sizeof(T) > 1) store(block + t * kLanes, widen((const T*)row));
      });
      continue;
    }
    for (i64 n = 0; n < kLanes; ++n) {
      const i64 k = first + n;
      const T* const w = (const T*)c.w + (k < all ? k / c.outputs * c.w_group + k % c.outputs * c.w_step.batch : 0);
      each_word(c, words, [&](i64 t, i64 at) { block[t * kLanes + n] = k < all ? widened(w[at]) : 0; });
    }
  }
}
void pack(const Convolution& c, i64 unit, void* to) {
  switch (c.dtype) {
    case matrix::Dtype::fp16: return pack_taps<fp16>(c, unit, (float*)to);
    case matrix::Dtype::bf16: return pack_taps<bf16>(c, unit, (float*)to);
    case matrix::Dtype::int8: return pack_taps<int8>(c, unit, (float*)to);
    default: return pack_taps<float>(c, unit, (float*)to);
  }
}

// Adds to sums of F taps of a row of a filter: those of pixels of a tile, dy as vectors side by side.
template <int F> void tap_sums(const Taps& taps, const TilePlace& place, i64 down, const float* x, const float* dy,
                               float* to) {
  vf sum[F];
  TILEKILN_UNROLL(8) for (int t = 0; t < F; ++t) sum[t] = load(to + t * kLanes);
  const i64 step = taps.step * kLanes, column = taps.column;
  for (i64 i = 0; i < place.rows; ++i) {
    const float* from = x + i * down * taps.line;
    for (i64 j = 0; j < place.columns; ++j, from += step, dy += kLanes) {
      const vf d = load(dy);
      TILEKILN_UNROLL(8) for (int t = 0; t < F; ++t) sum[t] = fma(load(from + t * column), d, sum[t]);
    }
  }
  TILEKILN_UNROLL(8) for (int t = 0; t < F; ++t) store(to + t * kLanes, sum[t]);
}

// A part of the tiles, of a vector of outputs: sums are [part][vector][tap][lane].
void weights(const conv::WeightGradient& g, i64 unit, void* scratch) {
  const Convolution& c = g.of;
  const i64 outputs = c.groups * c.outputs, vectors = (outputs + kLanes - 1) / kLanes, all = taps_of(c);
  const i64 part = unit / vectors, k = unit % vectors * kLanes, count = least<i64>(kLanes, outputs - k);
  float* const sums = g.sums + unit * all * kLanes;
  float* const x = (float*)scratch;
  float* const dy = (float*)((char*)scratch + c.gathered);
  __builtin_memset(sums, 0, all * kLanes * sizeof *sums);
  Convolution plain = c;  // dy as a tile of its own pixels
  for (int i = 0; i < 3; ++i)
    plain.in[i] = c.out[i], plain.filter[i] = plain.step[i] = plain.tap[i] = 1, plain.start[i] = 0;
  for (i64 tile = part * g.some; tile < least(c.tiles, (part + 1) * g.some); ++tile) {
    const TilePlace place(c, tile);
    const Taps taps(c, place);
    fill_channels(c, c.x, c.x_step, place, k, c.outputs, count, x);
    fill_channels(plain, c.y, c.y_step, place, k, 1, count, dy);
    float* to = sums;
    for (i64 a = 0; a < taps.planes; ++a) {
      for (i64 b = 0; b < taps.rows; ++b) {
        const float* from = x + taps.first + a * taps.plane + b * taps.row;
        for (i64 t = 0; t < taps.columns;) {
          const int some = int(least<i64>(taps.columns - t, 8));
          const auto sum = [&]<int F>() { tap_sums<F>(taps, place, c.step[1], from, dy, to); };
          switch (some) {
            case 1: sum.template operator()<1>(); break;
            case 2: sum.template operator()<2>(); break;
            case 3: sum.template operator()<3>(); break;
            case 4: sum.template operator()<4>(); break;
            case 5: sum.template operator()<5>(); break;
            case 6: sum.template operator()<6>(); break;
            case 7: sum.template operator()<7>(); break;
            default: sum.template operator()<8>();
          }
          t += some, to += some * kLanes, from += some * taps.column;
        }
      }
    }
  }
}

template <class T> void add_taps(const conv::WeightGradient& g, i64 output) {
  const Convolution& c = g.of;
  const i64 all = taps_of(c), vectors = (c.groups * c.outputs + kLanes - 1) / kLanes;
  const float* const sums = g.sums + output / kLanes * all * kLanes + output % kLanes;
  T* const dw = (T*)g.dw + output * c.w_step.batch;
  each_word(c, {0, all, 0, 1}, [&](i64 t, i64 at) {
    float sum = sums[t * kLanes];
    for (i64 part = 1; part < g.parts; ++part) sum += sums[(part * vectors * all + t) * kLanes];
    core::narrow(sum, dw[at]);
  });
}
void add_weights(const conv::WeightGradient& g, i64 output) {
  switch (g.dtype) {
    case matrix::OutDtype::fp16: return add_taps<fp16>(g, output);
    case matrix::OutDtype::bf16: return add_taps<bf16>(g, output);
    default: return add_taps<float>(g, output);
  }
}

}  // namespace
}  // namespace tilekiln::cpu::inline TILEKILN_TARGET

extern "C" const tilekiln::conv::Engine TILEKILN_ENGINE(TILEKILN_TARGET) = {
    tilekiln::cpu::forward, tilekiln::cpu::pack, tilekiln::cpu::weights, tilekiln::cpu::add_weights, 0,
    tilekiln::cpu::kLanes};
