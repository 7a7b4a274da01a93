// Decode over a paged KV cache: one query row a sequence, the query heads of a group packed into the 16 rows of mma.m16n8k16.
//
// Bound by memory. A CTA takes a share of one sequence's keys for one key head; each of its warps runs a ring of cp.async over chunks of
// 16 keys of its own, without a block barrier in the loop. The warps merge by log-sum-exp, and a second kernel merges the splits:
//
//     m = max_s lse_s,  out = sum_s 2^(lse_s - m) out_s / sum_s 2^(lse_s - m)
//
// Nothing here needs more than sm_80. -D: HDIM (64 or 128), STAGES, WARPS; TILEKILN_FP16 for fp16.
#include "kernels/attention/fmha_fwd_splitkv/cuda/row.h"
#include "kernels/backends/cuda/mma.h"

namespace tilekiln::cuda::fmha_decode {

constexpr int kHdim = HDIM, kStages = STAGES, kWarps = WARPS, kChunk = 16, kGroup = 16;
constexpr int kPieces = kHdim / 8;                // of 16 bytes in a key's row
constexpr int kBytes = kChunk * kHdim * 2;        // of a chunk of K or V
constexpr int kRing = kStages * 2 * kBytes;       // of a warp
constexpr int kMerge = kGroup * (kHdim + 2) * 4;  // of a warp, after the loop
constexpr int kSharedBytes = kWarps * (kRing > kMerge ? kRing : kMerge);
constexpr int kCopies = kChunk * kPieces / 32;  // of 16 bytes a lane and chunk

struct Sequence {
  const int* pages;
  int keys;
};

TILEKILN_DEVICE Sequence sequence_of(const Row& p, int b) {
  Sequence s;
  const int64_t first = p.table_start ? p.table_start[b] : int64_t(b) * p.table_row;
  s.pages = p.table + first;
  if (p.seqlen_k) {
    s.keys = p.seqlen_k[b];
  } else {
    const int pages = p.table_start[b + 1] - int(first);
    s.keys = pages > 0 ? ((pages - 1) << p.page_shift) + p.last_page_len[b] : 0;
  }
  return s;
}

// Where piece `piece` of row `row` lies in a swizzled tile of rows of kHdim elements.
TILEKILN_DEVICE uint32_t place(int row, int piece) { return row * kHdim * 2 + ((piece ^ (row & 7)) << 4); }
// Vectorized chunks lie as in the cache, so that lanes next to each other write next to each other: K as [piece][key], V as [group of
// eight keys][head dim], 16 bytes each.
TILEKILN_DEVICE uint32_t place_k(int key, int piece) { return (piece * kChunk + key) * 16; }
TILEKILN_DEVICE uint32_t place_v(int dim, int group) { return (group * kHdim + dim) * 16; }

// Chunks of 16 keys of K and V to shared memory; keys past the end are read as zero (in vectorized V: groups of eight past it).
// A lane's 16-byte pieces lie a fixed step apart, and lanes take neighbouring pieces: of a key's row in linear caches, of eight
// keys (V) or head dims (K) in vectorized ones.
template <bool kVectorized> struct Loader {
  static constexpr int kRows = kVectorized ? kChunk : 32 / kPieces;  // rows that 32 lanes cover at a time
  const Row& p;
  const Sequence& s;
  int lane, row, piece;
  const uint16_t *k, *v;

  __device__ __forceinline__ Loader(const Row& given, const Sequence& sequence, int head, int in_warp)
      : p(given), s(sequence), lane(in_warp) {
    row = kVectorized ? lane % kChunk : lane / kPieces;
    piece = kVectorized ? lane / kChunk : lane % kPieces;
    k = p.k + head * p.k_head + piece * p.k_chunk;
    v = p.v + head * p.v_head + (kVectorized ? lane * p.v_key : piece * p.v_chunk);
  }

  __device__ __forceinline__ int64_t page_of(int key) const { return __ldg(s.pages + (key >> p.page_shift)); }

  __device__ __forceinline__ void load(int chunk, uint32_t to) const {
    const int first = chunk * kChunk, left = s.keys - first, mask = (1 << p.page_shift) - 1;
    const bool one_page = p.page_shift >= 4;
    const int64_t page = one_page ? page_of(first) : 0;
    const uint16_t* key_row = k + page * p.k_page + ((first & mask) + row) * p.k_key;
    const uint16_t* value_row = v + page * p.v_page + ((first & mask) + row) * p.v_key;  // linear
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      const int at = kVectorized ? row : row + i * kRows, of = kVectorized ? piece + i * 2 : piece;
      const bool inside = at < left;
      const uint16_t *from_k = key_row, *from_v = value_row;
      if (!one_page) {
        const int key = inside ? first + at : s.keys - 1;
        const int64_t here = page_of(key);
        from_k = k + here * p.k_page + (key & mask) * p.k_key + (kVectorized ? 2 * i * p.k_chunk : 0);
        if (!kVectorized) from_v = v + here * p.v_page + (key & mask) * p.v_key;
      }
      copy_async(to + (kVectorized ? place_k(at, of) : place(at, of)), from_k, inside);
      if (!kVectorized) copy_async(to + kBytes + place(at, of), from_v, inside);
      key_row += kVectorized ? 2 * p.k_chunk : kRows * p.k_key;
      value_row += kRows * p.v_key;
    }
    if (!kVectorized) return;
#pragma unroll
    for (int group = 0; group < 2; ++group) {  // pages hold a multiple of eight keys
      const int key = first + 8 * group;
      const bool inside = key < s.keys;
      const int64_t here = one_page ? page : page_of(inside ? key : s.keys - 1);
      const uint16_t* from = v + here * p.v_page + ((key & mask) >> 3) * p.v_chunk;
#pragma unroll
      for (int i = 0; i < kHdim / 32; ++i)
        copy_async(to + kBytes + place_v(lane + 32 * i, group), from + 32 * i * p.v_key, inside);
    }
  }
};

