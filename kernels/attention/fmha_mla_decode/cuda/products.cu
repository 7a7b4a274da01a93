// SPDX-License-Identifier: MIT
// Latent attention on Hopper by products of warpgroups, for 64 pairs of a query and a head.
//
// Tiles of 64 rows of the cache come into two stages, by TMA, or by a warpgroup: of e4m3, which it widens, and where
// TMA does not follow. Consumer w owns the tiles of stage w:
//
//   s = q row^T, p = exp2(scale s - most)     of the tiles that it owns; most is that of all tiles before, too
//   o += p row                                of all tiles, for columns [256 w, 256 w + 256)
//
// so one consumer's softmax lies under the other's products, and p goes from one to the other in shared memory. A
// stage is a half for each consumer, which that consumer alone releases, and the rotary part, which its owner does.
//
// Shared memory: q 72 KB, two stages of 72 KB, p 8 KB. Registers of a consumer: o 128, s 32, p 16.
//
// -D: LOADER_REGISTERS, REGISTERS, MOVER_REGISTERS, FEWER_REGISTERS (of loaders and consumers; where a warpgroup stores
// rows).
#include <type_traits>

#include "kernels/attention/cuda/coordinates.h"
#include "kernels/attention/fmha_mla_decode/cuda/combine.h"
#include "kernels/backends/cuda/tile/fragment.h"
#include "kernels/backends/cuda/tile/pipeline.h"
#include "kernels/backends/cuda/tile/roles.h"

namespace tilekiln::cuda::mla {

constexpr int kHalf = kMostValues / 2, kRotary = kMostDims - kMostValues;
using Warps = Roles<2, LOADER_REGISTERS, REGISTERS>;
using MovingWarps = Roles<2, MOVER_REGISTERS, FEWER_REGISTERS>;
static_assert(Warps::kThreads == kProductThreads);
using Half = SharedTile<BuildElement, kKeys, kHalf, Major::K>;
using Rotary = SharedTile<BuildElement, kKeys, kRotary, Major::K>;
using Weights = SharedTile<BuildElement, kProductRows, kKeys, Major::K>;
using Halves = PipelineApart<Half, 2>;
using Rotaries = PipelineApart<Rotary, 2>;
template <class Pipe> using Loader = Producer<Pipe, CountedState<2>>;
template <class Pipe> using Reader = Consumer<Pipe, CountedState<2>>;

struct Shared {
  Half q[2], keys[2][2];  // by half; by half and stage
  Rotary q_rotary, rotary[2];
  Weights weights;
  float2 state[kProductRows];  // the maximum, and what earlier sums are multiplied with
  float sums[2][kProductRows];
  Barriers<2> of_keys[2], of_rotary;

  __device__ __forceinline__ void init(int loaders) {
    for (auto& each : of_keys) each.init(loaders, Warps::arrivals(1, 1));
    of_rotary.init(loaders, Warps::arrivals(1, 1));
  }
};
static_assert(sizeof(Shared) <= 232448, "a CTA of Hopper has 227 KB of shared memory");

constexpr int kThere = 1, kLoaded = 3;  // named barriers: weights of a consumer's tile; q

// A lane's box of a tile: its row of the tile, the row of the cache, and how many mean something.
struct Box {
  int to, from, left;

