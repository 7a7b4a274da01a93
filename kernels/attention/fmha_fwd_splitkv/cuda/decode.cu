// SPDX-License-Identifier: MIT
// Decode over a KV cache: few query rows a sequence. The 16 rows of mma.m16n8k16 are pairs of a query and a query head,
// of those that share a key head.
//
// Bound by memory. A CTA takes a share of one sequence's keys for one key head; each of its warps fills a ring by
// cp.async with chunks of 16 keys. Of up to 16 rows (kTiles = 1) every warp reads its own chunks alone, without a block
// barrier in the loop, and the warps merge by log-sum-exp. Of more rows (kTiles = kWarps) every warp has a tile of 16
// rows of its own and reads the chunks of all warps, between two barriers, so that a key is fetched once for all of the
// CTA's rows; rows past kTiles * 16 have more CTAs, which read the keys again. Of one split that is the result, and a
// second kernel merges several:
//
//     m = max_s lse_s,  out = sum_s 2^(lse_s - m) out_s / sum_s 2^(lse_s - m)
//
// Masks, soft cap, alibi, bias and scales that are not above 0 have kernels of their own (kGeneral).
//
// A cache of bytes (BYTES) is e4m3, under queries of bf16 or e4m3: products are then of fp16, without loss, in an order
// of their own (bytes.h).
// -D: HDIM (32, 64, 128 or 256), STAGES, WARPS, BYTES (0 or 1); TILEKILN_FP16 for fp16.
#include <type_traits>

#include "kernels/attention/cuda/places.h"
#include "kernels/attention/fmha_fwd_splitkv/cuda/bytes.h"
#include "kernels/attention/fmha_fwd_splitkv/cuda/params.h"
#include "kernels/attention/fmha_fwd_splitkv/cuda/step.h"
#include "kernels/attention/key_range.h"
#include "kernels/backends/cuda/mma.h"
#include "kernels/backends/cuda/tile/element.h"
#include "kernels/backends/cuda/tile/pipeline.h"
#include "kernels/backends/cuda/tile/places.h"

namespace tilekiln::cuda::fmha_decode {

using fmha::KeyMask, fmha::KeyRange, fmha::SeenKeys;
constexpr int kHdim = HDIM, kStages = STAGES, kWarps = WARPS, kChunk = 16, kRows = 16;
using Cached = std::conditional_t<kOfBytes, uint8_t, uint16_t>;            // an element of the cache
constexpr int kElement = sizeof(Cached), kVector = 16 / kElement;          // bytes; elements in 16 of them
constexpr int kPieces = kHdim / kVector;                                   // of 16 bytes in a key's row
constexpr int kBytes = kChunk * kHdim * kElement;                          // of a chunk of K or V
constexpr int kStage = 2 * kBytes + (kOfBytes ? 16 : 0);                   // and the chunk's scales
constexpr int kRing = kStages * kStage, kMerge = kRows * (kHdim + 2) * 4;  // of a warp, in the loop and after it
constexpr int kSharedBytes = kWarps * (kRing > kMerge ? kRing : kMerge);
constexpr int kCopies = kChunk * kPieces / 32;  // of 16 bytes a lane and chunk
constexpr int kMostSplits = 128;

// The keys of its sequence that a tile of rows sees, and the chunks that hold them: those below sinks come first.
struct Seen {
  SeenKeys any;    // by one of the rows at least
  KeyRange range;  // of chunks
  KeyRange whole;  // chunks that every row sees whole, with a product and a scale for score

