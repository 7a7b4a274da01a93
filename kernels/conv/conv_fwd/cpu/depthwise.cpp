// SPDX-License-Identifier: MIT
// Depthwise convolutions, of one channel a group, for one target: lanes run along outputs whatever the layout. A tile of x lies in cache, padded,
// as vectors of channels; sums of its pixels become out by the epilogue of gemm, transposed where y has its pixels side by side.
#include "kernels/conv/cpu/channels.h"
#include "kernels/conv/cpu/pack.h"
#include "kernels/gemm/cpu/scratch.h"
#include "kernels/gemm/cpu/shared.h"

#define TILEKILN_JOIN(a, b, c) a##b##c
#define TILEKILN_ENGINE(target) TILEKILN_JOIN(tilekiln_, target, _conv_fwd_depthwise)

namespace tilekiln::cpu::inline TILEKILN_TARGET {
namespace {

// Sums of N pixels, `step` vectors apart, of a row: taps of a filter over x, [row][column] vectors.
template <int N, int Step> TILEKILN_INLINE void pixel_sums(const Taps& taps, const float* x, const float* w,
                                                           float* to) {
  vf sum[N];
  TILEKILN_UNROLL(8) for (int i = 0; i < N; ++i) sum[i] = zero();
  const i64 step = Step ? Step * kLanes : taps.step * kLanes;
  for (i64 a = 0; a < taps.planes; ++a) {
    for (i64 b = 0; b < taps.rows; ++b) {
      const float* from = x + a * taps.plane + b * taps.row;
      for (i64 t = 0; t < taps.columns; ++t, from += taps.column, w += kLanes) {
        const vf factor = load(w);
        TILEKILN_UNROLL(8) for (int i = 0; i < N; ++i) sum[i] = fma(load(from + i * step), factor, sum[i]);
      }
    }
  }
  TILEKILN_UNROLL(8) for (int i = 0; i < N; ++i) store(to + i * kPanel, sum[i]);
}
// Pixels of a row, as evenly as 8 at a time allow.
template <int Step> void row_sums(const Taps& taps, const float* x, const float* w, float* to, i64 pixels) {
  const i64 step = taps.step * kLanes;
  for (i64 i = 0, parts = (pixels + 7) / 8; i < pixels; --parts) {
    const i64 some = (pixels - i + parts - 1) / parts;
    const float* const from = x + i * step;
    float* const sums = to + i * kPanel;
    switch (some) {
      case 1: pixel_sums<1, Step>(taps, from, w, sums); break;
      case 2: pixel_sums<2, Step>(taps, from, w, sums); break;
      case 3: pixel_sums<3, Step>(taps, from, w, sums); break;
      case 4: pixel_sums<4, Step>(taps, from, w, sums); break;
      case 5: pixel_sums<5, Step>(taps, from, w, sums); break;
      case 6: pixel_sums<6, Step>(taps, from, w, sums); break;
      case 7: pixel_sums<7, Step>(taps, from, w, sums); break;
      default: pixel_sums<8, Step>(taps, from, w, sums);
    }
    i += some;
  }
}

// A panel of outputs of a tile.
class Tile {
 public:
  Tile(const Convolution& c, i64 unit, void* scratch)
      : c_(c), size_(c.out_dtype == matrix::OutDtype::fp16 || c.out_dtype == matrix::OutDtype::bf16 ? 2 : 4) {
    const i64 outputs = c.groups * c.outputs, panels = (outputs + kPanel - 1) / kPanel;
    k_ = unit % panels * kPanel, unit /= panels;
    count_ = least<i64>(kPanel, outputs - k_);
    place_ = TilePlace(c, unit);
    x_ = (float*)scratch, sums_ = (float*)((char*)scratch + c.gathered);
    turned_ = sums_ + c.tile * c.some * kPanel, block_ = (char*)(turned_ + kPanel * kPanel);
  }

  void run() {
    const Taps taps(c_, place_);
    const i64 all = c_.filter[0] * c_.filter[1] * c_.filter[2], rows = place_.rows, columns = place_.columns;
    for (i64 lane = 0; lane < count_; lane += kLanes) {
      const i64 k = k_ + lane;
      fill_channels(c_, c_.x, c_.x_step, place_, k, c_.outputs, least<i64>(kLanes, count_ - lane), x_);
      const float* const w = (const float*)c_.rows + k * all;
      for (i64 i = 0; i < rows; ++i) {
        const float* const from = x_ + taps.first + i * c_.step[1] * taps.line;
        float* const to = sums_ + i * columns * kPanel + lane;
        taps.step == 1 ? row_sums<1>(taps, from, w, to, columns) : row_sums<0>(taps, from, w, to, columns);
      }
    }
    if (c_.dtype == matrix::Dtype::int8) {
      for (i64 i = 0; i < rows * columns * kPanel; ++i) {
        const int whole = (int)sums_[i];
        __builtin_memcpy(sums_ + i, &whole, sizeof whole);
      }
    }
    finish();
  }

