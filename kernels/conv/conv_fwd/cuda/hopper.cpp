// SPDX-License-Identifier: MIT
// The hopper engine of convolutions: a checked call becomes one launch, or one behind those that pack its arrays. Compiled with
// -DTILEKILN_TARGET=<the target's name> and -DTILEKILN_KERNELS (held.h).
#include <algorithm>

#include "kernels/backends/cuda/held.h"
#include "kernels/conv/conv_fwd/cuda/params.h"
#include "kernels/gemm/gemm/cuda/shares.h"

#define TILEKILN_JOIN(a, b, c) a##b##c
#define TILEKILN_ENGINE(target) TILEKILN_JOIN(tilekiln_, target, _conv_fwd_hopper)

namespace tilekiln::cuda::conv {
namespace {

using gemm::divide_up;
using gemm::Shares;
using gemm::Tiles;
using Problem = tilekiln::conv::ForwardConvolution;
using tilekiln::conv::Steps;

constexpr i64 kBytes = 2;  // of an element
i64 up_to(i64 multiple, i64 length) { return divide_up(length, multiple) * multiple; }
template <class Length> i64 product(const Length* lengths, int count) {
  i64 made = 1;
  for (int i = 0; i < count; ++i) made *= lengths[i];
  return made;
}
void turn(const i64 (&from)[3], int* to) {
  for (int d = 0; d < 3; ++d) to[d] = static_cast<int>(from[2 - d]);
}
void turn(const Steps& from, i64* to) {
  for (int d = 0; d < 3; ++d) to[d] = from.at[2 - d];
  to[3] = from.batch;
}

// An array of five dimensions as TMA reads it; steps in elements, the first one is 1.
struct View {
  const char* data;
  i64 length[5], step[5];