  __device__ __forceinline__ int chunks() const { return KeyRange::count(range); }
  __device__ __forceinline__ int chunk(int i) const { return i < range.sinks ? i : range.first + i - range.sinks; }
  __device__ __forceinline__ bool is_plain(int chunk) const { return chunk >= whole.first && chunk < whole.last; }
  __device__ __forceinline__ bool has(int key) const { return !SeenKeys::hide(any, key); }
};

template <bool kGeneral>
TILEKILN_DEVICE Seen find_seen(const Params& p, int first_row, int last_row, int shift, int keys) {
  const int rows = last_row - first_row + 1;
  Seen s = {{0, keys, 0}, {0, KeyRange::tiles<kChunk>(keys), 0}, {0, keys / kChunk, 0}};
  if (kGeneral && p.features & kMask) {
    const KeyMask mask = {shift, p.left, p.right, p.sink_keys};
    s.any = {first_row + shift - p.left, min(keys, last_row + shift + p.right + 1), p.sink_keys};
    s.range = KeyRange::of<kChunk>(mask, first_row, rows, keys);
    s.whole = KeyRange::whole<kChunk>(mask, first_row, rows, keys, 0);
  }
  if (kGeneral && p.features & (kSoftcap | kAlibi | kBias)) s.whole.last = 0;
  return s;
}

// The offset of piece `piece` of row `row` in a tile of rows of kHdim elements, in bytes.
TILEKILN_DEVICE uint32_t place(int row, int piece) { return place_of_piece<kPieces>(row, piece, position_of(row)); }
// Vectorized chunks lie as in the cache, so that lanes next to each other write next to each other: K as [piece][key],
// V as [group of kVector keys][head dim], 16 bytes each.
TILEKILN_DEVICE uint32_t place_k(int key, int piece) { return (piece * kChunk + position_of(key)) * 16; }
TILEKILN_DEVICE uint32_t place_v(int dim, int group) { return (group * kHdim + dim) * 16; }

// Chunks of 16 keys of K and V to shared memory; keys that the tile does not see are zero there (in vectorized V:
// groups of kVector past the last), and so are columns past the head dims. Neither they nor their pages' numbers are
// read. The numbers of a chunk's pages are asked for when the chunk before it is loaded, of whole chunks in a page
// those of 32 at a time. A lane's 16-byte pieces lie a fixed step apart, and lanes take neighbouring pieces: of a key's
// row in linear caches, of kVector keys (V) or head dims (K) in vectorized ones.
template <bool kVectorized> struct Loader {
  static constexpr int kLines = kVectorized ? kChunk : 32 / kPieces;  // keys that 32 lanes cover at a time
  const Params& p;
  const Keys& keys;
  const Seen& seen;
  int lane, row, piece;
  bool one_page;  // a chunk is never in two
  Page ahead;     // of the chunk that this lane looks up for the warp, or of key lane % 16 of the next chunk
  int turn = 0;   // whose chunk is next
  const Cached *k, *v;
  const float* scale;  // of the first page, of K or V by the lane; null: none

  __device__ __forceinline__ Loader(const Params& given, const Keys& of, const Seen& of_tile, int head, int in_warp)
      : p(given), keys(of), seen(of_tile), lane(in_warp) {
    row = kVectorized ? lane % kChunk : lane / kPieces;
    piece = kVectorized ? lane / kChunk : lane % kPieces;
    one_page = p.table == nullptr || ((p.page_size | keys.first) & (kChunk - 1)) == 0;
    k = static_cast<const Cached*>(p.k) + head * p.k_head + piece * p.k_chunk;
    v = static_cast<const Cached*>(p.v) + head * p.v_head + (kVectorized ? lane * p.v_key : piece * p.v_chunk);
    scale = kOfBytes && lane < 2 && p.k_page_scale
                ? (lane == 0 ? p.k_page_scale : p.v_page_scale) + head * p.page_scale_head
                : nullptr;
  }

  // The pages of the warp's chunks from the i-th on, of those before the end-th: a lane each, or of the first alone.
  __device__ __forceinline__ void look_ahead(int i, int end) {
    if (one_page) i += lane * kWarps;
    const int key = seen.chunk(min(i, end - 1)) * kChunk + (one_page ? 0 : lane % kChunk);
    ahead = one_page || seen.has(key) ? find_page(p, keys, keys.first + key) : Page{0, 0};
  }
  __device__ __forceinline__ Page page_of(const Page& of_lane, int key) const {
    return {__shfl_sync(~0u, of_lane.number, key), __shfl_sync(~0u, of_lane.key, key)};
  }

  // The i-th chunk, of those before the end-th.
  __device__ __forceinline__ void load(int i, int end, uint32_t to) {
    const int first = seen.chunk(i) * kChunk;
    Page page = ahead;
    if (one_page) page = page_of(ahead, turn), turn = (turn + 1) % 32;
    if (turn == 0) look_ahead(i + kWarps, end);
    const Cached* key_row = k + int64_t(page.number) * p.k_page + (page.key + row) * p.k_key;
    const Cached* value_row = v + int64_t(page.number) * p.v_page + (page.key + row) * p.v_key;  // linear
    if (scale != nullptr) copy_async_word(to + 2 * kBytes + 4 * lane, scale + page.number * p.page_scale_page);
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      const int at = kVectorized ? row : row + i * kLines, of = kVectorized ? piece + i * 2 : piece;
      const bool inside = seen.has(first + at);
      const Cached *from_k = key_row, *from_v = value_row;
      if (!one_page) {
        const Page here = page_of(page, at);
        from_k = k + int64_t(here.number) * p.k_page + here.key * p.k_key + (kVectorized ? 2 * i * p.k_chunk : 0);
        if (!kVectorized) from_v = v + int64_t(here.number) * p.v_page + here.key * p.v_key;
      }
      copy_async(to + (kVectorized ? place_k(at, of) : place(at, of)), from_k, inside && of * kVector < p.hdim_q);
      if (!kVectorized) copy_async(to + kBytes + place(at, of), from_v, inside && of * kVector < p.hdim_v);
      key_row += kVectorized ? 2 * p.k_chunk : kLines * p.k_key;
      value_row += kLines * p.v_key;
    }
    if constexpr (kVectorized) load_values(first, page, to);
  }

