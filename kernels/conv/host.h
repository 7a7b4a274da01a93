// SPDX-License-Identifier: MIT
// Host code that convolutions share: from arrays to problems, and their cut into units.
#pragma once
#include "kernels/conv/window.h"
#include "kernels/runtime/choose.h"
#include "kernels/runtime/launch.h"

namespace tilekiln::conv {

inline i64 divide_up(i64 a, i64 b) { return (a + b - 1) / b; }
inline i64 size_of(matrix::Dtype dtype) {
  return dtype == matrix::Dtype::fp32 ? 4 : dtype == matrix::Dtype::int8 ? 1 : 2;
}
inline i64 size_of(matrix::OutDtype dtype) {
  return dtype == matrix::OutDtype::fp16 || dtype == matrix::OutDtype::bf16 ? 2 : 4;
}
inline i64 product(const i64* lengths) { return lengths[0] * lengths[1] * lengths[2]; }

inline Steps steps_of(const Array& array) {
  Steps steps = {array.stride[0], array.stride[1], {}};
  for (int i = 2; i < array.ndim; ++i) steps.at[kSpatial - array.ndim + i] = array.stride[i];
  return steps;
}
inline const float* numbers(const Array& array) {
  return array.given() ? reinterpret_cast<const float*>(array.data) : nullptr;
}

// A convolution of x by weight over a window; arrays are set by the caller.
inline Convolution convolution(const Window& window, const Lengths& in, const Lengths& filter, const Lengths& out) {
  Convolution c = {};
  for (int i = 0; i < kSpatial; ++i) {
    c.in[i] = in.at[i], c.filter[i] = filter.at[i], c.out[i] = out.at[i];
    c.step[i] = window.stride.at[i], c.tap[i] = window.dilation.at[i], c.start[i] = -window.before[i];
  }
  return c;
}

// Bytes of what is gathered of a tile, rows of it, and words of a chunk.
constexpr i64 kGathered = 1 << 20, kLeastRows = 48, kMostRows = 240, kLanes = matrix::kPanelLanes, kMostLanes = 256,
              kMostWords = 6144, kFewPixels = 64, kTilesGathered = 3 << 19, kTileRows = 32, kLineBytes = 64;
// A word that is gathered in the order of taps, of a filter that is packed.
constexpr i64 kApart = 6;

// Sets whether filters lie as rows of words, and which dimension of them runs faster.
inline void look_at_filters(Convolution* c) {
  const auto lies = [&](i64 pixel) {
    for (int i = kSpatial; i-- > 0; pixel *= c->filter[i]) {
      if (c->filter[i] > 1 && c->w_step.at[i] != pixel) return false;
    }
    return true;
  };
  const auto has_channels = [&](i64 step) { return c->channels == 1 || c->w_step.channel == step; };
  const i64 taps = product(c->filter);
  c->taps_lie = lies(1);
  const bool outer = c->taps_lie && has_channels(taps);
  c->filters_inner = !outer && lies(c->channels) && has_channels(1);
  c->filters_lie = taps > 0 && (outer || c->filters_inner);
}

// Chunks of at most so many words.
inline void cut_words(Convolution* c, i64 most) {
  const i64 taps = product(c->filter);
  const i64 inner = c->channels_inner ? c->channels : taps, outer = c->channels_inner ? taps : c->channels;
  if (inner > most)
    c->chunk = {1, divide_up(inner, divide_up(inner, most))};
  else
    c->chunk = {std::max<i64>(1, divide_up(outer, std::max<i64>(1, divide_up(outer, std::max<i64>(1, most / inner))))),
                inner};
  c->chunks = std::max<i64>(1, divide_up(outer, c->chunk.outer) * divide_up(inner, c->chunk.inner));
}

// Has tiles of the processor read x as it lies, where taps of a row of a filter are whole lines that follow each other: a copy of the
// rows that a tile of pixels meets, with zeros around them, is less than one of each tap.
inline void cut_lines(Convolution* c, i64 most) {
  constexpr i64 least_rows = 48, most_rows = 448;  // of products
  const bool flat = c->in[0] == 1 && c->filter[0] == 1 && c->out[0] == 1 && c->start[0] == 0;
  const bool lies = c->x_step.channel == 1 && c->channels * size_of(c->dtype) % kLineBytes == 0;
  if (!flat || !lies || !c->packed || !c->channels_inner || c->chunks > 1 || product(c->filter) == 1 ||
      c->lanes_along_pixels || c->step[1] != 1 || c->step[2] != 1 || c->tap[1] < 1 || c->tap[2] != 1)
    return;
  const i64 wide = c->out[2] + c->filter[2] - 1, fit = std::clamp<i64>(most / c->out[2], 1, divide_up(most_rows, wide));
  i64 rows = divide_up(c->out[1], divide_up(c->out[1], std::min(fit, c->out[1])));
  while (c->batch > 1 && c->out[1] % rows != 0) --rows;  // tiles are of one image
  while (rows * wide < least_rows && rows < c->out[1] && (c->batch == 1 || c->out[1] % (rows + 1) == 0)) ++rows;
  if (rows * wide < least_rows) return;
  c->wide = wide, c->tile = rows * c->out[2];
  const i64 lines = rows + (c->filter[1] - 1) * c->tap[1], beyond = 64;  // pixels that a block reads and does not use
  c->gathered = static_cast<u64>((lines * wide + beyond) * c->channels * size_of(c->dtype));
  c->made = static_cast<u64>(rows * wide * kMostLanes * 4 * 2);
}

// Chooses how a convolution is computed, by its sizes and strides alone; threads say how many outputs a unit has. packed: whether its weight is.
inline void cut(Convolution* c, int threads, bool tiles) {
  const i64 taps = product(c->filter), pixels = c->batch * product(c->out), size = size_of(c->dtype);
  c->lanes_along_pixels = c->y_step.channel != 1 || c->outputs * c->groups == 1;
  const bool lies = c->filters_lie;
  c->channels_inner = c->filters_inner;
  // Few pixels are worth no packing of a weight that lies in rows of words; gathering in the order of its words is.
  // Of 1 x 1 filters whose outputs lie together, as those of gradients: the same matrix, turned.
  c->turned = taps == 1 && !lies && c->w_step.batch == 1;
  const bool gathers_apart = tiles && !c->channels_inner && kApart * pixels > c->outputs;
  c->packed = !c->turned && (!lies || (!c->lanes_along_pixels &&
                                       (gathers_apart || pixels > (c->channels_inner ? 2 * kMostRows : kFewPixels))));
  if (c->packed || c->turned) c->channels_inner = true;
  // Tiles of many units read rows that are copied to whole lines.
  if (tiles && c->lanes_along_pixels && c->channels * taps * size % kLineBytes != 0 && pixels > 2 * kMostLanes)
    c->packed = !c->turned;
  const i64 line = tiles ? kLineBytes / size : 1;
  if (c->packed)
    c->rows_step = divide_up(c->channels * taps, line) * line, c->rows_group = c->outputs * c->rows_step;
  else
    c->rows = c->w, c->rows_step = c->turned ? c->w_step.channel : c->w_step.batch, c->rows_group = c->w_group;
  cut_words(c, kMostWords);
  const i64 words = c->chunk.outer * c->chunk.inner;
  const i64 unit = c->lanes_along_pixels ? kLanes : tiles ? kTileRows : 1;
  const i64 least = c->lanes_along_pixels ? kLanes
                    : tiles               ? kTileRows
                                          : kLeastRows,
            most = c->lanes_along_pixels || tiles ? kMostLanes : kMostRows;
  i64 wish = tiles ? kTilesGathered / (words * size) : kGathered / (words * 4);
  if (tiles && threads > 1) wish = std::min(wish, divide_up(pixels * c->groups, threads));
  const i64 fit = std::clamp<i64>(wish / unit * unit, least, most);
  c->tile = std::max<i64>(1, divide_up(divide_up(pixels, std::max<i64>(1, divide_up(pixels, fit))), unit) * unit);
  c->gathered = static_cast<u64>(divide_up((divide_up(c->tile, 16) * 16 * (words + 64) + 64) * size, 64) * 64);
  c->made = static_cast<u64>(c->tile * kMostLanes * 4 * (c->chunks > 1 ? c->chunks + 2 : 2));
  if (tiles) cut_lines(c, threads > 1 ? wish : pixels);
  c->tiles = divide_up(pixels, c->tile);
  // Outputs are shared where tiles and groups are too few for the threads: whole panels of them.
  const i64 wanted = threads > 1 ? divide_up(3 * i64{threads}, std::max<i64>(1, c->tiles * c->groups)) : 1;
  c->some = divide_up(divide_up(c->outputs, std::min(wanted, divide_up(c->outputs, kLanes))), kLanes) * kLanes;
  if (c->chunks > 1) c->some = std::min<i64>(c->some, kMostLanes);
  c->parts = divide_up(c->outputs, c->some);
}

// Bytes of a tile of x of a depthwise convolution, and columns of its rows.
constexpr i64 kTileBytes = 256 << 10, kFewTapsBytes = 48 << 10, kFewTaps = 16, kTileColumns = 512;

// Cuts planes of out into tiles, for `units` a tile. Returns how many tiles there are of a plane.
inline i64 cut_planes(Convolution* c, i64 lanes, i64 units, int threads) {
  const auto even = [](i64 length, i64 most) { return divide_up(length, divide_up(length, most)); };
  const auto spread = [&](int i, i64 pixels) {
    return (pixels - 1) * c->step[i] + std::max<i64>(0, c->filter[i] - 1) * std::abs(c->tap[i]) + 1;
  };
  c->some = even(c->out[2], kTileColumns);
  const i64 row = std::max<i64>(1, c->filter[0]) * spread(2, c->some) * lanes * i64{sizeof(float)};
  const i64 bytes = product(c->filter) < kFewTaps ? kFewTapsBytes : kTileBytes;
  c->tile = even(c->out[1], std::max<i64>(1, (bytes / row - spread(1, 1)) / c->step[1]));
  // Tiles are halved where there are too few for the threads.
  const i64 wanted = threads > 1 ? 3 * i64{threads} : 1;
  while (c->tile > 4 && units * divide_up(c->out[1], c->tile) < wanted) c->tile = divide_up(c->tile, 2);
  c->gathered = static_cast<u64>(row * spread(1, c->tile));
  c->made = static_cast<u64>((c->tile * c->some + kLanes) * lanes + 2 * kLanes * kLanes) * sizeof(float);
  return divide_up(c->out[1], c->tile) * divide_up(c->out[2], c->some);
}

[[nodiscard]] inline tilekiln_status launch_depthwise(const Run& call, const Choice& choice, Convolution c) {
  const Engine& engine = *static_cast<const Engine*>(choice.engine);
  const i64 outputs = c.groups * c.outputs, vectors = divide_up(outputs, engine.lanes), taps = product(c.filter);
  const i64 planes = c.batch * c.out[0], tiles = cut_planes(&c, engine.lanes, vectors * planes, call.threads);
  CallMemory memory;
  TILEKILN_TRY(memory.get(call, static_cast<size_t>(vectors * engine.lanes * std::max<i64>(taps, 1)) * sizeof(float)));
  c.rows = memory.as<char>();
  const double work = static_cast<double>(planes * c.out[1] * c.out[2]) * static_cast<double>(outputs * (taps + 8));
  TILEKILN_TRY(launch_stage(call, choice, c, vectors, static_cast<double>(outputs * taps) * 8, 0,
                            [&](int64_t unit, void*) { engine.pack(c, unit, memory.as<char>()); }));
  return launch_stage(call, choice, c, planes * tiles * vectors, work, engine.scratch_bytes + c.gathered + c.made,
                      [&](int64_t unit, void* scratch) { engine.forward(c, unit, scratch); });
}

[[nodiscard]] inline tilekiln_status launch_forward(const Run& call, const Choice& choice, const Convolution& whole) {
  const Engine& engine = *static_cast<const Engine*>(choice.engine);
  Convolution c = whole;
  if (c.batch * product(c.out) == 0) return TILEKILN_OK;
  look_at_filters(&c);
  if (engine.lanes > 0) return launch_depthwise(call, choice, c);
  cut(&c, call.threads, engine.tiles);
  const i64 words = c.channels * product(c.filter);
  CallMemory memory;
  if (c.packed) {
    const i64 panels = divide_up(c.outputs, kLanes) * kLanes;
    TILEKILN_TRY(
        memory.get(call, static_cast<size_t>(c.groups * panels * (c.rows_step + 4 * c.chunks) * size_of(c.dtype))));
    c.rows = memory.as<char>();
    const i64 units = c.groups * (panels / kLanes);
    TILEKILN_TRY(launch_stage(call, choice, c, units, static_cast<double>(c.groups * c.outputs) * words * 8, 0,
                              [&](int64_t unit, void*) { engine.pack(c, unit, memory.as<char>()); }));
  }
  const double work = static_cast<double>(c.batch * product(c.out)) * static_cast<double>(c.groups * c.outputs) * words;
  return launch_stage(call, choice, c, c.tiles * c.groups * c.parts, work, engine.scratch_bytes + c.gathered + c.made,
                      [&](int64_t unit, void* scratch) { engine.forward(c, unit, scratch); });
}

// Units of the gradient of a weight that there are at least, if need be by parts of the pixels.
constexpr i64 kWeightUnits = 16, kWeightWords = 256, kWeightPixels = 512;

[[nodiscard]] inline tilekiln_status launch_weights(const Run& call, const Choice& choice,
                                                    const WeightGradient& whole) {
  const Engine& engine = *static_cast<const Engine*>(choice.engine);
  WeightGradient g = whole;
  Convolution& c = g.of;
  const i64 pixels = c.batch * product(c.out), words = c.channels * product(c.filter), rows = c.groups * c.outputs;
  i64 units = 0, sums = rows * words;  // of a part
  if (engine.lanes > 0) {
    units = divide_up(rows, engine.lanes), sums = units * engine.lanes * words;
    if (pixels > 0) c.tiles = c.batch * c.out[0] * cut_planes(&c, engine.lanes, 1, 1);
  } else {
    c.lanes_along_pixels = c.y_step.channel != 1 || c.outputs * c.groups == 1;
    c.channels_inner = !c.lanes_along_pixels;
    cut_words(&c, kWeightWords);
    const i64 unit = c.lanes_along_pixels ? kLanes : 1;
    c.tile =
        std::max<i64>(1, divide_up(divide_up(pixels, std::max<i64>(1, divide_up(pixels, kWeightPixels))), unit) * unit);
    c.tiles = divide_up(pixels, c.tile);
    c.gathered =
        static_cast<u64>(divide_up((c.tile + 64) * (c.chunk.outer * c.chunk.inner + 64) * size_of(c.dtype), 64) * 64);
    c.made = static_cast<u64>(divide_up(c.tile * c.outputs * size_of(c.dtype), 64) * 64);
    units = c.groups * c.chunks;
  }
  g.parts = std::clamp<i64>(kWeightUnits / units, 1, std::max<i64>(1, c.tiles));
  g.some = divide_up(c.tiles, g.parts);
  CallMemory memory;
  TILEKILN_TRY(memory.get(call, static_cast<size_t>(g.parts * sums) * sizeof(float)));
  g.sums = memory.as<float>();
  const double work = static_cast<double>(pixels) * static_cast<double>(rows) * static_cast<double>(words);
  TILEKILN_TRY(launch_stage(call, choice, g, g.parts * units, work, engine.scratch_bytes + c.gathered + c.made,
                            [&](int64_t number, void* scratch) { engine.weights(g, number, scratch); }));
  return launch_stage(call, choice, g, rows, static_cast<double>(g.parts * rows * words), 0,
                      [&](int64_t number, void*) { engine.add(g, number); });
}

}  // namespace tilekiln::conv