 private:
  void finish() {
    matrix::Problem p = {};
    p.dtype = c_.dtype, p.out_dtype = c_.out_dtype, p.activation = c_.activation, p.alpha = 1, p.beta = 1;
    p.clamp_min = c_.clamp_min, p.clamp_max = c_.clamp_max;
    p.row_scale_step = 1;
    const i64 pixels = place_.rows * place_.columns;
    const bool pixels_together = c_.out[2] == place_.columns && c_.y_step.at[1] == c_.out[2] * c_.y_step.at[2] &&
                                 (!c_.residual || c_.residual_step.at[1] == c_.out[2] * c_.residual_step.at[2]);
    const i64 run = pixels_together ? pixels : place_.columns;
    for (i64 first = 0; first < pixels; first += run) {
      Pixel at = place_.pixel;
      at.at[1] += first / place_.columns;
      c_.y_step.channel == 1 ? finish_rows(p, at, first, run) : finish_lanes(p, at, first, run);
    }
  }
  const char* residual(const Pixel& at) const {
    return c_.residual ? c_.residual + (at.in(c_.residual_step) + k_ * c_.residual_step.channel) * size_ : nullptr;
  }
  void finish_rows(matrix::Problem p, const Pixel& at, i64 first, i64 run) {
    p.m = (int)run, p.n = (int)count_;
    p.bias = c_.bias ? c_.bias + k_ : nullptr, p.column_scale = c_.scale ? c_.scale + k_ : nullptr;
    p.out = c_.y + (at.in(c_.y_step) + k_) * size_, p.out_row = c_.y_step.at[2];
    p.c = {residual(at), c_.residual_step.at[2], c_.residual_step.channel};
    finish_of(p).block(p, sums_ + first * kPanel, 0, 0, (int)run, (int)count_);
  }
  // Pixels by 16 or as many as lanes are transposed first.
  void finish_lanes(matrix::Problem p, const Pixel& at, i64 first, i64 run) {
    p.m = (int)count_, p.n = (int)run;
    p.bias = c_.bias ? c_.bias + k_ : nullptr, p.bias_of_rows = true;
    p.row_scale = c_.scale ? c_.scale + k_ : nullptr;
    p.c = {residual(at), c_.residual_step.channel, c_.residual_step.at[2]};
    char* const y = c_.y + (at.in(c_.y_step) + k_ * c_.y_step.channel) * size_;
    const bool direct = c_.y_step.at[2] == 1;
    p.out = direct ? y : block_, p.out_row = direct ? c_.y_step.channel : kPanel;
    const Finish finish = finish_of(p);
    for (i64 n = 0; n < run; n += kPanel) {
      const i64 some = least<i64>(kPanel, run - n);
      for (i64 i = 0; i < some; i += kLanes) {
        for (i64 lane = 0; lane < count_; lane += kLanes) {
          vf r[kLanes];
          TILEKILN_UNROLL(16) for (int j = 0; j < kLanes; ++j) r[j] = load(sums_ + (first + n + i + j) * kPanel + lane);
          transpose(r);
          TILEKILN_UNROLL(16) for (int j = 0; j < kLanes; ++j) store(turned_ + (lane + j) * kPanel + i, r[j]);
        }
      }
      if (direct) {
        finish.block(p, turned_, 0, (int)n, (int)count_, (int)some);
        continue;
      }
      p.c.data = c_.residual ? residual(at) + n * c_.residual_step.at[2] * size_ : nullptr;
      finish.block(p, turned_, 0, 0, (int)count_, (int)some);
      for (i64 k = 0; k < count_; ++k) {
        for (i64 i = 0; i < some; ++i)
          __builtin_memcpy(y + (k * c_.y_step.channel + (n + i) * c_.y_step.at[2]) * size_,
                           block_ + (k * kPanel + i) * size_, size_);
      }
    }
  }

  const Convolution& c_;
  const i64 size_;
  i64 k_, count_;
  TilePlace place_;
  float *x_, *sums_, *turned_;
  char* block_;
};

void forward(const Convolution& c, i64 unit, void* scratch) { Tile(c, unit, scratch).run(); }

// A panel of outputs, [vector of outputs][tap].
template <class T> void pack_taps(const Convolution& c, i64 unit, float* to) {
  const i64 all = c.groups * c.outputs, taps = c.filter[0] * c.filter[1] * c.filter[2];
  const Words words = {0, taps, 0, 1};
  bool inner;
  const bool lies = sizeof(T) == sizeof(float) && c.w_group == c.outputs * c.w_step.batch && lies_in_rows(c, &inner);
  for (i64 first = unit * kPanel; first < (unit + 1) * kPanel; first += kLanes) {
    float* const block = to + first * taps;
    if (lies && first < all) {
      turn_rows((const float*)c.w + first * c.w_step.batch, c.w_step.batch, all - first, taps,
                [&](i64 t, vf x) { store(block + t * kLanes, x); });
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

}  // namespace
}  // namespace tilekiln::cpu::inline TILEKILN_TARGET

extern "C" const tilekiln::conv::Engine TILEKILN_ENGINE(TILEKILN_TARGET) = {
    tilekiln::cpu::forward, tilekiln::cpu::pack, nullptr, nullptr, 0, tilekiln::cpu::kPanel, tilekiln::cpu::kLanes};