  __device__ __forceinline__ void load_values(int first, const Page& page, uint32_t to) const {
#pragma unroll
    for (int group = 0; group < kChunk / kVector; ++group) {  // pages hold a multiple of kVector keys
      const int key = first + kVector * group;
      const bool inside = key < seen.any.end;
      const Page here = one_page ? Page{page.number, page.key + kVector * group} : page_of(page, kVector * group);
      const Cached* from = v + int64_t(here.number) * p.v_page + here.key / kVector * p.v_chunk;
#pragma unroll
      for (int i = 0; i < kHdim / 32; ++i)
        copy_async(to + kBytes + place_v(lane + 32 * i, group), from + 32 * i * p.v_key,
                   inside && lane + 32 * i < p.hdim_v);
    }
  }
};

// The sums of one warp's 16 rows: lane (i, c) = (lane / 4, lane % 4) holds rows i and i + 8; bytes.h: up and unit.
struct Sums { float out[kHdim / 8][4], maximum[2], sum[2], up[2], unit; };

// One of the two rows of a lane, as the general kernels mask and bias it.
struct Line {
  int position, first, end;  // its query plus shift; keys [first, end) are seen, and those below sink_keys
  float slope;
  const void* bias;
};

// Scale, soft cap, bias or alibi, mask; chunk [first, first + 16).
TILEKILN_DEVICE void change(const Params& p, const Seen& seen, float (&score)[2][4], const Line (&line)[2], int first,
                            int lane) {
  if (seen.is_plain(first / kChunk)) {
#pragma unroll
    for (int j = 0; j < 8; ++j) score[j >> 2][j & 3] *= p.softmax_scale;
    return;
  }
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const Line& of = line[j >> 1 & 1];
    float& x = score[j >> 2][j & 3];
    const int key = first + key_of(lane, j);
    const bool seen = key < of.end && (key >= of.first || key < p.sink_keys);
    x *= p.softmax_scale;
    if (p.features & kSoftcap) x = p.softcap - 2 * p.softcap / (exp2_approx(x * (2 * kLog2E / p.softcap)) + 1.f);
    if (p.features & kBias && seen) x += bias_of(p, of.bias, key);
    if (p.features & kAlibi) x -= of.slope * float(abs(of.position - key));
    if (!seen) x = -kInfinity;
  }
}

// Multiplies with a chunk in shared memory at `from`: score (16 rows, 16 keys) = q k^T.
template <bool kVectorized>
TILEKILN_DEVICE void multiply_keys(float (&score)[2][4], const uint32_t (&q)[kHdim / 16][4], uint32_t from, int lane) {
#pragma unroll
  for (int i = 0; i < kPieces / 2; ++i) {
    uint32_t k[4];
    const int row = row_of(lane & 7, lane >> 4), piece = i * 2 + (lane >> 3 & 1);
    load_matrices(k, from + (kVectorized ? place_k(row, piece) : place(row, piece)));
#pragma unroll
    for (int group = 0; group < 2; ++group) {
      if constexpr (kOfBytes) {
        multiply_bytes(score[group], q[2 * i], k[2 * group]);
        multiply_bytes(score[group], q[2 * i + 1], k[2 * group + 1]);
      } else {
        multiply_add(score[group], q[i], k[2 * group], k[2 * group + 1]);
      }
    }
  }
}