  [[nodiscard]] bool follows() const {
    constexpr i64 most = i64{1} << 38;
    bool sound = reinterpret_cast<uintptr_t>(data) % 16 == 0;
    for (int d = 0; d < 5; ++d) sound = sound && length[d] <= INT32_MAX;
    for (int d = 1; d < 5; ++d)
      sound = sound && (length[d] == 1 || (step[d] > 0 && step[d] % 8 == 0 && step[d] < most));
    return sound;
  }
};

// A convolution as it is launched: the view of x, that of the filters, and what must be packed for them.
struct Work {
  Params params = {};
  View x = {}, w = {};
  Packed of_x = {}, of_w = {};
  bool packs_x = false, packs_w = false;
  bool planes = false;  // x is read as it lies, pixels together
};

// Pixels that filters of one pixel step over are no part of x, and dimensions of such filters whose pixels follow each other are one.
void simplify(Problem* c) {
  bool alone = true;
  for (int d = 0; d < 3; ++d) {
    const bool one = c->filter[d] == 1 && c->start[d] == 0 && (c->out[d] - 1) * c->step[d] < c->in[d];
    if (one) c->in[d] = c->out[d], c->x_step.at[d] *= c->step[d], c->step[d] = 1;
    alone = alone && one;
  }
  const auto follow = [&](i64 x, i64 y, i64 residual) {
    const i64 pixels = c->out[2];
    return x == pixels * c->x_step.at[2] && y == pixels * c->y_step.at[2] &&
           (c->residual == nullptr || residual == pixels * c->residual_step.at[2]);
  };
  for (int d = 1; d >= 0 && alone; --d) {
    if (c->out[d] == 1) continue;
    alone = follow(c->x_step.at[d], c->y_step.at[d], c->residual_step.at[d]) && c->out[2] * c->out[d] <= INT32_MAX;
    if (alone) c->in[2] = c->out[2] *= c->out[d], c->in[d] = c->out[d] = 1;
  }
  if (alone && follow(c->x_step.batch, c->y_step.batch, c->residual_step.batch) && c->out[2] * c->batch <= INT32_MAX)
    c->in[2] = c->out[2] *= c->batch, c->batch = 1;
}

Output output_of(const Problem& c) {
  Output of = {};
  of.y.data = c.y, of.residual.data = const_cast<char*>(c.residual);
  turn(c.y_step, of.y.step), turn(c.residual_step, of.residual.step);
  of.y.channel = c.y_step.channel, of.residual.channel = c.residual_step.channel;
  of.bias = c.bias;
  of.clamp_min = c.clamp_min, of.clamp_max = c.clamp_max, of.activation = static_cast<int>(c.activation);
  turn(c.out, of.out);
  of.out[3] = static_cast<int>(c.batch), of.outputs = static_cast<int>(c.outputs);
  const auto wide = [&](const Pixels& array, i64 elements) {
    bool sound = array.channel == 1 &&
                 reinterpret_cast<uintptr_t>(array.data) % static_cast<uintptr_t>(elements * kBytes) == 0 &&
                 (c.groups == 1 || c.outputs % elements == 0);
    for (int d = 0; d < 4; ++d) sound = sound && (of.out[d] == 1 || array.step[d] % elements == 0);
    return sound;
  };
  const auto rows = [&](i64 elements) {  // pixels of y, side by side in rows that begin at so many
    bool sound = reinterpret_cast<uintptr_t>(c.y) % static_cast<uintptr_t>(elements * kBytes) == 0 &&
                 (c.groups * c.outputs == 1 || of.y.channel % elements == 0);
    for (int d = 1; d < 4; ++d) sound = sound && (of.out[d] == 1 || of.y.step[d] % elements == 0);
    return sound;
  };
  of.features = (wide(of.y, 8) ? kWide : 0) | (wide(of.residual, 2) ? kWideResidual : 0) |
                (of.y.channel != 1 && of.y.step[0] == 1 && !rows(8) ? kStaged : 0) | (rows(2) ? kEven : 0);
  return of;
}

// Pixels of a copy, 2^32 - 1 of more.
unsigned pixels_of(i64 images, const Packed& p) {
  return static_cast<unsigned>(std::min<i64>(images * product(p.out, 3), UINT32_MAX));
}
Packed packed_x(const Problem& c) {
  Packed p = {};
  p.from = c.x, p.channel = c.x_step.channel;
  turn(c.x_step, p.step), turn(c.in, p.in), turn(c.in, p.out);
  p.channels = static_cast<int>(c.channels), p.groups = static_cast<int>(c.groups);
  p.pixels = pixels_of(c.batch, p);
  return p;
}
Packed packed_w(const Problem& c, i64 padded, i64 across) {
  Packed p = {};
  p.from = c.w, p.channel = c.w_step.channel;
  turn(c.w_step, p.step), turn(c.filter, p.in), turn(c.filter, p.out);
  p.out[0] = static_cast<int>(across);
  p.channels = static_cast<int>(c.channels), p.padded = static_cast<int>(padded), p.groups = 1;
  p.pixels = pixels_of(c.groups * c.outputs, p);
  return p;
}

// Elements of a row of pixels of the copy that `lay_in_rows` makes.
i64 row_channels(const Problem& c) {
  i64 padded = c.channels;
  while (padded * c.step[2] % 8 != 0) ++padded;
  return padded;
}

// Taps along x, and their channels, become channels of a copy with its padding inside: rows of x overlap in the view of it.
void lay_in_rows(const Problem& c, Work* work) {
  Params& p = work->params;
  const i64 padded = row_channels(c), run = c.filter[2] * padded;
  Packed& x = work->of_x = packed_x(c);
  work->packs_x = work->packs_w = true;
  x.padded = static_cast<int>(padded);
  const auto reach = [&](int d) {
    return static_cast<int>((c.out[d] - 1) * c.step[d] + (c.filter[d] - 1) * c.tap[d] + 1);
  };
  x.out[0] = reach(2), x.out[1] = reach(1), x.out[2] = 1;
  while (x.out[0] * padded % 8 != 0) ++x.out[0];
  x.before[0] = static_cast<int>(-c.start[2]), x.before[1] = static_cast<int>(-c.start[1]);
  x.pixels = pixels_of(c.batch, x);
  const i64 row = x.out[0] * padded, rows = c.filter[1];
  work->x = {nullptr,
             {run, c.out[2], c.out[1], rows, c.batch},
             {1, c.step[2] * padded, c.step[1] * row, c.tap[1] * row, x.out[1] * row}};
  i64 across = c.filter[2];
  while (across * padded % 8 != 0) ++across;
  work->of_w = packed_w(c, padded, across);
  work->w = {nullptr, {run, c.outputs, rows, 1, 1}, {1, rows * across * padded, across * padded, 8, 8}};
  for (int d = 0; d < 3; ++d) p.step[d] = 1, p.tap[d] = 0, p.begin[d] = 0, p.filter[d] = 1;
  p.tap[2] = 1, p.filter[2] = static_cast<int>(rows);
  p.channels = static_cast<int>(run);
}

// Views x as planes of pixels, where filters have one pixel and a tile of them is mostly full.
bool lay_in_planes(const Problem& c, Work* work) {
  Params& p = work->params;
  const bool alone =
      product(c.filter, 3) == 1 && c.in[0] == 1 && c.in[1] == 1 && c.in[2] == c.out[2] && c.start[2] == 0;
  if (!alone || c.x_step.at[2] != 1 || c.y_step.channel == 1 || c.out[2] < kPlane / 2 ||
      (c.groups > 1 && c.channels % kDepth != 0))
    return false;
  work->x = {c.x, {c.in[2], c.channels * c.groups, c.batch, 1, 1}, {1, c.x_step.channel, c.x_step.batch, 8, 8}};
  p.strips = static_cast<int>(divide_up(c.out[2], kPlane));
  return work->planes = work->x.follows();
}

// Views the filters, packed where they must be.
void lay_filters(const Problem& c, Work* work) {
  const i64 taps = product(c.filter, 3);
  i64 tap = 1, each = c.w_step.at[2];
  bool even = c.channels == 1 || c.w_step.channel == 1;
  for (int d = 2; d >= 0; --d) {
    if (c.filter[d] == 1) continue;
    if (tap == 1) each = c.w_step.at[d];
    even = even && c.w_step.at[d] == each * tap;
    tap *= c.filter[d];
  }
  work->w = {c.w, {c.channels, c.outputs, taps, c.groups, 1}, {1, c.w_step.batch, each, c.w_group, 8}};
  if (even && work->w.follows()) return;
  const i64 padded = up_to(8, c.channels);
  work->of_w = packed_w(c, padded, c.filter[2]);
  work->packs_w = true;
  work->w = {
      nullptr, {c.channels, c.outputs, taps, c.groups, 1}, {1, taps * padded, padded, c.outputs * taps * padded, 8}};
}

// The views of a convolution, its arrays packed where they must be. False: products cannot do it.
bool lay(const Problem& c, Work* work) {
  Params& p = work->params;
  turn(c.step, p.step), turn(c.tap, p.tap), turn(c.start, p.begin), turn(c.filter, p.filter);
  p.channels = static_cast<int>(c.channels), p.chunks = static_cast<int>(divide_up(c.channels, kDepth));
  if (lay_in_planes(c, work)) {
    lay_filters(c, work);
    return true;
  }
  const bool flat = c.in[0] == 1 && c.filter[0] == 1 && c.out[0] == 1 && c.start[0] == 0;
  constexpr i64 most_step = 8;  // of a map
  bool steps = true;
  for (int d = 0; d < 3; ++d) {
    if (p.of.out[d] == 1) p.step[d] = 1;
    steps = steps && p.step[d] <= most_step;
  }
  const bool apart = c.groups > 1 && c.channels % kDepth != 0 && flat;  // groups have a dimension of their own
  const auto view = [&](const char* data, i64 channels, const i64* step, i64 group) {
    return View{
        data,
        {apart ? channels : group * (c.groups - 1) + channels, c.in[2], c.in[1], apart ? c.groups : c.in[0], c.batch},
        {1, step[0], step[1], apart ? group : step[2], step[3]}};
  };
  i64 step[4];
  turn(c.x_step, step);
  work->x = view(c.x, c.channels, step, c.channels);
  p.groups_apart = apart ? 1 : 0;
  const bool together = c.x_step.channel == 1 || c.channels * c.groups == 1;
  const bool others =
      c.groups > 1 && c.channels % kDepth != 0 && !apart;  // a chunk would have channels of other groups
  if (!steps || !together || !work->x.follows() || others) {
    const bool rows = c.groups == 1 && flat && (c.tap[2] == 1 || c.filter[2] == 1);
    const i64 each = c.filter[2] * divide_up(c.channels, kDepth);
    if (rows && (!steps || divide_up(c.filter[2] * row_channels(c), kDepth) < each)) {
      lay_in_rows(c, work);
      p.chunks = static_cast<int>(divide_up(p.channels, kDepth));
      return true;
    }
    if (!steps) return false;
    Packed& x = work->of_x = packed_x(c);
    work->packs_x = true;
    x.padded = static_cast<int>(up_to(c.groups == 1 || apart ? 8 : kDepth, c.channels));
    const i64 pixel = i64{x.padded} * c.groups;
    const i64 to[4] = {pixel, pixel * c.in[2], pixel * c.in[2] * c.in[1], pixel * c.in[2] * c.in[1] * c.in[0]};
    work->x = view(nullptr, x.padded, to, x.padded);
    p.channels = x.padded;
  }
  lay_filters(c, work);
  return true;
}

tilekiln_status launch_pack(const Site& site, const Kernel* kernel, Packed p, bool early) {
  const bool few = p.padded <= kPackFew && p.groups == 1;
  // Dimensions without zeros around them, whose pixels follow each other, are one.
  for (int d = 1; d < 3; ++d) {
    if (p.out[d] == 1 && p.in[d] == 1 && p.before[d] == 0) continue;
    if (p.out[0] != p.in[0] || p.out[d] != p.in[d] || p.before[d] != 0 || p.step[d] != p.step[0] * p.in[0]) break;
    p.in[0] = p.out[0] *= p.in[d], p.in[d] = p.out[d] = 1;
  }
  bool pairs = p.step[0] == 1 && p.in[0] % 2 == 0 && p.out[0] % 2 == 0 && p.before[0] % 2 == 0 && p.channel % 2 == 0 &&
               reinterpret_cast<uintptr_t>(p.from) % 4 == 0;
  for (int d = 1; d < 4; ++d) pairs = pairs && ((d < 3 && p.in[d] == 1) || p.step[d] % 2 == 0);
  p.pairs = pairs ? 1 : 0;
  const i64 down = divide_up(p.pixels, few ? kPackThreads : kPackPixels),
            across = few ? 1 : divide_up(p.padded, kPackChannels);
  if (p.pixels > INT32_MAX || across > UINT16_MAX || p.groups > UINT16_MAX)
    return fail_argument("x", "had %u pixels, %d channels and %d groups, must have fewer to be packed on cuda",
                         p.pixels, p.channels, p.groups);
  return launch(site, {kernel,
                       few ? "conv_pack_few" : "conv_pack",
                       {static_cast<unsigned>(down), static_cast<unsigned>(across), static_cast<unsigned>(p.groups)},
                       kPackThreads,
                       0,
                       &p,
                       false,
                       early});
}

tilekiln_status encode_view(const char* name, const View& view, const Problem& c, const uint32_t (&box)[4],
                            const int* step, int device, TensorMap* map) {
  RowArray array = {name, view.data, c.dtype == matrix::Dtype::fp16 ? TILEKILN_FP16 : TILEKILN_BF16, {}, {}};
  for (int d = 0; d < 5; ++d) array.lengths[d] = static_cast<uint64_t>(view.length[d]);
  for (int d = 1; d < 5; ++d) {
    array.strides[d - 1] = static_cast<uint64_t>(view.length[d] == 1 ? 16 : view.step[d] * kBytes);
    array.every[d - 1] = box[d - 1] > 1 && step != nullptr && d < 4 ? static_cast<uint32_t>(step[d - 1]) : 1;
    if (d > 1) array.further[d - 2] = box[d - 1] * array.every[d - 1];
  }
  return encode(array, box[0] * array.every[0], device, map);
}

// The box of the fewest tiles, and of those the longest along x; staged rows of y gain by length.
i64 choose_box(int least_x, Params* p) {
  i64 best = INT64_MAX, found = 0;
  const bool staged = p->of.features & kStaged;
  for (int x = 7; x >= least_x; --x)
    for (int y = 7 - x; y >= 0; --y)
      for (int z = p->of.out[2] == 1 ? 0 : 7 - x - y; z >= 0; --z) {
        const int shift[4] = {x, y, z, 7 - x - y - z};
        i64 tiles = 1;
        bool fits = true;
        for (int d = 0; d < 4; ++d) {
          tiles *= divide_up(p->of.out[d], i64{1} << shift[d]);
          fits = fits && (d == 3 || shift[d] == 0 || p->step[d] << shift[d] <= 256);
        }
        const i64 cost = tiles * (staged && x < 5 ? 13 - x : 8);
        if (!fits || cost >= best) continue;
        best = cost, found = tiles;
        std::copy_n(shift, 4, p->shift);
      }
  for (int d = 0; d < 4; ++d) p->tiles[d] = static_cast<int>(divide_up(p->of.out[d], i64{1} << p->shift[d]));
  return found;
}

// Bytes a ns that L2 gives to one CTA, to all, and takes of parts; what a cluster takes to add up, and memory of parts and counters.
constexpr double one_l2 = 100, all_l2 = 9300, parts_l2 = 2000, split_ns = 2000, memory_ns = 4000;

// The kernel of the least estimated time, and its shares. Pairs of CTAs that share their reads of filters (multicast), which products gain
// by, are not among them: untried on a GPU but in a form that did not end there.
Tiles choose_tiles(const Problem& c, bool planes, i64 boxes, i64 steps, i64 workers, Shares* shares) {
  const bool across = c.y_step.channel != 1;
  Tiles best = {};
  const auto consider = [&](const Form& form, int splits) {
    Tiles one = {};
    one.function = form.function, one.rows = one.part_rows = kTileRows, one.columns = form.columns;
    one.compute_ns = std::max(2080.0 / form.stages, 2.77 * form.columns);
    one.stage_bytes = (kTileRows + form.columns) * kDepth * kBytes;
    one.cta_l2 = one_l2, one.l2 = all_l2, one.parts_l2 = parts_l2, one.ctas = 1, one.splits = splits;
    const i64 all = boxes * divide_up(c.outputs, across ? kTileRows : form.columns) * c.groups;
    Shares its = {all, all, 0};
    if (splits == 1) {
      its = gemm::share(one, all, steps, workers, 0);
      if (its.whole < all) its.ns += memory_ns;
    } else if (all <= (splits == 4 ? workers * 3 / 4 : workers) / splits && steps >= 2 * splits) {
      its.ns = static_cast<double>(divide_up(steps, splits)) * one.stage_ns(all * splits) + split_ns;
    } else {
      return;
    }
    if (best.function == nullptr || its.ns < shares->ns) best = one, *shares = its;
  };
  for (const Form& form : kForms) {
    if (form.across != across || form.planes != planes) continue;
    for (int splits = 1; splits <= form.splits; splits *= 2) consider(form, splits);
  }
  return best;
}

tilekiln_status launch_products(const Site& site, const Kernel* kernel, const Problem& c, Work* work) {
  Params& p = work->params;
  const Build& build = *static_cast<const Build*>(kernel->build);
  const bool across = c.y_step.channel != 1;
  const bool planes = work->planes;
  const i64 boxes = planes ? divide_up(p.strips * c.batch, kTileRows / kPlane) : choose_box(across ? 3 : 0, &p);
  const i64 steps = i64{p.chunks} * product(p.filter, 3);
  const int device = site.device.id;
  Shares shares = {};
  const Tiles tiles = choose_tiles(c, planes, boxes, steps, facts(device)->multiprocessors, &shares);
  const i64 outputs = divide_up(c.outputs, across ? kTileRows : tiles.columns);
  if (boxes > INT32_MAX / 2 / outputs / c.groups || steps > INT32_MAX / 2)
    return fail_argument("y", "had %lld tiles of %lld steps, must have fewer than 2^30 on cuda", boxes * outputs,
                         steps);
  TileGrid& grid = p.grid;
  grid.tiles_m = static_cast<int>(across ? outputs : boxes), grid.tiles_n = static_cast<int>(across ? boxes : outputs);
  grid.tiles = static_cast<int>(boxes * outputs * c.groups), grid.steps = static_cast<int>(steps);
  grid.group = 16, grid.splits = tiles.splits;
  grid.whole = static_cast<int>(shares.whole), grid.shared = static_cast<int>((grid.tiles - shares.whole) * steps);
  p.filters = across ? (c.outputs <= 64 ? 64 : kTileRows) : tiles.columns;
  const i64 of_x = work->packs_x ? up_to(128, i64{work->of_x.pixels} * c.groups * work->of_x.padded * kBytes) : 0;
  const i64 of_w = work->packs_w ? up_to(128, i64{work->of_w.pixels} * work->of_w.padded * kBytes) : 0;
  const i64 of_parts = grid.shared > 0 ? 2 * shares.grid * tiles.part_bytes() : 0;
  LaunchMemory memory;
  if (of_x + of_w + of_parts > 0) {
    constexpr int warpgroups = 2;
    TILEKILN_TRY(memory.take(site, static_cast<size_t>(of_x + of_w + of_parts),
                             static_cast<uint32_t>(grid.shared > 0 ? warpgroups * (grid.tiles - grid.whole) : 0)));
    char* const data = static_cast<char*>(memory.data());
    if (work->packs_x) work->x.data = work->of_x.to = data;
    if (work->packs_w) work->w.data = work->of_w.to = data + of_x;
    grid.partials = reinterpret_cast<float4*>(data + of_x + of_w), grid.arrivals = memory.zeros();
  }
  uint32_t box[4] = {planes ? uint32_t{kDepth} : 1, 1, 1, 1};
  for (int d = 0; d < 4 && !planes; ++d) box[d] = uint32_t{1} << p.shift[d];
  TILEKILN_TRY(encode_view("x", work->x, c, box, planes ? nullptr : p.step, device, &p.x));
  TILEKILN_TRY(encode_view("weight", work->w, c, {static_cast<uint32_t>(p.filters), 1, 1, 1}, nullptr, device, &p.w));
  if (work->packs_w) TILEKILN_TRY(launch_pack(site, kernel, work->of_w, false));
  if (work->packs_x) TILEKILN_TRY(launch_pack(site, kernel, work->of_x, work->packs_w));
  return launch(site, {kernel,
                       tiles.function,
                       {static_cast<unsigned>(shares.grid * tiles.splits), 1, 1},
                       static_cast<unsigned>(build.threads),
                       static_cast<unsigned>(build.shared_bytes),
                       &p,
                       false,
                       work->packs_x || work->packs_w || of_parts == 0,
                       static_cast<unsigned>(tiles.splits)});
}

// Kernels of depthwise filters: of outputs apart, and of words of two.
struct Depthwise { const char *one, *two; };
constexpr Depthwise depthwise[2][2] = {
    {{"conv_depthwise_3_1", "conv_pairs_3_1"}, {"conv_depthwise_3_2", "conv_pairs_3_2"}},
    {{"conv_depthwise_7_1", "conv_pairs_7_1"}, {"conv_depthwise_7_2", "conv_pairs_7_2"}}};

// Tells whether words of two outputs lie together in x and y.
bool in_pairs(const Problem& c, const Output& of) {
  const auto words = [&](const char* data, i64 channel, const i64* step, const int* length) {
    bool sound = channel == 1 && reinterpret_cast<uintptr_t>(data) % 4 == 0;
    for (int d = 0; d < 4; ++d) sound = sound && (length[d] == 1 || step[d] % 2 == 0);
    return sound;
  };
  i64 step[4];
  int in[4];
  turn(c.x_step, step), turn(c.in, in), in[3] = of.out[3];
  return c.outputs == 1 && c.groups % 2 == 0 && words(c.x, c.x_step.channel, step, in) &&
         words(of.y.data, of.y.channel, of.y.step, of.out);
}

tilekiln_status launch_direct(const Site& site, const Kernel* kernel, const Problem& c, const Output& of) {
  Direct p = {};
  p.of = of, p.x = c.x, p.w = c.w;
  turn(c.x_step, p.x_step), p.x_channel = c.x_step.channel;
  i64 step[4];
  turn(c.w_step, step);
  std::copy_n(step, 3, p.w_step);
  p.w_channel = c.w_step.channel, p.w_output = c.w_step.batch;
  turn(c.step, p.step), turn(c.tap, p.tap), turn(c.start, p.begin), turn(c.filter, p.filter), turn(c.in, p.in);
  p.channels = static_cast<int>(c.channels), p.groups = static_cast<int>(c.groups);
  p.all = product(of.out, 4) * c.groups * c.outputs;
  const char* function = "conv_direct";
  LaunchMemory memory;
  const i64 steps = of.out[0] == 1 ? 1 : c.step[2], strips = divide_up(of.out[0], kAcross) * product(of.out + 1, 3);
  const bool strides = c.channels == 1 && steps <= 2 && (c.tap[2] == 1 || c.filter[2] == 1) &&
                       strips * c.groups * c.outputs <= INT32_MAX;
  const bool pairs = strides && in_pairs(c, of);
  if (strides) {
    const Depthwise& of_taps = depthwise[c.filter[2] <= 3 ? 0 : 1][steps - 1];
    function = pairs ? of_taps.two : of_taps.one;
    p.all = strips * (pairs ? c.groups / 2 : c.groups * c.outputs);
  }
  if (pairs) {
    // Filters become (tap, output).
    Packed w = packed_w(c, c.groups, c.filter[2]);
    w.channel = c.w_step.batch, w.channels = static_cast<int>(c.groups), w.pixels = pixels_of(1, w), w.step[3] = 0;
    TILEKILN_TRY(memory.take(site, static_cast<size_t>(up_to(16, i64{w.pixels} * w.padded * kBytes)), 0));
    w.to = static_cast<char*>(memory.data());
    TILEKILN_TRY(launch_pack(site, kernel, w, false));
    p.w = w.to, p.w_output = 1;
    p.w_step[0] = c.groups, p.w_step[1] = c.groups * c.filter[2], p.w_step[2] = p.w_step[1] * c.filter[1];
  }
  const i64 blocks = divide_up(p.all, kDirectThreads);
  if (blocks > INT32_MAX) return fail_argument("y", "had %lld numbers, must have fewer than 2^39 on cuda", p.all);
  return launch(site, {kernel, function, {static_cast<unsigned>(blocks), 1, 1}, kDirectThreads, 0, &p, false, true});
}

tilekiln_status launch_convolution(const Site& site, const void* problem) {
  Problem c = *static_cast<const Problem*>(problem);
  if (c.batch * product(c.out, 3) == 0) return TILEKILN_OK;
  const bool fp16 = c.dtype == matrix::Dtype::fp16;
  const Kernel* const kernel =
      find_held([&](const Kernel& one) { return (static_cast<const Build*>(one.build)->fp16 != 0) == fp16; });
  if (kernel == nullptr) return fail(TILEKILN_INTERNAL, "the library has conv_fwd for cuda without its kernel");
  constexpr i64 few = 16;  // of a group: tensor cores would multiply mostly zeros
  simplify(&c);
  Work work;
  work.params.of = output_of(c);
  const bool fine = product(c.in, 3) == 0 || (c.groups > 1 && (c.channels < few || c.outputs < few));
  if (fine || !lay(c, &work)) return launch_direct(site, kernel, c, work.params.of);
  return launch_products(site, kernel, c, &work);
}

}  // namespace
}  // namespace tilekiln::cuda::conv

extern "C" const tilekiln::cuda::Engine TILEKILN_ENGINE(TILEKILN_TARGET) = {tilekiln::cuda::conv::launch_convolution};