// What one warp has of its 16 rows: lane (i, c) = (lane / 4, lane % 4) holds rows i and i + 8.
struct Sums { float out[kHdim / 8][4], maximum[2], sum[2]; };

template <bool kVectorized>
TILEKILN_DEVICE void add_chunk(const Row& p, const uint32_t (&q)[kHdim / 16][4], uint32_t from, int left, int lane,
                               Sums& s) {
  float score[2][4] = {};
#pragma unroll
  for (int i = 0; i < kHdim / 16; ++i) {  // score (16 rows, 16 keys) = q k^T
    uint32_t k[4];
    const int row = (lane & 7) + (lane >> 4 << 3);
    const int piece = i * 2 + (lane >> 3 & 1);
    load_matrices(k, from + (kVectorized ? place_k(row, piece) : place(row, piece)));
    multiply_add(score[0], q[i], k[0], k[1]);
    multiply_add(score[1], q[i], k[2], k[3]);
  }
  if (left < kChunk) {
#pragma unroll
    for (int j = 0; j < 8; ++j)
      if ((j >> 2) * 8 + (lane & 3) * 2 + (j & 1) >= left) score[j >> 2][j & 3] = -kInfinity;
  }
  float correction[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float most =
        fmaxf(fmaxf(score[0][2 * half], score[0][2 * half + 1]), fmaxf(score[1][2 * half], score[1][2 * half + 1]));
    most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
    most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
    most = fmaxf(most, s.maximum[half]);
    const float top = most * p.score_scale_log2;
    correction[half] = exp2_approx(s.maximum[half] * p.score_scale_log2 - top);
    s.maximum[half] = most;
    s.sum[half] *= correction[half];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      float& x = score[j >> 1][2 * half + (j & 1)];
      x = exp2_approx(__fmaf_rn(x, p.score_scale_log2, -top));
      s.sum[half] += x;
    }
  }
  const uint32_t weight[4] = {pack(score[0][0], score[0][1]), pack(score[0][2], score[0][3]),
                              pack(score[1][0], score[1][1]), pack(score[1][2], score[1][3])};