// Scores become weights, by the running maximum; what was summed before is made less by `correction`.
template <int kCount>
TILEKILN_DEVICE void weigh(const Params& p, float (&score)[kCount][2][4], float (&correction)[2], Sums& s) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float most = -kInfinity;
#pragma unroll
    for (int c = 0; c < kCount; ++c)
      most = fmaxf(most, fmaxf(fmaxf(score[c][0][2 * half], score[c][0][2 * half + 1]),
                               fmaxf(score[c][1][2 * half], score[c][1][2 * half + 1])));
    most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
    most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
    most = fmaxf(most, s.maximum[half]);
    const float top = most == -kInfinity ? 0.f : most * p.score_scale_log2;
    // A subtraction of its own: fused with the product, the factor would not be 1 where the maximum stays.
    correction[half] = exp2_approx(__fsub_rn(s.maximum[half] * p.score_scale_log2, top));
    s.maximum[half] = most;
    s.sum[half] *= correction[half];
#pragma unroll
    for (int c = 0; c < kCount; ++c)
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        float& x = score[c][j >> 1][2 * half + (j & 1)];
        x = exp2_approx(__fmaf_rn(x, p.score_scale_log2, -top));
        s.sum[half] += x;
      }
  }
}

// Adds a chunk whose values lie at `values`: out += weight v. `left`: keys of it that are the sequence's.
template <bool kVectorized>
TILEKILN_DEVICE void add_values(const uint32_t (&weight)[4], uint32_t values, int left, int lane, Sums& s) {
  // Vectorized V behind the last key may hold NaN, which no weight of zero undoes: it is replaced by zeros.
  const auto kept = [&](int key) { return (key < left ? 0xffffu : 0u) | (key + 1 < left ? 0xffff0000u : 0u); };
  const uint32_t keep[2] = {kept(key_of(lane, 0)), kept(key_of(lane, 4))};
#pragma unroll
  for (int d = 0; d < kHdim / 16 / (kOfBytes ? 2 : 1); ++d) {
    uint32_t v[4];
    if constexpr (kOfBytes) {
      if constexpr (kVectorized)  // 32 head dims, 16 keys each
        load_matrices(v, values + place_v(d * 32 + lane, 0));
      else
        load_matrices_transposed(v, values + place(row_of(lane & 7, lane >> 3 & 1), d * 2 + (lane >> 4)));
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        uint32_t low, high;
        unpack_e4m3(kVectorized ? v[j] : __byte_perm(v[j & 2], v[j | 1], j & 1 ? 0x7531 : 0x6420), low, high);
        if constexpr (kVectorized) low &= keep[0], high &= keep[1];
        multiply_add_halves(s.out[4 * d + j], weight, low, high);
      }
      continue;
    } else if constexpr (kVectorized) {
      load_matrices(v, values + place_v(d * 16 + (lane & 7) + (lane >> 4 << 3), lane >> 3 & 1));
#pragma unroll
      for (int j = 0; j < 4; ++j) v[j] &= keep[j & 1];
    } else {
      load_matrices_transposed(v, values + place(lane & 15, d * 2 + (lane >> 4)));
    }
    multiply_add(s.out[2 * d], weight, v[0], v[1]);
    multiply_add(s.out[2 * d + 1], weight, v[2], v[3]);
  }
}

// Adds kCount chunks of keys, `step` bytes apart in shared memory from `from` on: chunk c holds the keys
// from first[c] on, of which left[c] or more are the sequence's.
template <bool kVectorized, bool kGeneral, int kCount>
TILEKILN_DEVICE void add_chunks(const Params& p, const Seen& seen, const uint32_t (&q)[kHdim / 16][4], uint32_t from,
                                uint32_t step, const Line (&line)[2], const int (&first)[kCount],
                                const int (&left)[kCount], int lane, Sums& s) {
  float score[kCount][2][4] = {};
  ChunkScales scale[kCount];
#pragma unroll
  for (int c = 0; c < kCount; ++c) {
    multiply_keys<kVectorized>(score[c], q, from + c * step, lane);
    if constexpr (kOfBytes) {
      scale[c] = scales_of(p, from + c * step + 2 * kBytes);
#pragma unroll
      for (int j = 0; j < 8; ++j) score[c][j >> 2][j & 3] *= scale[c].keys * s.up[j >> 1 & 1];
    }
    if constexpr (kGeneral) change(p, seen, score[c], line, first[c], lane);
    if (!(kGeneral && kCount == 1) && left[c] < kChunk) {
#pragma unroll
      for (int j = 0; j < 8; ++j)
        if (key_of(lane, j) >= left[c]) score[c][j >> 2][j & 3] = -kInfinity;
    }
  }
  float correction[2];
  weigh(p, score, correction, s);
  const float times = kOfBytes && p.k_page_scale ? change_unit(scale, s.unit, correction) : kWeightTimes;
#pragma unroll
  for (int d = 0; d < kHdim / 8; ++d)
#pragma unroll
    for (int j = 0; j < 4; ++j) s.out[d][j] *= correction[j >> 1];
#pragma unroll
  for (int c = 0; c < kCount; ++c) {
    if constexpr (kOfBytes) scale_weights(score[c], scale[c].values * times);
    const uint32_t weight[4] = {two_weights(score[c][0]), two_weights(score[c][0] + 2), two_weights(score[c][1]),
                                two_weights(score[c][1] + 2)};
    add_values<kVectorized>(weight, from + c * step + kBytes, left[c], lane, s);
  }
}

