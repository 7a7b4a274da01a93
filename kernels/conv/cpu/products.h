// SPDX-License-Identifier: MIT
// Convolutions as products on the engine of gemm that TILEKILN_PIPELINE names, for one target: taps of a tile are gathered in cache, and out
// is a block of its pixels by outputs, or of outputs by pixels. Whoever includes it has a struct Products, which says whether they are by tiles.
#pragma once

#include "kernels/conv/cpu/pack.h"

#define TILEKILN_JOIN_AS_GIVEN(a, b, c, d) a##b##c##d
#define TILEKILN_JOIN(a, b, c, d) TILEKILN_JOIN_AS_GIVEN(a, b, c, d)
#define TILEKILN_PRODUCTS TILEKILN_JOIN(tilekiln_, TILEKILN_TARGET, _gemm, TILEKILN_PIPELINE)
#define TILEKILN_ENGINE TILEKILN_JOIN(tilekiln_, TILEKILN_TARGET, _conv_fwd, TILEKILN_PIPELINE)

extern "C" const tilekiln::matrix::Engine TILEKILN_PRODUCTS;

namespace tilekiln::cpu::inline TILEKILN_TARGET {
namespace {

using matrix::Problem;

// Pixels whose place in an array goes on by one step: a row, or as many dimensions as lie one after the other.
i64 run_of(const Convolution& c, const conv::Steps& s) {
  i64 run = c.out[2];
  if (c.out[2] > 1 && c.out[1] > 1 && s.at[1] != s.at[2] * run) return run;
  const i64 step = c.out[2] > 1 ? s.at[2] : s.at[1];
  run *= c.out[1];
  if (run > 1 && c.out[0] > 1 && s.at[0] != step * run) return run;
  const i64 larger = run > 1 ? step : s.at[0];
  run *= c.out[0];
  if (run > 1 && c.batch > 1 && s.batch != larger * run) return run;
  return run * c.batch;
}
i64 step_of(const Convolution& c, const conv::Steps& s) {
  return c.out[2] > 1 ? s.at[2] : c.out[1] > 1 ? s.at[1] : c.out[0] > 1 ? s.at[0] : s.batch;
}
bool in_one_run(i64 first, i64 pixels, i64 run) { return first / run == (first + pixels - 1) / run; }

// Steps of x from output to output.
conv::Steps of_outputs(const Convolution& c) {
  const conv::Steps& s = c.x_step;
  return {s.batch, s.channel, {s.at[0] * c.step[0], s.at[1] * c.step[1], s.at[2] * c.step[2]}};
}

// Tells whether no tap of any pixel leaves x.
bool stays_inside(const Convolution& c) {
  for (int i = 0; i < 3; ++i) {
    const i64 first = c.start[i], last = first + (c.out[i] - 1) * c.step[i], reach = (c.filter[i] - 1) * c.tap[i];
    if (least(first, first + reach) < 0 || (last > last + reach ? last : last + reach) >= c.in[i]) return false;
  }
  return true;
}
bool tap_stays_inside(const Convolution& c, const Pixel& pixel, i64 tap) {
  return inside(c, 0, place(c, 0, pixel.at[0], 0)) && inside(c, 1, place(c, 1, pixel.at[1], 0)) &&
         inside(c, 2, place(c, 2, pixel.at[2], tap));
}

constexpr i64 kBlockOutputs = 256, kRowBytes = 64, kRowsOfTile = 16;

// Elements from row to row of what is gathered: whole lines.
template <class T> i64 row_of(i64 words) {
  constexpr i64 kElements = Products::kTiles ? kRowBytes / sizeof(T) : 16;
  return (words + kElements - 1) / kElements * kElements;
}

// Pixels of a tile by outputs of a group.
template <class T> class Unit {
 public:
  Unit(const Convolution& c, i64 unit, void* scratch)
      : c_(c),
        part_(unit % c.parts),
        group_(unit / c.parts % c.groups),
        first_(unit / c.parts / c.groups * c.tile),
        pixels_(least(c.batch * c.out[0] * c.out[1] * c.out[2] - first_, c.tile)),
        size_(c.out_dtype == matrix::OutDtype::fp16 || c.out_dtype == matrix::OutDtype::bf16 ? 2 : 4),
        engine_(TILEKILN_PRODUCTS),
        scratch_(scratch),
        gathered_((T*)((char*)scratch + sizeof(Products::Scratch))),
        made_((char*)gathered_ + c.gathered) {
    const i64 column = c.lanes_along_pixels ? step_of(c, c.y_step) : c.y_step.channel;
    direct_ = column == 1 && in_one_run(first_, pixels_, run_of(c, c.y_step)) &&
              (!c.residual || in_one_run(first_, pixels_, run_of(c, c.residual_step)));
  }

  void run() {
    const i64 k0 = part_ * c_.some, k1 = least(c_.outputs, k0 + c_.some);
    const i64 some = direct_ && c_.chunks == 1 && c_.lanes_along_pixels ? k1 - k0 : kBlockOutputs;
    if (c_.chunks == 1) {
      const Problem p = operands(0);
      for (i64 k = k0; k < k1; k += some)
        finish(p, k, least(k1, k + some), [&](const Problem& block, const matrix::Unit& u) { multiply(block, u); });
      return;
    }
    // Sums of chunks lie apart; a unit has one block of outputs.
    float* const sums = (float*)(made_ + 2 * c_.tile * kBlockOutputs * 4);
    const i64 row = c_.lanes_along_pixels ? c_.tile : kBlockOutputs, step = c_.tile * kBlockOutputs;
    Problem last = {};
    for (i64 i = 0; i < c_.chunks; ++i) {
      last = operands(i);
      Problem p = of_outputs_from(last, k0, k1);
      p.out_dtype = c_.dtype == matrix::Dtype::int8 ? matrix::OutDtype::int32 : matrix::OutDtype::fp32;
      p.out = sums + i * step, p.out_row = row;
      multiply(p, {0, p.m, 0, p.n});
    }
    finish(last, k0, k1, [&](const Problem& block, const matrix::Unit& u) {
      engine_.add(block, u, {sums, row, step, int(c_.chunks), false}, scratch_);
    });
  }

 private:
  void multiply(const Problem& p, const matrix::Unit& u) {
    *(const void**)scratch_ = nullptr;  // what is known of rows of a is of another gathering
    engine_.run[(int)p.dtype](p, u, scratch_);
  }

  Problem operands(i64 chunk) {
    const Words words = words_of(c_, chunk);
    Problem p = {};
    p.dtype = c_.dtype, p.alpha = 1, p.beta = 1, p.k = (int)words.count();
    if (c_.lanes_along_pixels)
      lanes_operands(p, words);
    else
      rows_operands(p, chunk, words);
    return p;
  }

  void rows_operands(Problem& p, i64 chunk, const Words& words) {
    p.m = (int)(place_of(pixels_ - 1) + 1), p.n = (int)c_.outputs;
    const conv::Steps steps = of_outputs(c_);
    const bool taps_together = c_.filter[2] == 1 || (c_.channels_inner && c_.tap[2] * c_.x_step.at[2] == c_.channels);
    const bool rows_lie = c_.chunks == 1 && c_.filter[0] * c_.filter[1] == 1 && taps_together &&
                          (c_.x_step.channel == 1 || c_.channels == 1);
    if (c_.wide) {
      gather_lines(c_, group_, first_, pixels_, gathered_);
      p.a = gathered_, p.lda = c_.channels, p.a_words = true;
      if (direct_) p.a_wide = int(c_.wide), p.a_beyond = int(c_.wide - c_.out[2]);
      p.a_run = int(c_.filter[2] * c_.channels), p.a_next = c_.tap[1] * c_.wide * c_.channels;
    } else if (rows_lie && in_one_run(first_, pixels_, run_of(c_, steps)) && no_padding()) {
      p.a = (const T*)c_.x + group_ * c_.channels * c_.x_step.channel + start();
      p.lda = step_of(c_, steps);
      p.a_words = pixels_ % kRowsOfTile == 0 && tiles_read(p);
    } else {
      const i64 row = row_of<T>(words.count());
      gather_rows(c_, group_, first_, pixels_, words, gathered_, row);
      p.a = gathered_, p.lda = row, p.a_words = Products::kTiles;
    }
    if (const int word = c_.packed ? panel_word(c_) : 0) {
      const i64 start = chunk_start(c_, chunk, word), all = chunk_start(c_, c_.chunks, word);
      p.b = (const T*)c_.rows + (group_ * all + start) * panels_of(c_) * kPanelOutputs, p.b_panels = word;
    } else {
      p.b = (const T*)c_.rows + group_ * c_.rows_group + row_start(words);
      p.b_columns = !c_.turned, p.ldb = c_.rows_step;
    }
  }

  void lanes_operands(Problem& p, const Words& words) {
    p.m = (int)c_.outputs, p.n = (int)pixels_;
    p.a = (const T*)c_.rows + group_ * c_.rows_group + row_start(words);
    p.a_columns = c_.turned, p.lda = c_.rows_step;
    p.a_words = c_.outputs % kRowsOfTile == 0 && tiles_read(p);
    const conv::Steps steps = of_outputs(c_);
    if (c_.chunks == 1 && taps_of(c_) == 1 && step_of(c_, steps) == 1 &&
        in_one_run(first_, pixels_, run_of(c_, steps)) && no_padding()) {
      p.b = (const T*)c_.x + group_ * c_.channels * c_.x_step.channel + start(), p.ldb = c_.x_step.channel;
      return;
    }
    if (gathers_words()) {
      gather_panels(c_, group_, first_, pixels_, words, gathered_);
      p.b = gathered_, p.b_panels = 4 / sizeof(T);
      return;
    }
    const i64 lanes = (pixels_ + kPanelOutputs - 1) / kPanelOutputs * kPanelOutputs;
    const bool panels = sizeof(T) == sizeof(float);
    gather_lanes(c_, group_, first_, pixels_, lanes, panels ? kPanelOutputs : lanes, words, gathered_);
    p.b = gathered_, p.ldb = lanes, p.b_panels = panels;
  }

  // Tells whether what is gathered are words as products read them.
  bool gathers_words() const {
    const i64 step = c_.step[2] * c_.x_step.at[2];
    if (!kGathersWords || c_.dtype == matrix::Dtype::fp16 || (step != 1 && step != 2) || taps_of(c_) > kMostTaps)
      return false;
    if (c_.dtype == matrix::Dtype::bf16) return TILEKILN_PAIRS;
    return (c_.dtype == matrix::Dtype::fp32 && step == 1) || (c_.dtype == matrix::Dtype::int8 && Products::kTiles);
  }
  // Tells whether tiles are read from rows as they lie: whole lines.
  bool tiles_read(const Problem& p) const {
    const i64 bytes = (i64)sizeof(T), end = c_.packed && c_.lanes_along_pixels ? 0 : p.k * bytes;
    return Products::kTiles && !p.a_columns && ((i64)p.a | p.lda * bytes | end) % kRowBytes == 0;
  }

  // A place of a row of words.
  i64 row_start(const Words& words) const {
    if (c_.turned) return words.c0 * c_.rows_step;
    return c_.channels_inner ? words.t0 * c_.channels + words.c0 : words.c0 * taps_of(c_) + words.t0;
  }
  // The place in x of the first pixel's first tap.
  i64 start() const {
    i64 at = Pixel(c_, first_).in(of_outputs(c_));
    for (int i = 0; i < 3; ++i) at += c_.start[i] * c_.x_step.at[i];
    return at;
  }
  bool no_padding() const {
    if (stays_inside(c_)) return true;
    const Pixel from(c_, first_), to(c_, first_ + pixels_ - 1);
    const i64 last = c_.filter[2] - 1;
    return from.at[2] + pixels_ <= c_.out[2] && tap_stays_inside(c_, from, 0) && tap_stays_inside(c_, from, last) &&
           tap_stays_inside(c_, to, 0) && tap_stays_inside(c_, to, last);
  }

  // The row of products that has a pixel of the tile.
  i64 place_of(i64 lane) const { return c_.wide ? lane + lane / c_.out[2] * (c_.wide - c_.out[2]) : lane; }
  i64 most_rows() const { return place_of(c_.tile - 1) + 1; }

  // p of outputs [k0, k1).
  Problem of_outputs_from(Problem p, i64 k0, i64 k1) const {
    const i64 from = c_.turned               ? k0
                     : c_.lanes_along_pixels ? k0 * p.lda
                     : p.b_panels
                         ? k0 / kPanelOutputs * ((p.k + p.b_panels - 1) / p.b_panels * p.b_panels) * kPanelOutputs
                         : k0 * p.ldb;
    const void*& operand = c_.lanes_along_pixels ? p.a : p.b;
    operand = (const T*)operand + from;
    (c_.lanes_along_pixels ? p.m : p.n) = (int)(k1 - k0);
    return p;
  }

  // Block of outputs: its epilogue, and the way to y and from the residual where those are no matrices.
  template <class Multiply> void finish(const Problem& all, i64 k0, i64 k1, Multiply&& multiply) {
    Problem p = of_outputs_from(all, k0, k1);
    p.out_dtype = c_.out_dtype, p.activation = c_.activation, p.clamp_min = c_.clamp_min, p.clamp_max = c_.clamp_max;
    const i64 k = group_ * c_.outputs + k0;
    if (c_.bias) p.bias = c_.bias + k, p.bias_of_rows = c_.lanes_along_pixels;
    if (c_.scale) (c_.lanes_along_pixels ? p.row_scale : p.column_scale) = c_.scale + k, p.row_scale_step = 1;
    const Pixel at(c_, first_);
    char* const y = c_.y + (k * c_.y_step.channel + (direct_ ? at.in(c_.y_step) : 0)) * size_;
    const char* const residual =
        c_.residual ? c_.residual + (k * c_.residual_step.channel + (direct_ ? at.in(c_.residual_step) : 0)) * size_
                    : nullptr;
    if (direct_) {
      const auto extra = [&](const conv::Steps& s) {
        const i64 pixel = step_of(c_, s);
        return c_.lanes_along_pixels ? matrix::Extra{residual, s.channel, pixel}
                                     : matrix::Extra{residual, pixel, s.channel};
      };
      p.out = y, p.out_row = c_.lanes_along_pixels ? c_.y_step.channel : step_of(c_, c_.y_step);
      if (residual) p.c = extra(c_.residual_step);
      multiply(p, {0, p.m, 0, p.n});
      return;
    }
    const i64 row = c_.lanes_along_pixels ? c_.tile : kBlockOutputs;
    char* const other = made_ + most_rows() * kBlockOutputs * 4;
    p.out = made_, p.out_row = row;
    if (residual) {
      move(residual, c_.residual_step, k1 - k0, other, [](auto* mine, auto* theirs, i64 step, i64 n, i64 own) {
        for (i64 i = 0; i < n; ++i) mine[i * own] = theirs[i * step];
      });
      p.c = {other, row, 1};
    }
    multiply(p, {0, p.m, 0, p.n});
    move(y, c_.y_step, k1 - k0, made_, [](auto* mine, auto* theirs, i64 step, i64 n, i64 own) {
      for (i64 i = 0; i < n; ++i) theirs[i * step] = mine[i * own];
    });
  }

  // f(buffer, array, step of the array, count, step of the buffer) for stretches of the block.
  template <class F> void move(const char* array, const conv::Steps& s, i64 outputs, char* buffer, F&& f) {
    if (size_ == 2)
      move_of((uint16_t*)array, s, outputs, (uint16_t*)buffer, f);
    else
      move_of((uint32_t*)array, s, outputs, (uint32_t*)buffer, f);
  }
  template <class E, class F> void move_of(E* array, const conv::Steps& s, i64 outputs, E* buffer, F&& f) {
    segments(c_, first_, pixels_, c_.tile, [&](const Segment& segment) {
      E* const from = array + segment.at.in(s);
      if (c_.lanes_along_pixels) {
        for (i64 k = 0; k < outputs; ++k)
          f(buffer + k * c_.tile + segment.lane, from + k * s.channel, s.at[2], segment.count, i64(1));
      } else {
        for (i64 i = 0; i < segment.count; ++i)
          f(buffer + (place_of(segment.lane) + i) * kBlockOutputs, from + i * s.at[2], s.channel, outputs, i64(1));
      }
    });
  }

  const Convolution& c_;
  const i64 part_, group_, first_, pixels_, size_;
  const matrix::Engine& engine_;
  void* const scratch_;
  T* const gathered_;
  char* const made_;
  bool direct_;
};

// A part of the pixels of a chunk of words and a group, tile after tile.
template <class T> void weights_of(const conv::WeightGradient& g, i64 unit, void* scratch) {
  const Convolution& c = g.of;
  const i64 part = unit % g.parts, chunk = unit / g.parts % c.chunks, group = unit / g.parts / c.chunks;
  const matrix::Engine& engine = TILEKILN_PRODUCTS;
  T* const gathered = (T*)((char*)scratch + sizeof(Products::Scratch));
  T* const copied = (T*)((char*)gathered + c.gathered);
  const Words words = words_of(c, chunk);
  const i64 all = taps_of(c) * c.channels, pixels = c.batch * c.out[0] * c.out[1] * c.out[2];
  const i64 first_word = c.channels_inner ? words.t0 * c.channels + words.c0 : words.c0 * taps_of(c) + words.t0;
  float* const sums = g.sums + (part * c.groups + group) * c.outputs * all + first_word;
  const T* const dy = (const T*)c.y + group * c.outputs * c.y_step.channel;
  Problem p = {};
  p.dtype = c.dtype, p.out_dtype = matrix::OutDtype::fp32, p.alpha = 1, p.beta = 1;
  p.m = (int)c.outputs, p.n = (int)words.count(), p.out = sums, p.out_row = all;
  const i64 end = least(c.tiles, (part + 1) * g.some);
  if (part * g.some >= end) {
    for (i64 k = 0; k < c.outputs; ++k) __builtin_memset(sums + k * all, 0, p.n * sizeof(float));
    return;
  }
  for (i64 tile = part * g.some; tile < end; ++tile) {
    const i64 first = tile * c.tile, some = least(c.tile, pixels - first);
    const bool run = in_one_run(first, some, run_of(c, c.y_step));
    p.k = (int)some, p.c = {tile > part * g.some ? sums : nullptr, all, 1};
    if (c.lanes_along_pixels) {
      const i64 lanes = (some + kPanelOutputs - 1) / kPanelOutputs * kPanelOutputs;
      gather_lanes(c, group, first, some, lanes, lanes, words, gathered);
      p.b = gathered, p.b_columns = true, p.ldb = lanes;
    } else {
      const i64 row = row_of<T>(words.count());
      gather_rows(c, group, first, some, words, gathered, row);
      p.b = gathered, p.b_columns = false, p.ldb = row;
    }
    if (run && c.lanes_along_pixels && step_of(c, c.y_step) == 1) {
      p.a = dy + Pixel(c, first).in(c.y_step), p.lda = c.y_step.channel, p.a_columns = false;
    } else if (run && !c.lanes_along_pixels) {
      p.a = dy + Pixel(c, first).in(c.y_step), p.lda = step_of(c, c.y_step), p.a_columns = true;
    } else {
      segments(c, first, some, c.tile, [&](const Segment& segment) {
        const T* const from = dy + segment.at.in(c.y_step);
        for (i64 k = 0; k < c.outputs; ++k)
          put_row(copied + k * c.tile + segment.lane, from + k * c.y_step.channel, c.y_step.at[2], segment.count);
      });
      p.a = copied, p.lda = c.tile, p.a_columns = false;
    }
    *(const void**)scratch = nullptr;
    for (int n = 0; n < p.n; n += kBlockOutputs)
      engine.run[(int)p.dtype](p, {0, p.m, n, least(p.n, n + (int)kBlockOutputs)}, scratch);
  }
}
void weights(const conv::WeightGradient& g, i64 unit, void* scratch) {
  if constexpr (!Products::kTiles) {
    if (g.of.dtype == matrix::Dtype::fp32) return weights_of<float>(g, unit, scratch);
  }
  weights_of<uint16_t>(g, unit, scratch);
}

// An output of dweight from its parts.
template <class T> void add_parts(const conv::WeightGradient& g, i64 output) {
  const Convolution& c = g.of;
  const i64 taps = taps_of(c), all = taps * c.channels, step = c.groups * c.outputs * all;
  const float* const sums = g.sums + output * all;
  T* const dw = (T*)g.dw + output * c.w_step.batch;
  const Words words = {0, taps, 0, c.channels};
  each_word(c, words, [&](i64 r, i64 at) {
    float sum = sums[r];
    for (i64 part = 1; part < g.parts; ++part) sum += sums[part * step + r];
    core::narrow(sum, dw[at]);
  });
}
void add_weights(const conv::WeightGradient& g, i64 output) {
  switch (g.dtype) {
    case matrix::OutDtype::fp16: return add_parts<fp16>(g, output);
    case matrix::OutDtype::bf16: return add_parts<bf16>(g, output);
    default: return add_parts<float>(g, output);
  }
}

// Tiles multiply no fp32.
using Single = std::conditional_t<Products::kTiles, uint16_t, float>;

void forward(const Convolution& c, i64 unit, void* scratch) {
  switch (c.dtype) {
    case matrix::Dtype::fp32: return Unit<Single>(c, unit, scratch).run();
    case matrix::Dtype::int8: return Unit<int8>(c, unit, scratch).run();
    default: return Unit<uint16_t>(c, unit, scratch).run();
  }
}
void pack(const Convolution& c, i64 unit, void* to) {
  switch (c.dtype) {
    case matrix::Dtype::fp32: return pack_weight<Single>(c, unit, to);
    case matrix::Dtype::int8: return pack_weight<int8>(c, unit, to);
    default: return pack_weight<uint16_t>(c, unit, to);
  }
}

}  // namespace
}  // namespace tilekiln::cpu::inline TILEKILN_TARGET

extern "C" const tilekiln::conv::Engine TILEKILN_ENGINE = {tilekiln::cpu::forward,
                                                           tilekiln::cpu::pack,
                                                           tilekiln::cpu::weights,
                                                           tilekiln::cpu::add_weights,
                                                           sizeof(tilekiln::cpu::Products::Scratch),
                                                           0,
                                                           tilekiln::cpu::Products::kTiles};