  __device__ __forceinline__ Box(const Params& p, const Place<kProductRows>& at, int tile, int lane)
      : to(lane * p.box), from(0) {
    const int key = at.begin + tile * kKeys + to;
    int page = at.batch, in_page = key;
    left = to < kKeys ? max(min(at.end - key, p.box), 0) : 0;
    if (p.table != nullptr && left > 0) {
      const int number = key / p.page_size;
      page = __ldg(p.table + at.batch * p.table_row + number), in_page = key - number * p.page_size;
      if (unsigned(page) >= unsigned(p.pages)) left = 0;
    }
    if (left > 0) from = page * p.page_rows + in_page;
  }
};

// A warp that copies tiles, a lane a box of a page. Rows from `end` on, and pages out of the pool, are zeros.
TILEKILN_DEVICE void load(const Params& p, Shared& s, const Place<kProductRows>& at, int lane) {
  const int tiles = at.tiles();
  Loader<Halves> halves[2] = {Loader<Halves>({s.keys[0], s.of_keys[0]}), Loader<Halves>({s.keys[1], s.of_keys[1]})};
  Loader<Rotaries> rotaries({s.rotary, s.of_rotary});
  Box next(p, at, 0, lane);
#pragma unroll 1
  for (int tile = 0; tile < tiles; ++tile) {
    const Box box = next;
    if (tile + 1 < tiles) next = Box(p, at, tile + 1, lane);
    const auto copy = [&](auto& to, int column) {
      const auto& stage = to.acquire();
      if (lane == 0) to.expect(stage.kBytes);
      __syncwarp();
      if (box.to >= kKeys) return;
#pragma unroll
      for (int i = 0; i < stage.kPanels; ++i)
        tensor_load(stage.address() + i * stage.kPanelBytes + box.to * 128, p.map, to.full(), column + 64 * i,
                    kFar - box.left, box.from + box.left, kFar, 0);
    };
    copy(rotaries, kMostValues);
    if (tile & 1) {  // its owner's half first, which is free first
      copy(halves[1], kHalf), copy(halves[0], 0);
    } else {
      copy(halves[0], 0), copy(halves[1], kHalf);
    }
    rotaries.advance(), halves[0].advance(), halves[1].advance();
  }
}

// Four of e4m3, times their factor, rounded.
TILEKILN_DEVICE void widen(uint32_t four, float by, uint32_t& low, uint32_t& high) {
  float w, x, y, z;
  unpack_e4m3(four, w, x, y, z);
  low = pack(w * by, x * by), high = pack(y * by, z * by);
}

// A warpgroup that stores tiles: a warp 16 rows. kBytes: of 512 e4m3, 4 factors, 64 bf16, half a warp the half of one.
template <bool kBytes> struct Mover {
  const Params& p;
  Shared& s;
  const Place<kProductRows>& at;
  const int warp, lane;

  // Offset of row lane % 16 of a warp's.
  __device__ __forceinline__ long long find(int tile) const {
    return at.place_of(at.begin + tile * kKeys + warp * 16 + (lane & 15));
  }
  __device__ __forceinline__ const uint8_t* row_at(long long place) const {
    return static_cast<const uint8_t*>(p.cache) + place * (kBytes ? 1 : 2);
  }
  // Has lines of a row on their way to L2, half of them a lane.
  __device__ __forceinline__ void ask_for(long long place) const {
    if (place < 0) return;
    constexpr int kLine = kBytes ? 128 : 192;
#pragma unroll
    for (int i = 0; i < 3; ++i) prefetch_l2(row_at(place) + ((lane >> 4) * 3 + i) * kLine);
  }
  __device__ __forceinline__ void copy_half(const Loader<Halves>& to, int half, long long place) const {
    constexpr int kEach = 8;
#pragma unroll
    for (int first = 0; first < 16; first += kEach) {
      uint4 piece[kEach];
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const long long from = __shfl_sync(~0u, place, first + i);
        const int column = half * kHalf + lane * 8;
        piece[i] = load_vector_if(from >= 0 && column < p.hdim_q, row_at(from) + column * 2);
      }
      const auto& stage = to.acquire();
#pragma unroll
      for (int i = 0; i < kEach; ++i) store_shared(stage.at(lane / 8, warp * 16 + first + i, lane % 8), piece[i]);
    }
    to.commit_stores(lane);
  }
  __device__ __forceinline__ void widen_half(const Loader<Halves>& to, int half, long long place) const {
    constexpr int kEach = 8;
    const int c = lane & 15;
    uint4 piece[kEach];
    float factor[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const long long from = __shfl_sync(~0u, place, 2 * i + (lane >> 4));
      const uint8_t* const row = row_at(from);
      piece[i] = load_vector_if(from >= 0, row + half * kHalf + c * 16);
      factor[i] = load_if(from >= 0, reinterpret_cast<const float*>(row + kMostValues) + half * 2 + c / 8);
    }
    const auto& stage = to.acquire();
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      uint4 a, b;
      widen(piece[i].x, factor[i], a.x, a.y), widen(piece[i].y, factor[i], a.z, a.w);
      widen(piece[i].z, factor[i], b.x, b.y), widen(piece[i].w, factor[i], b.z, b.w);
      const int row = warp * 16 + 2 * i + (lane >> 4), turn = c >> 2 & 1;  // two panels: their banks take turns
      store_shared(stage.at(c / 4, row, 2 * c % 8 + turn), turn ? b : a);
      store_shared(stage.at(c / 4, row, 2 * c % 8 + 1 - turn), turn ? a : b);
    }
    to.commit_stores(lane);
  }
  __device__ __forceinline__ void copy_rotary(const Loader<Rotaries>& to, long long place) const {
    uint4 piece[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const long long from = __shfl_sync(~0u, place, 4 * i + lane / 8);
      const bool there = from >= 0 && (kBytes || kMostValues + lane % 8 * 8 < p.hdim_q);
      piece[i] = load_vector_if(there, row_at(from) + (kBytes ? kMostValues + 16 : 2 * kMostValues) + lane % 8 * 16);
    }
    const auto& stage = to.acquire();
#pragma unroll
    for (int i = 0; i < 4; ++i) store_shared(stage.at(0, warp * 16 + 4 * i + lane / 8, lane % 8), piece[i]);
    to.commit_stores(lane);
  }
  __device__ __forceinline__ void run() const {
    Loader<Halves> halves[2] = {Loader<Halves>({s.keys[0], s.of_keys[0]}), Loader<Halves>({s.keys[1], s.of_keys[1]})};
    Loader<Rotaries> rotaries({s.rotary, s.of_rotary});
    const int tiles = at.tiles();
    long long next = find(0);
#pragma unroll 1
    for (int tile = 0; tile < tiles; ++tile) {
      const long long place = next;
      next = find(tile + 1);
      ask_for(next);
      copy_rotary(rotaries, place);
      const auto move = [&](int half) {
        if constexpr (kBytes)
          widen_half(halves[half], half, place);
        else
          copy_half(halves[half], half, place);
      };
      if (tile & 1) {
        move(1), move(0);
      } else {
        move(0), move(1);
      }
      rotaries.advance(), halves[0].advance(), halves[1].advance();
    }
  }
};