template <int kTiles> TILEKILN_DEVICE void wait_for_warps() {
  if constexpr (kTiles == 1) __syncwarp();
  if constexpr (kTiles != 1) __syncthreads();
}

// The rows of a CTA, of sequence b and key head `head`: from first_row on, and of them this warp's from tile_row on.
struct Block {
  const Params& p;
  int b, head, split, first_row, rows, tile_row, warp, lane;
  Queries queries;

  // The two rows of a lane, and what is asked of them in general kernels. `shift`: the key under row 0 of the diagonal.
  template <bool kGeneral>
  __device__ __forceinline__ void load_queries(int shift, int keys, uint32_t (&q)[kHdim / 16][4],
                                               Line (&line)[2]) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = tile_row + (lane >> 2) + half * 8;
      const Place at(p, head, first_row + min(row, rows - 1));
      const int64_t from = b * p.q_batch + at.h * p.q_head + (queries.start + at.i) * p.q_row;
#pragma unroll
      for (int i = 0; i < kHdim / 16; ++i) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const int column = i * 16 + key_of(lane, j * 4);  // head dims have the order of keys
          q[i][j * 2 + half] = row < rows && column < p.hdim_q ? two_of(p, from + column) : 0u;
        }
      }
      if constexpr (kGeneral) {
        Line& of = line[half];
        of.position = at.i + shift, of.first = 0, of.end = keys, of.slope = 0.f, of.bias = nullptr;
        if (p.features & kMask) of.first = of.position - p.left, of.end = min(keys, of.position + p.right + 1);
        if (p.features & kAlibi) of.slope = p.alibi_slopes[b * p.alibi_batch + at.h];
        if (p.features & kBias)
          of.bias = bias_row(p, b * p.bias_batch + at.h * p.bias_head + (queries.start + at.i) * p.bias_row);
      }
    }
  }

  // The sums of each warp, to shared memory.
  template <bool kVectorized> __device__ __forceinline__ void tell(Sums& sums, float* outs, float* ends) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = warp * kRows + (lane >> 2) + half * 8;
      if ((lane & 3) == 0) ends[row * 2] = sums.maximum[half], ends[row * 2 + 1] = sums.sum[half];