#pragma unroll
  for (int d = 0; d < kHdim / 8; ++d)
#pragma unroll
    for (int j = 0; j < 4; ++j) s.out[d][j] *= correction[j >> 1];
  // What lies in vectorized V behind the last key may be NaN, which no weight of zero undoes.
  const int c2 = (lane & 3) * 2;
  const auto kept = [&](int key) { return (key < left ? 0xffffu : 0u) | (key + 1 < left ? 0xffff0000u : 0u); };
  const uint32_t keep[2] = {kept(c2), kept(8 + c2)};
#pragma unroll
  for (int d = 0; d < kHdim / 16; ++d) {  // out += weight v
    uint32_t v[4];
    if constexpr (kVectorized) {
      load_matrices(v, from + kBytes + place_v(d * 16 + (lane & 7) + (lane >> 4 << 3), lane >> 3 & 1));
#pragma unroll
      for (int j = 0; j < 4; ++j) v[j] &= keep[j & 1];
    } else {
      load_matrices_transposed(v, from + kBytes + place(lane & 15, d * 2 + (lane >> 4)));
    }
    multiply_add(s.out[2 * d], weight, v[0], v[1]);
    multiply_add(s.out[2 * d + 1], weight, v[2], v[3]);
  }
}

template <bool kVectorized> TILEKILN_DEVICE void decode(const Row& p, char* raw) {
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, split = blockIdx.x, head = blockIdx.y, b = blockIdx.z;
  const int group = p.nhead_q / p.nhead_k;
  const Sequence sequence = sequence_of(p, b);
  const int chunks = (sequence.keys + kChunk - 1) / kChunk;
  const int share = ((chunks + p.splits - 1) / p.splits + kWarps - 1) / kWarps * kWarps;  // chunks of a split
  const int begin = split * share, end = min(chunks, begin + share);
  const uint32_t ring = shared_address(raw) + warp * kRing;
  const Loader<kVectorized> loader(p, sequence, head, lane);
  const auto load = [&](int chunk, int stage) {
    if (chunk < end) loader.load(chunk, ring + stage * 2 * kBytes);
    copy_async_commit();
  };
  uint32_t q[kHdim / 16][4];
#pragma unroll
  for (int i = 0; i < kHdim / 16; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int row = (lane >> 2) + (j & 1) * 8, column = i * 16 + (lane & 3) * 2 + (j >> 1) * 8;
      const uint16_t* from = p.q + b * p.q_batch + (head * group + row) * p.q_head + column;
      q[i][j] = row < group ? *reinterpret_cast<const uint32_t*>(from) : 0u;
    }
  }
  Sums sums;
#pragma unroll
  for (int half = 0; half < 2; ++half) sums.maximum[half] = -kInfinity, sums.sum[half] = 0.f;
#pragma unroll
  for (int d = 0; d < kHdim / 8; ++d)
#pragma unroll
    for (int j = 0; j < 4; ++j) sums.out[d][j] = 0.f;
#pragma unroll
  for (int i = 0; i < kStages - 1; ++i) load(begin + warp + i * kWarps, i);
  int stage = 0;
  for (int chunk = begin + warp; chunk < end; chunk += kWarps) {
    load(chunk + (kStages - 1) * kWarps, (stage + kStages - 1) % kStages);
    copy_async_wait<kStages - 1>();
    __syncwarp();
    add_chunk<kVectorized>(p, q, ring + stage * 2 * kBytes, sequence.keys - chunk * kChunk, lane, sums);
    __syncwarp();
    stage = (stage + 1) % kStages;
  }
  copy_async_wait<0>();
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    sums.sum[half] += __shfl_xor_sync(~0u, sums.sum[half], 1);
    sums.sum[half] += __shfl_xor_sync(~0u, sums.sum[half], 2);
  }
  __syncthreads();  // the rings are done with; the warps' results go over them
  float* outs = reinterpret_cast<float*>(raw);
  float* ends = outs + kWarps * kGroup * kHdim;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = warp * kGroup + (lane >> 2) + half * 8;
    if ((lane & 3) == 0) ends[row * 2] = sums.maximum[half], ends[row * 2 + 1] = sums.sum[half];