// A consumer's columns of all rows.
struct Columns {
  const Params& p;
  Shared& s;
  const Place<kProductRows>& at;
  const Warpgroup w;
  const int lane, row;  // the first of two of a lane
  Reader<Halves> mine, other;
  Reader<Rotaries> rotary;
  Fragment<kKeys> scores;
  Fragment<kHalf> o;
  OperandFragment<BuildElement, kKeys> weights;
  float most[2] = {kNone, kNone}, total[2] = {0, 0}, kept[2];  // total: of a lane's columns of tiles that w owns

  __device__ __forceinline__ Columns(const Params& p, Shared& s, const Place<kProductRows>& at, const Warpgroup& w)
      : p(p),
        s(s),
        at(at),
        w(w),
        lane(w.lane()),
        row(w.warp() * 16 + lane / 4),
        mine({s.keys[w.index], s.of_keys[w.index]}, lane),
        other({s.keys[1 - w.index], s.of_keys[1 - w.index]}, lane),
        rotary({s.rotary, s.of_rotary}, lane) {
    o.clear();
  }

  __device__ __forceinline__ uint4 piece_of_q(int r, int c) const {
    const int from_row = at.first_row + r;
    const uint16_t* const from = at.q(from_row < at.rows ? from_row : 0) + c * 8;
    const bool there = from_row < at.rows && c * 8 < p.hdim_q;
    if (p.wide_q) return load_vector_if(there, from);
    const auto two = [&](int d) { return load_if(there, from + d) | uint32_t(load_if(there, from + d + 1)) << 16; };
    return make_uint4(two(0), two(2), two(4), two(6));
  }
  // Loads q: pieces of 16 bytes, by all consumers.
  __device__ __forceinline__ void load_q() const {
    constexpr int kPieces = kMostDims / 8, kAtOnce = 6;
    static_assert(kProductRows * kPieces % (256 * kAtOnce) == 0);
#pragma unroll 1
    for (int first = w.index * 128 + w.thread; first < kProductRows * kPieces; first += 256 * kAtOnce) {
      uint4 piece[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) piece[i] = piece_of_q((first + 256 * i) / kPieces, (first + 256 * i) % kPieces);
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int r = (first + 256 * i) / kPieces, c = (first + 256 * i) % kPieces, panel = c / 8;
        store_shared(panel < 4   ? s.q[0].at(panel, r, c % 8)
                     : panel < 8 ? s.q[1].at(panel - 4, r, c % 8)
                                 : s.q_rotary.at(0, r, c % 8),
                     piece[i]);
      }
    }
    async_shared_fence();
    named_sync(kLoaded, 256);
  }

  // s = q row^T of a tile that w owns.
  __device__ __forceinline__ void multiply_scores(int tile) {
    rotary.at.count = mine.at.count = other.at.count = tile;
    const auto& k = rotary.wait();
    const auto& first = mine.wait();
    pin(scores.v);
    wgmma_fence();
    mma(scores, s.q_rotary.from(0), k.from(0), false);
    mma(scores, s.q[w.index].from(0), first.from(0), true);
    wgmma_commit();
    const auto& second = other.wait();
    wgmma_fence();
    mma(scores, s.q[1 - w.index].from(0), second.from(0), true);
    wgmma_commit();
  }
  // Hides what a row does not see.
  __device__ __forceinline__ void mask(int first) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int last = min(at.end, at.limit(at.first_row + row + 8 * half)) - first - (lane & 3) * 2;