#pragma unroll
      for (int d = 0; d < kHdim / 8; ++d)
        *reinterpret_cast<float2*>(outs + row * kHdim + column_of<kVectorized>(lane, d)) =
            neighbours_of<kVectorized>(sums.out, d, half, kOfBytes ? sums.unit / kWeightTimes : 1.f);
    }
  }

  // Two columns of a row: the sums of every kTiles-th warp merged by log-sum-exp, and stored.
  template <int kTiles, bool kSteps>
  __device__ __forceinline__ void merge(int row, int d, const float* outs, const float* ends,
                                        const ClusterParts& parts) const {
    const Place at(p, head, first_row + row);
    const float sink = p.sink && split == 0 ? p.sink[at.h] * kLog2E : -kInfinity;
    float most = -kInfinity, out0 = 0.f, out1 = 0.f;
#pragma unroll
    for (int i = 0; i < kWarps; i += kTiles) most = fmaxf(most, ends[(i * kRows + row) * 2]);
    const float top = fmaxf(most == -kInfinity ? -kInfinity : most * p.score_scale_log2, sink);
    const float reference = top == -kInfinity ? 0.f : top;
    float sum = exp2_approx(__fsub_rn(sink, reference));
#pragma unroll
    for (int i = 0; i < kWarps; i += kTiles) {
      const float maximum = ends[(i * kRows + row) * 2];
      if (maximum == -kInfinity) continue;
      const float weight = exp2_approx(__fsub_rn(maximum * p.score_scale_log2, reference));
      sum += weight * ends[(i * kRows + row) * 2 + 1];
      out0 += weight * outs[(i * kRows + row) * kHdim + d];
      out1 += weight * outs[(i * kRows + row) * kHdim + d + 1];
    }
    float scale = sum > 0.f ? 1.f / sum : sum == sum ? 0.f : sum;  // a NaN stays one
    if (kOfBytes && p.v_descale) scale *= *p.v_descale;
    const float lse = sum == 0.f ? -kInfinity : reference + log2_approx(sum);
    if (p.splits == 1) {
      store(p, b, queries.start + at.i, at.h, d, out0 * scale, out1 * scale, lse);
    } else if constexpr (kSteps) {
      cluster_store(parts.out(split, row, d), 0, out0 * scale);
      cluster_store(parts.out(split, row, d + 1), 0, out1 * scale);
      if (d == 0) cluster_store(parts.sum(p.splits, split, row), 0, lse);
    } else {
      const int64_t part = ((int64_t(b) * p.seqlen_q_most + at.i) * p.nhead_q + at.h) * p.splits + split;
      *reinterpret_cast<float2*>(p.part_out + part * p.hdim_v + d) = make_float2(out0 * scale, out1 * scale);
      if (d == 0) p.part_lse[part] = lse;
    }
  }
};

// The results of all warps go over their rings, and become those of the CTA.
template <bool kVectorized, int kTiles, bool kSteps>
TILEKILN_DEVICE void merge_warps(const Block& of, Sums& sums, char* raw, const ClusterParts& parts) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    sums.sum[half] += __shfl_xor_sync(~0u, sums.sum[half], 1);
    sums.sum[half] += __shfl_xor_sync(~0u, sums.sum[half], 2);
  }
  __syncthreads();  // the rings are done with
  float *const outs = reinterpret_cast<float*>(raw), *const ends = outs + kWarps * kRows * kHdim;
  of.tell<kVectorized>(sums, outs, ends);
  __syncthreads();
  if (kSteps && of.p.splits > 1) cluster_wait();
  for (int e = threadIdx.x; e < of.rows * (kHdim / 2); e += kWarps * 32) {
    const int d = e % (kHdim / 2) * 2;
    if (d < of.p.hdim_v) of.merge<kTiles, kSteps>(e / (kHdim / 2), d, outs, ends, parts);
  }
}