#pragma unroll
    for (int d = 0; d < kHdim / 8; ++d)
      *reinterpret_cast<float2*>(outs + row * kHdim + d * 8 + (lane & 3) * 2) =
          make_float2(sums.out[d][2 * half], sums.out[d][2 * half + 1]);
  }
  __syncthreads();
  for (int e = threadIdx.x; e < group * kHdim; e += kWarps * 32) {
    const int row = e / kHdim, d = e % kHdim;
    float most = -kInfinity, out = 0.f, sum = 0.f;
#pragma unroll
    for (int i = 0; i < kWarps; ++i) most = fmaxf(most, ends[(i * kGroup + row) * 2]);
    if (most > -kInfinity) {
#pragma unroll
      for (int i = 0; i < kWarps; ++i) {
        const float share_of = exp2_approx((ends[(i * kGroup + row) * 2] - most) * p.score_scale_log2);
        sum += share_of * ends[(i * kGroup + row) * 2 + 1];
        out += share_of * outs[(i * kGroup + row) * kHdim + d];
      }
    }
    const int64_t at = (int64_t(b) * p.nhead_q + head * group + row) * p.splits + split;
    p.part_out[at * kHdim + d] = sum > 0.f ? out / sum : 0.f;
    if (d == 0) p.part_lse[at] = sum > 0.f ? most * p.score_scale_log2 + log2_approx(sum) : -kInfinity;
  }
}

// Grid (nhead_q, batch), a thread a column.
TILEKILN_DEVICE void combine(const Row& p) {
  const int h = blockIdx.x, b = blockIdx.y, d = threadIdx.x;
  const int64_t first = (int64_t(b) * p.nhead_q + h) * p.splits;
  float most = -kInfinity, out = 0.f, sum = 0.f;
  for (int s = 0; s < p.splits; ++s) most = fmaxf(most, p.part_lse[first + s]);
  for (int s = 0; s < p.splits && most > -kInfinity; ++s) {
    const float weight = exp2_approx(p.part_lse[first + s] - most);
    sum += weight;
    out += weight * p.part_out[(first + s) * kHdim + d];
  }
  p.out[b * p.out_batch + h * p.out_head + d] = uint16_t(pack(sum > 0.f ? out / sum : 0.f, 0.f));
  if (p.lse && d == 0) p.lse[int64_t(b) * p.nhead_q + h] = sum > 0.f ? (most + log2_approx(sum)) * kLn2 : -kInfinity;
}

}  // namespace tilekiln::cuda::fmha_decode

using namespace tilekiln::cuda;

extern "C" __constant__ fmha_decode::Build fmha_decode_build = {fmha_decode::kHdim, fmha_decode::kGroup,
                                                                fmha_decode::kWarps * 32, fmha_decode::kSharedBytes};

extern "C" __global__ void __launch_bounds__(fmha_decode::kWarps * 32)
    fmha_decode_linear(const __grid_constant__ fmha_decode::Row p) {
  extern __shared__ __align__(128) char raw[];
  fmha_decode::decode<false>(p, raw);
}

extern "C" __global__ void __launch_bounds__(fmha_decode::kWarps * 32)
    fmha_decode_vectorized(const __grid_constant__ fmha_decode::Row p) {
  extern __shared__ __align__(128) char raw[];
  fmha_decode::decode<true>(p, raw);
}

extern "C" __global__ void __launch_bounds__(fmha_decode::kHdim)
    fmha_decode_combine(const __grid_constant__ fmha_decode::Row p) {
  fmha_decode::combine(p);
}