#pragma unroll
      for (int i = 0; i < scores.kCount; ++i)
        if ((i >> 1 & 1) == half && i / 4 * 8 + (i & 1) >= last) scores.v[i] = kNone;
    }
  }
  // p and the new maximum; what it is of earlier sums.
  __device__ __forceinline__ void weigh(int tile) {
#pragma unroll
    for (int i = 0; i < scores.kCount; ++i) scores.v[i] *= p.scale;
    const int first = at.begin + tile * kKeys;
    if (first + kKeys > min(at.end, at.limit(at.first_row))) mask(first);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float top = most[half];
#pragma unroll
      for (int i = 0; i < scores.kCount; ++i)
        if ((i >> 1 & 1) == half) top = fmaxf(top, scores.v[i]);
      top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
      top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
      const float from = top == kNone ? 0.f : top;
      kept[half] = exp2_approx(most[half] - from);
      most[half] = top;
      total[half] *= kept[half];
#pragma unroll
      for (int i = 0; i < scores.kCount; ++i) {
        if ((i >> 1 & 1) != half) continue;
        scores.v[i] = exp2_approx(scores.v[i] - from);
        total[half] += scores.v[i];
      }
    }
#pragma unroll
    for (int i = 0; i < kKeys / 16; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) weights.word[i][j] = pack(scores.v[8 * i + 2 * j], scores.v[8 * i + 2 * j + 1]);
    }
  }
  // Hands p to the other consumer.
  __device__ __forceinline__ void hand_over() const {
    const uint32_t place = s.weights.place_of_block(w.warp() * 16, lane);
#pragma unroll
    for (int i = 0; i < kKeys / 16; ++i) s.weights.store_block(place, i, weights.word[i]);
    if ((lane & 3) == 0) s.state[row] = {most[0], kept[0]}, s.state[row + 8] = {most[1], kept[1]};
    async_shared_fence();
    named_arrive(kThere + w.index, 256);
  }
  __device__ __forceinline__ void scale_sums(const float (&by)[2]) {
    if (!__any_sync(~0u, by[0] != 1 || by[1] != 1)) return;
#pragma unroll
    for (int i = 0; i < o.kCount; ++i) o.v[i] *= by[i >> 1 & 1];
  }

  // A tile that w owns. Before: o of the tile before may be in flight.
  __device__ __forceinline__ void own(int tile) {
    multiply_scores(tile);
    wgmma_wait<2>(o);
    mine.at.count = tile - 1;
    mine.release_if(tile > 0);
    mine.at.count = tile;
    wgmma_wait<0>(scores);
    rotary.release();
    weigh(tile);
    hand_over();
    scale_sums(kept);
    const auto& values = mine.wait();
#pragma unroll
    for (auto& word : weights.word) pin(word);
    pin(o.v);
    wgmma_fence();
    mma(o, weights, values.turned().from(0));
    wgmma_commit();
    wgmma_wait<0>(o);
    mine.release();
  }
  // A tile that the other one owns; o stays in flight.
  __device__ __forceinline__ void others(int tile) {
    named_sync(kThere + 1 - w.index, 256);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float2 state = s.state[row + 8 * half];
      most[half] = state.x, kept[half] = state.y;
      total[half] *= kept[half];
    }
    scale_sums(kept);
    mine.at.count = tile;
    const auto& values = mine.wait();
    pin(o.v);
    wgmma_fence();
    mma(o, s.weights.from(0), values.turned().from(0), true);
    wgmma_commit();
  }

  __device__ __forceinline__ void finish() {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      total[half] += __shfl_xor_sync(~0u, total[half], 1);
      total[half] += __shfl_xor_sync(~0u, total[half], 2);
      if ((lane & 3) == 0) s.sums[w.index][row + 8 * half] = total[half];
    }
    named_sync(kLoaded, 256);
    float by[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float sum = s.sums[0][row + 8 * half] + s.sums[1][row + 8 * half];
      by[half] = sum == 0 ? 0 : 1 / sum;
      if (w.index == 0 && (lane & 3) == 0) at.store_lse(at.first_row + row + 8 * half, most[half], sum);
    }
    scale_sums(by);