// A CTA: x = (sequence, key head, split), y = kTiles tiles of rows. Warp w has the rows of tile w % kTiles.
template <bool kVectorized, bool kGeneral, int kTiles, bool kSteps = false>
TILEKILN_DEVICE void decode(const Params& p, char* raw, const Step* step = nullptr) {
  static_assert(kTiles == 1 || kTiles == kWarps, "a tile of rows is read by every warp, or has a warp of its own");
  constexpr int kTogether = kHdim > 128 ? 1 : kTiles;  // chunks in registers
  let_next_launch_begin();
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, split = blockIdx.x % p.splits;
  const int head = blockIdx.x / p.splits % p.nhead_k, b = blockIdx.x / p.splits / p.nhead_k;
  if constexpr (kSteps) {
    if (p.splits > 1) cluster_arrive_relaxed();
    ask_for_keys<kHdim, kWarps, kChunk, kStages>(p, *step, b, head, split, warp, lane);
  }
  wait_for_launch_before();
  const int group = p.nhead_q / p.nhead_k, first_row = blockIdx.y * (kTiles * kRows);
  const Queries queries = find_queries(p, b);
  const int rows = min(queries.count * group - first_row, kTiles * kRows);
  if (rows <= 0) return;
  const Block of{p, b, head, split, first_row, rows, kTiles == 1 ? 0 : warp * kRows, warp, lane, queries};
  uint32_t q[kHdim / 16][4];
  Line line[2];
  std::conditional_t<kSteps, NewKey<kHdim>, NoKey> added(p, step, b, head, lane);
  if constexpr (kSteps) of.load_queries<false>(0, 0, q, line);
  const Keys keys = find_keys(p, b);
  const int shift = p.features & kBottomRight ? keys.count - queries.count : 0;
  const Seen seen = find_seen<kGeneral>(p, first_row / group, (first_row + rows - 1) / group, shift, keys.count);
  const int share = ((seen.chunks() + p.splits - 1) / p.splits + kWarps - 1) / kWarps * kWarps;  // chunks of a split
  const int begin = split * share, end = min(seen.chunks(), begin + share);
  const uint32_t ring = shared_address(raw) + warp * kRing;
  Loader<kVectorized> loader(p, keys, seen, head, lane);
  // Every chunk of a step of kTiles warps is written, those behind the last with zeros: a weight of zero undoes no NaN.
  const int last = kTiles == 1 ? end : begin + (end - begin + kWarps - 1) / kWarps * kWarps;
  const auto load = [&](int i, int stage) {
    if (i < last) loader.load(i, end, ring + stage * kStage);
    copy_async_commit();
  };
  if (begin + warp < last) loader.look_ahead(begin + warp, end);
#pragma unroll
  for (int i = 0; i < kStages - 1; ++i) load(begin + warp + i * kWarps, i);
  if constexpr (!kSteps) of.load_queries<kGeneral>(shift, keys.count, q, line);
  const auto column = [&](int i, int j) { return i * 16 + key_of(lane, j * 4); };  // head dims have the order of keys
  int new_key = -1;  // of the sequence's, if it is the warp's to append
  if constexpr (kSteps) {
    const int place = p.seqlen_k[b], chunk = (place - keys.first) / kChunk;
    const int64_t position = clamp(place, 0, step->positions - 1);
    rotate_queries<kHdim>(*step, position, q, column);
    if (place >= keys.first && place < p.room_k && chunk >= begin && chunk < end && (chunk - begin) % kWarps == warp) {
      new_key = place - keys.first;
      added.rotate(p, *step, position, lane);
      added.append(p, keys, head, place, lane);
    }
  }
  Sums sums = {{}, {-kInfinity, -kInfinity}, {}, {1.f, 1.f}, p.k_page_scale ? 0x1p-100f : 1.f};
  if constexpr (kOfBytes) halve_queries(p, q, sums.up);
  PipelineState<kStages> at;
  for (int i = begin + (kTiles == 1 ? warp : 0); i < end; i += kWarps, at.advance()) {
    load(i + (kTiles == 1 ? 0 : warp) + (kStages - 1) * kWarps, at.previous());
    copy_async_wait<kStages - 1>();
    wait_for_warps<kTiles>();
    const uint32_t from = (kTiles == 1 ? ring : shared_address(raw)) + at.index() * kStage;
    if constexpr (kSteps) {
      if (new_key >= 0 && new_key / kChunk == i) {  // over what the cache had there
        added.each(p, lane, [&](bool of_key, int word, uint32_t value) {
          store_word(from + (of_key ? 0 : kBytes) + place(new_key % kChunk, word / 4) + word % 4 * 4, value);
        });
        __syncwarp();
      }
    }
#pragma unroll
    for (int j = 0; j < kTiles; j += kTogether) {
      int first[kTogether], left[kTogether];
#pragma unroll
      for (int c = 0; c < kTogether; ++c) {
        first[c] = seen.chunk(i + j + c) * kChunk;
        left[c] = i + j + c < end ? keys.count - first[c] : 0;
      }
      if (of.tile_row < rows)
        add_chunks<kVectorized, kGeneral, kTogether>(p, seen, q, from + j * kRing, kRing, line, first, left, lane,
                                                     sums);
    }
    wait_for_warps<kTiles>();
  }
  copy_async_wait<0>();
  const ClusterParts parts = {shared_address(raw) + kSharedBytes, rows, p.hdim_v};
  merge_warps<kVectorized, kTiles, kSteps>(of, sums, raw, parts);
  if constexpr (kSteps) {
    if (p.splits > 1) __syncwarp(), cluster_arrive(), cluster_wait();
    if (split > 0) return;
    if (p.splits > 1) merge_parts(p, parts, queries, b, head);
    if (warp == 0 && step->rotates) store_queries<kHdim>(p, *step, b, head, rows, q, lane, column);
  }
}