#pragma unroll
    for (int half = 0; half < 2; ++half) store(at.out(at.first_row + row + 8 * half), half);
  }
  __device__ __forceinline__ void store(const Place<kProductRows>::Out& to, int half) const {
    const int first = w.index * kHalf;
    if (p.wide_out) {  // eight neighbours a lane, of four words of as many columns
#pragma unroll
      for (int i = 2 * half; i < o.kCount; i += 16) {
        const auto word = [&](int j) { return pack(o.v[i + 4 * j], o.v[i + 4 * j + 1]); };
        const int column = first + i / 4 * 8 + (lane & 3) * 8;
        store_if(column < to.most, to.out + column, quad_transpose(lane, word(0), word(1), word(2), word(3)));
      }
    } else if (to.part != nullptr) {
#pragma unroll
      for (int i = 0; i < o.kCount; i += 4)
        to.store_part(first + i * 2 + (lane & 3) * 2, o.v[i + 2 * half], o.v[i + 2 * half + 1]);
    } else {
#pragma unroll
      for (int i = 0; i < o.kCount; i += 4)
        to.store_out(first + i * 2 + (lane & 3) * 2, o.v[i + 2 * half], o.v[i + 2 * half + 1]);
    }
  }
  __device__ __forceinline__ void run() {
    const int tiles = at.tiles();
    load_q();
    int tile = 2 - w.index;
    if (tile == 2 && tiles > 0) own(0);
#pragma unroll 1
    for (; tile < tiles; tile += 2) {
      others(tile - 1);
      own(tile);
    }
    if (tile - 1 < tiles) others(tile - 1);
    wgmma_wait<0>(o);
    finish();
  }
};

}  // namespace tilekiln::cuda::mla

using namespace tilekiln::cuda;

extern "C" __constant__ mla::Build latent_build = {std::is_same_v<BuildHalf, fp16>, sizeof(mla::Shared)};

extern "C" __global__ void __launch_bounds__(mla::Warps::kThreads, 1)
    latent_products(const __grid_constant__ mla::Params p) {
  begin_between_launches();
  auto& s = shared_memory<mla::Shared>();
  const mla::Place<mla::kProductRows> at(p);
  mla::Warps::run<false>(
      2, [&] { s.init(1); },
      [&](int thread) {
        if (uniform(thread >> 5) == 0) mla::load(p, s, at, thread);
      },
      [&](Warpgroup w) { mla::Columns(p, s, at, w).run(); });
}
#define TILEKILN_MOVED(name, bytes)                                                                                   \
  extern "C" __global__ void __launch_bounds__(mla::Warps::kThreads, 1) name(const __grid_constant__ mla::Params p) { \
    begin_between_launches();                                                                                         \
    auto& s = shared_memory<mla::Shared>();                                                                           \
    const mla::Place<mla::kProductRows> at(p);                                                                        \
    mla::MovingWarps::run<false>(                                                                                     \
        2, [&] { s.init(4); },                                                                                        \
        [&](int thread) { mla::Mover<bytes>{p, s, at, uniform(thread >> 5), thread & 31}.run(); },                    \
        [&](Warpgroup w) { mla::Columns(p, s, at, w).run(); });                                                       \
  }
TILEKILN_MOVED(latent_products_of_bytes, true)
TILEKILN_MOVED(latent_products_moved, false)

extern "C" __global__ void __launch_bounds__(mla::kCombineThreads)
    latent_combine(const __grid_constant__ mla::Params p) {
  begin_between_launches();
  mla::combine(p);
}