// A CTA is a query of a head: x = (sequence, query, head), a thread two columns. The first warp weighs the splits.
TILEKILN_DEVICE void combine(const Params& p) {
  __shared__ float weights[kMostSplits];
  __shared__ float whole[2];  // the sum of weights, the LSE
  begin_between_launches();
  const int h = blockIdx.x % p.nhead_q, i = blockIdx.x / p.nhead_q % p.seqlen_q_most;
  const int b = blockIdx.x / p.nhead_q / p.seqlen_q_most, d = threadIdx.x * 2;
  const Queries queries = find_queries(p, b);
  if (i >= queries.count) return;
  const int64_t first = int64_t(blockIdx.x) * p.splits;
  if (threadIdx.x < 32) {
    float lse[kMostSplits / 32], most = -kInfinity, sum = 0.f;
#pragma unroll
    for (int j = 0; j < kMostSplits / 32; ++j) {
      const int s = threadIdx.x + 32 * j;
      lse[j] = s < p.splits ? p.part_lse[first + s] : -kInfinity;
      most = fmaxf(most, lse[j]);
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, step));
    const float reference = most == -kInfinity ? 0.f : most;
#pragma unroll
    for (int j = 0; j < kMostSplits / 32; ++j) {
      const float weight = exp2_approx(lse[j] - reference);
      weights[threadIdx.x + 32 * j] = weight;
      sum += weight;
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
    if (threadIdx.x == 0) whole[0] = sum, whole[1] = sum == 0.f ? -kInfinity : reference + log2_approx(sum);
  }
  __syncthreads();
  if (d >= p.hdim_v) return;
  float out0 = 0.f, out1 = 0.f;
  const float* from = p.part_out + first * p.hdim_v + d;
#pragma unroll 8
  for (int s = 0; s < p.splits; ++s, from += p.hdim_v) {
    const float2 part = *reinterpret_cast<const float2*>(from);
    out0 += weights[s] * part.x, out1 += weights[s] * part.y;
  }
  const float sum = whole[0], scale = sum > 0.f ? 1.f / sum : sum == sum ? 0.f : sum;
  store(p, b, queries.start + i, h, d, out0 * scale, out1 * scale, whole[1]);
}

}  // namespace tilekiln::cuda::fmha_decode

using namespace tilekiln::cuda;

extern "C" __constant__ fmha_decode::Build fmha_decode_build = {fmha_decode::kHdim,
                                                                fmha_decode::kRows,
                                                                fmha_decode::kWarps * 32,
                                                                fmha_decode::kSharedBytes,
                                                                std::is_same_v<BuildHalf, fp16>,
                                                                kEarly,
                                                                fmha_decode::kOfBytes};

#define TILEKILN_DECODE(name, vectorized, general, tiles)                   \
  extern "C" __global__ void __launch_bounds__(fmha_decode::kWarps * 32, 1) \
      name(const __grid_constant__ fmha_decode::Params p) {                    \
    extern __shared__ __align__(128) char raw[];                            \
    fmha_decode::decode<vectorized, general, tiles>(p, raw);                \
  }
TILEKILN_DECODE(fmha_decode_linear, false, false, 1)
TILEKILN_DECODE(fmha_decode_vectorized, true, false, 1)
TILEKILN_DECODE(fmha_decode_linear_general, false, true, 1)
TILEKILN_DECODE(fmha_decode_vectorized_general, true, true, 1)
TILEKILN_DECODE(fmha_decode_linear_rows, false, false, fmha_decode::kWarps)
TILEKILN_DECODE(fmha_decode_vectorized_rows, true, false, fmha_decode::kWarps)
TILEKILN_DECODE(fmha_decode_linear_general_rows, false, true, fmha_decode::kWarps)
TILEKILN_DECODE(fmha_decode_vectorized_general_rows, true, true, fmha_decode::kWarps)

#if !BYTES && __CUDA_ARCH__ >= 900
// A decode step: a cluster of splits a sequence and key head.
extern "C" __global__ void __launch_bounds__(fmha_decode::kWarps * 32, 1)
    fmha_decode_step(const __grid_constant__ fmha_decode::StepParams p) {
  extern __shared__ __align__(128) char raw[];
  fmha_decode::decode<false, false, 1, true>(p.decode, raw, &p.step);
}
#endif

extern "C" __global__ void __launch_bounds__(fmha_decode::threads_of_combine(fmha_decode::kHdim))
    fmha_decode_combine(const __grid_constant__ fmha_decode::Params p) {
  fmha_decode::combine(p);
}
