// SPDX-License-Identifier: MIT
// Attention forward on AMD GPUs. One code object for each (architecture, dtype, head dims, tile): masks, bias, alibi,
// soft cap, sink, LSE, groups, GQA and strides are fields of the problem. Dropout is a twin, which costs registers.
//
//   S^T = K Q^T    P^T = exp2(S^T c - m)    O^T = V^T P^T    O = O^T / l    LSE = m + ln l
//
// A lane owns one query: maxima and sums over keys stay in the lane and its other half. The accumulator of S^T is, but
// for its rounding, the fragment of P^T that the second product wants, so P never touches LDS. K lies in LDS as it
// came, V transposed. Emulated (functional), never run on AMD silicon.
//
// With CACHE the keys lie in a KV cache, paged or not, a tile's rows may be pairs of a query and one of the heads that
// share a key head, and a workgroup may have a part of the keys (the splits of decode).
//
// With FP8 q, k and v are of 8 bits, which fp16 holds exactly; with KV_FP8 k and v of a cache alone, which bf16 holds.
// Where the architecture multiplies the format, q and k meet as they are; else they are widened on their way to LDS and
// registers, as v always is: P is fp16.
//
// P becomes 16 bits by cutting (CK's default), or to even, or with halves up (kRoundEven, kRoundUp), where no
// instruction does it.
//
// -D: TILEKILN_FP16, FP8 (0, 1: out is bf16, of a cache also e4m3, 2: out is fp32), KV_FP8, FNUZ, HDIM_Q, HDIM_V,
// TILE_K, WAVES, RELOAD_Q, DROPOUT, CACHE, and of a kernel of fixed features TILEKILN_CODES, its signature, packed.
#include "kernels/attention/hip/fragments.h"
#include "kernels/attention/hip/places.h"
#include "kernels/attention/hip/problem.h"
#include "kernels/attention/hip/sequences.h"
#include "kernels/attention/score_changes.h"
#include "kernels/backends/hip/vocabulary.h"
#ifdef TILEKILN_CODES
#undef TILEKILN_FP16  // a name of tilekiln.h, too
#include "kernels/generated/fmha_fwd.h"
#endif

namespace tilekiln::hip {

constexpr bool kCache = CACHE, kDropout = DROPOUT, kReloadQ = RELOAD_Q;
constexpr bool kScaled = kFp8 != 0 || kKvFp8;  // k and v have scales
constexpr int kWaves = WAVES;
using Problem =
    Choose<kCache, Choose<kScaled, ScaledCacheProblem, CacheProblem>, Choose<kFp8 != 0, ScaledProblem, ForwardProblem>>;
using Out = Choose<kFp8 == 2, float, Choose<kFp8 != 0, __bf16, T>>;
/// The features that a launch asks for. A kernel of fixed features knows what its signature says; the origin of the
/// diagonal, whether sinks are logits and how P is rounded, it asks.
#ifdef TILEKILN_CODES
constexpr tilekiln::fmha_fwd::Signature kKnown = tilekiln::fmha_fwd::unpack(TILEKILN_CODES);
constexpr int kKnownOn = (kKnown.mask == tilekiln::fmha_fwd::Mask::window ? kWindow : 0) |
                         (kKnown.softcap ? kSoftcap : 0) |
                         (kKnown.bias == tilekiln::fmha_fwd::Bias::alibi ? kAlibi : 0) |
                         (kKnown.bias == tilekiln::fmha_fwd::Bias::elementwise ? kBias : 0) | (kKnown.lse ? kLse : 0);
constexpr bool kMayMask = kKnownOn & kWindow;
constexpr int kAsked = kTopLeft | kRoundEven | kRoundUp | (kKnown.sink ? kSink : 0);
TILEKILN_DEVICE int features_of(const Problem& p) { return (p.features & kAsked) | kKnownOn; }
#else
constexpr bool kMayMask = true;
TILEKILN_DEVICE int features_of(const Problem& p) { return p.features; }
#endif
constexpr int kSize = sizeof(Element), kKeySize = sizeof(KeyElement);  // bytes
[[maybe_unused]] constexpr int kVector = 16 / kKeySize;  // elements that lie side by side in vectorized pages
constexpr int kHdimQ = HDIM_Q, kHdimV = HDIM_V, kTileK = TILE_K, kThreads = kWaves * kLanes;
constexpr int kTileQ = kWaves * kColumns;
constexpr int kRowK = kHdimQ + 8, kRowV = kTileK + 8;  // rows of LDS, padded against bank conflicts

static_assert(kHdimQ % kScoreDepth == 0, "hdim_q of the kernel must be a multiple of the product's depth");
static_assert(kHdimV % kRows == 0, "hdim_v of the kernel must be a multiple of the product's rows");
static_assert(kTileK % kRows == 0, "the key tile must be a multiple of the product's rows");
static_assert(kTileK * kHdimQ % (8 * kThreads) == 0, "every thread must load as many pieces of K as any other");

/// The sequence and head of this workgroup.
struct Work {
  Global<const Element> q;
  Global<const KeyElement> k, v;
  Global<Out> out;
  int batch, head, start_q, seqlen_q, seqlen_k;  // start_q: of a packed sequence
  int first;                                     // query of the block; with pack: pair of a query and a head
  int rows, pack, split;                         // of the sequence: queries, or pairs
  int first_query, last_query;                   // of the block
  fmha::Keys keys;                               // of a cache
  i64 out_at;                                    // of a cache: elements before out
};

template <class P> TILEKILN_DEVICE Work work_on_cache(const P& p) {
  Work w;
  w.batch = __builtin_amdgcn_workgroup_id_z() / p.splits;
  w.split = __builtin_amdgcn_workgroup_id_z() - w.batch * p.splits;
  w.pack = p.pack;
  w.head = __builtin_amdgcn_workgroup_id_y() * p.pack;
  w.first = __builtin_amdgcn_workgroup_id_x() * kTileQ;
  w.first_query = w.first / p.pack, w.last_query = (w.first + kTileQ - 1) / p.pack;
  const fmha::Queries queries = fmha::find_queries(p.at, w.batch);
  w.keys = fmha::find_keys(p.at, w.batch);
  w.seqlen_q = queries.count, w.start_q = queries.start;
  w.rows = queries.count * p.pack;
  w.seqlen_k = w.keys.count;
  const int key_head = w.head / p.heads_per_key_head;
  w.q = (Global<const Element>)p.q + (p.at.seqstart_q ? i64(w.start_q) * p.q_row : w.batch * p.q_batch) +
        w.head * p.q_head;
  w.out_at = (p.at.seqstart_q ? i64(w.start_q) * p.out_row : w.batch * p.out_batch) + w.head * p.out_head;
  w.out = (Global<Out>)p.out + w.out_at;
  w.k = (Global<const KeyElement>)p.k + key_head * p.k_head;
  w.v = (Global<const KeyElement>)p.v + key_head * p.v_head;
  return w;
}

TILEKILN_DEVICE Work work(const Problem& p) {
  if constexpr (kCache) return work_on_cache(p);
  Work w;
  w.batch = __builtin_amdgcn_workgroup_id_z();
  w.split = 0, w.pack = 1;
  w.head = __builtin_amdgcn_workgroup_id_y();
  w.first = __builtin_amdgcn_workgroup_id_x() * kTileQ;
  w.first_query = w.first, w.last_query = w.first + kTileQ - 1;
  w.seqlen_q = length(p.seqlens_q, p.cu_seqlens_q, w.batch, p.seqlen_q);
  w.seqlen_k = length(p.seqlens_k, p.cu_seqlens_k, w.batch, p.seqlen_k);
  w.start_q = 0;
  i64 q = w.batch * p.q_batch, k = w.batch * p.k_batch, v = w.batch * p.v_batch, out = w.batch * p.out_batch;
  if (p.seqstart_q) {
    const int start_k = start(p.seqstart_k, w.batch, p.total_k);
    w.start_q = start(p.seqstart_q, w.batch, p.total_q);
    w.seqlen_q = w.seqlen_q < p.total_q - w.start_q ? w.seqlen_q : p.total_q - w.start_q;
    w.seqlen_k = w.seqlen_k < p.total_k - start_k ? w.seqlen_k : p.total_k - start_k;
    q = i64(w.start_q) * p.q_row, out = i64(w.start_q) * p.out_row;
    k = i64(start_k) * p.k_row, v = i64(start_k) * p.v_row;
  }
  w.rows = w.seqlen_q;
  const int key_head = w.head / p.heads_per_key_head;
  w.q = (Global<const Element>)p.q + q + w.head * p.q_head;
  w.k = (Global<const KeyElement>)p.k + k + key_head * p.k_head;
  w.v = (Global<const KeyElement>)p.v + v + key_head * p.v_head;
  w.out = (Global<Out>)p.out + out + w.head * p.out_head;
  return w;
}

/// Tells whether V lies in a cache as it is wanted: eight keys of a column next to each other.
template <class P> TILEKILN_DEVICE bool is_vectorized(const P& p) {
  if constexpr (kCache) return p.vectorized;
  return false;
}

TILEKILN_DEVICE fmha::KeyMask mask_of(const Problem& p, int shift) {
  return kMayMask ? fmha::KeyMask{shift, p.left, p.right, p.sink_keys} : fmha::KeyMask{shift, 1 << 29, 1 << 29, 0};
}

/// Moves tiles of K and V from memory to LDS, 8 elements at a time; V is transposed on the way, 4 keys by 8 columns.
struct Mover {
  enum { kPiecesK = kTileK * kHdimQ / 8 / kThreads, kItemsV = kTileK / 4 * (kHdimV / 8) };
  enum { kPiecesV = (kItemsV + kThreads - 1) / kThreads };
  Global<const KeyElement> from_k, from_v;
  int thread, seqlen_k, row_k, row_v, hdim_q, hdim_v;
  Eight k[kPiecesK], v[kPiecesV][4];

  const Problem* p;
  const fmha::Keys* keys;  // from here on of a cache
  i64 chunk_k, chunk_v;
  bool one_page;        // a tile never lies in two
  fmha::SeenKeys seen;  // by some row: what no row sees is not read, and its page may be another's

  /// Eight elements of a row of K or V, or four of vectorized V: `at` elements from the head's first one. Where offsets
  /// of the pool fit a buffer's, by one buffer that ends with the pool; else by 64-bit addresses.
  template <class Piece> TILEKILN_DEVICE Piece piece(Global<const KeyElement> from, int bytes, i64 at, bool inside) {
    if (bytes != 0) {
      const auto pool = buffer((const void*)from, bytes);
      const int offset = inside ? int(at) * kKeySize : 0x7fffffff;
      if constexpr (sizeof(Piece) == 16)
        return __builtin_amdgcn_raw_buffer_load_b128(pool, offset, 0, 0);
      else if constexpr (sizeof(Piece) == 8)
        return __builtin_amdgcn_raw_buffer_load_b64(pool, offset, 0, 0);
      else
        return __builtin_amdgcn_raw_buffer_load_b32(pool, offset, 0, 0);
    }
    Piece found = Piece(0);
    if (inside) found = *(Global<const Piece>)(from + at);
    return found;
  }

  /// Keys from n on, wherever their pages are. A tile in one page has a buffer of its own, which begins with the page.
  template <class P> TILEKILN_DEVICE void load_cache(Mover& m, const P& p, int n) {
    const int rows = m.seqlen_k - n < kTileK ? m.seqlen_k - n : kTileK;
    const fmha::Page first = fmha::find_page(p.at, *m.keys, m.keys->first + n);
    const int number = __builtin_amdgcn_readfirstlane(first.number), key = __builtin_amdgcn_readfirstlane(first.key);
    Global<const KeyElement> from_k = m.from_k, from_v = m.from_v;
    int bytes_k = p.k_bytes, bytes_v = p.v_bytes;
    if (m.one_page) {
      from_k += number * p.k_batch + i64(key) * p.k_row;
      from_v += number * p.v_batch + (p.vectorized ? (key / kVector) * p.v_chunk : i64(key) * p.v_row);
      const int last = m.hdim_q - 8;
      bytes_k = ((rows - 1) * int(p.k_row) + last / kVector * int(m.chunk_k) + last % kVector + 8) * kKeySize;
      bytes_v = (p.vectorized ? (rows - 1) / kVector * int(p.v_chunk) + m.hdim_v * kVector
                              : (rows - 1) * int(p.v_row) + m.hdim_v) *
                kKeySize;
    }
    const auto is_seen = [&](int row) TILEKILN_LAMBDA { return !fmha::SeenKeys::hide(m.seen, n + row); };
    const auto place = [&](int row) TILEKILN_LAMBDA {  // of a row that is inside
      return m.one_page ? fmha::Page{0, row} : fmha::find_page(p.at, *m.keys, m.keys->first + n + row);
    };
#pragma unroll
    for (int c = 0; c < kPiecesK; c++) {
      const int item = c * kThreads + m.thread, row = item / (kHdimQ / 8), column = item % (kHdimQ / 8) * 8;
      const bool inside = is_seen(row) && column < m.hdim_q;
      const fmha::Page page = place(inside ? row : 0);
      const i64 at =
          page.number * p.k_batch + i64(page.key) * p.k_row + column / kVector * m.chunk_k + column % kVector;
      m.k[c] = piece<Eight>(from_k, bytes_k, at, inside);
    }
#pragma unroll
    for (int c = 0; c < kPiecesV; c++) {
      const int item = c * kThreads + m.thread, row = item / (kHdimV / 8) * 4, column = item % (kHdimV / 8) * 8;
      if (kItemsV % kThreads != 0 && item >= kItemsV) continue;
      if (p.vectorized) {  // as it is wanted: four keys of a column next to each other
        constexpr u32 kBits = kScaled ? 0xff : 0xffff;
        u32 keep[4];
#pragma unroll
        for (int j = 0; j < 4; j++) keep[j] = is_seen(row + j) ? kBits << j * (kScaled ? 8 : 16) % 32 : 0;
        const bool inside = (keep[0] | keep[1] | keep[2] | keep[3]) != 0 && column < m.hdim_v;
        const fmha::Page page = place(inside ? row : 0);
        const i64 at = page.number * p.v_batch + page.key / kVector * p.v_chunk + column * kVector + page.key % kVector;
        if constexpr (kScaled) {
#pragma unroll
          for (int i = 0; i < 8; i++)
            m.v[c][i / 2][i % 2] =
                piece<u32>(from_v, bytes_v, at + i * kVector, inside) & (keep[0] | keep[1] | keep[2] | keep[3]);
        } else {
#pragma unroll
          for (int i = 0; i < 8; i++) {
            const U2 four = piece<U2>(from_v, bytes_v, at + i * 8, inside);
            m.v[c][i / 2][i % 2 * 2] = four[0] & (keep[0] | keep[1]);
            m.v[c][i / 2][i % 2 * 2 + 1] = four[1] & (keep[2] | keep[3]);
          }
        }
        continue;
      }
#pragma unroll
      for (int j = 0; j < 4; j++) {
        const bool inside = is_seen(row + j) && column < m.hdim_v;
        const fmha::Page page = place(inside ? row + j : 0);
        m.v[c][j] = piece<Eight>(from_v, bytes_v, page.number * p.v_batch + i64(page.key) * p.v_row + column, inside);
      }
    }
  }

  /// Keys from n on. Rows past the sequence and columns past the head dim are 0. The buffers begin at the tile and end
  /// with it, so offsets stay small however long the sequence, and nothing past it is claimed.
  TILEKILN_DEVICE void load(Mover& m, int n) {
    if constexpr (kCache) return load_cache(m, *m.p, n);
    const int rows = m.seqlen_k - n < kTileK ? m.seqlen_k - n : kTileK;
    const auto rows_k =
        buffer((const void*)(m.from_k + i64(n) * m.row_k), ((rows - 1) * m.row_k + m.hdim_q) * kKeySize);
    const auto rows_v =
        buffer((const void*)(m.from_v + i64(n) * m.row_v), ((rows - 1) * m.row_v + m.hdim_v) * kKeySize);
#pragma unroll
    for (int c = 0; c < kPiecesK; c++) {
      const int item = c * kThreads + m.thread, row = item / (kHdimQ / 8), column = item % (kHdimQ / 8) * 8;
      m.k[c] = load_eight(rows_k, column < m.hdim_q ? (row * m.row_k + column) * kKeySize : 0x7fffffff);
    }
#pragma unroll
    for (int c = 0; c < kPiecesV; c++) {
      const int item = c * kThreads + m.thread, row = item / (kHdimV / 8) * 4, column = item % (kHdimV / 8) * 8;
      if (kItemsV % kThreads != 0 && item >= kItemsV) continue;
#pragma unroll
      for (int j = 0; j < 4; j++) {
        m.v[c][j] = load_eight(rows_v, column < m.hdim_v ? ((row + j) * m.row_v + column) * kKeySize : 0x7fffffff);
      }
    }
  }

  TILEKILN_DEVICE void store(const Mover& m, Score* shared_k, T* shared_v) {
#pragma unroll
    for (int c = 0; c < kPiecesK; c++) {
      const int item = c * kThreads + m.thread, row = item / (kHdimQ / 8), column = item % (kHdimQ / 8) * 8;
      *(ScoreEight*)(shared_k + row * kRowK + column) = for_scores(m.k[c]);
    }
#pragma unroll
    for (int c = 0; c < kPiecesV; c++) {
      const int item = c * kThreads + m.thread, row = item / (kHdimV / 8) * 4, column = item % (kHdimV / 8) * 8;
      if (kItemsV % kThreads != 0 && item >= kItemsV) continue;
      const U4 keys[4] = {widen(m.v[c][0]), widen(m.v[c][1]), widen(m.v[c][2]), widen(m.v[c][3])};
#pragma unroll
      for (int i = 0; i < 8; i++) {  // column + i of the four keys
        const u32 halves = i % 2 ? 0x07060302u : 0x05040100u;
        if (kCache && is_vectorized(*m.p)) {
          *(U2*)(shared_v + (column + i) * kRowV + row) = U2{keys[i / 2][i % 2 * 2], keys[i / 2][i % 2 * 2 + 1]};
          continue;
        }
        const U2 four = {__builtin_amdgcn_perm(keys[1][i / 2], keys[0][i / 2], halves),
                         __builtin_amdgcn_perm(keys[3][i / 2], keys[2][i / 2], halves)};
        *(U2*)(shared_v + (column + i) * kRowV + row) = four;
      }
    }
  }
};

/// Everything a lane holds of its query.
struct Query {
  int row, half, lane;  // of the sequence; of the wave; column of the products
  int head;             // beyond the block's
  int shift;            // row i's diagonal is key i + shift
  float slope;          // of alibi
  Accumulator out[kHdimV / kRows];
  float maximum, sum;
  float unit;  // out is a multiple of it: where k and v have scales that of the last V
};

}  // namespace tilekiln::hip
#include "kernels/attention/fmha_fwd/hip/scales.h"
namespace tilekiln::hip {

template <class Body> TILEKILN_DEVICE void each_score(Body body) {
#pragma unroll
  for (int block = 0; block < kTileK / kRows; block++)
#pragma unroll
    for (int r = 0; r < kAccumulator; r++) body(block, r);
}
template <class Body> TILEKILN_DEVICE void each_out(Body body) {
#pragma unroll
  for (int d = 0; d < kHdimV / kRows; d++)
#pragma unroll
    for (int r = 0; r < kAccumulator; r++) body(d, r);
}

/// Scores of one key tile after soft cap, alibi, bias and mask, in units of 1 / scale: softmax is exp2(scale s - m).
struct Scores {
  Accumulator s[kTileK / kRows];
  float scale;
};

TILEKILN_DEVICE void finish_scores(const Problem& p, const Work& w, const Query& query, int n, bool masked, Scores& x) {
  const int from = n + row_of(0, query.half);  // the lane's first key
  const auto each = [&](const auto& change) TILEKILN_LAMBDA {
    each_score([&](int block, int r)
                   TILEKILN_LAMBDA { x.s[block][r] = change(x.s[block][r], 0, block * kRows + row_of(r, 0)); });
  };
  x.scale = p.scale_log2;
  if (features_of(p) & kSoftcap) cuda::cap_scores(each, p.scale_over_softcap, p.softcap), x.scale = kLog2e;
  const float unit = kLog2e * reciprocal(x.scale);  // what 1 of a natural score is
  if (features_of(p) & kAlibi) cuda::slant_scores(each, query.slope * unit, float(query.row + query.shift - from));
  if (features_of(p) & kBias) {
    using Bias = Choose<kCache && kFp8 != 0, float, T>;  // of an fp8 cache
    const Global<const Bias> plane = (Global<const Bias>)p.bias + w.batch * p.bias_batch + w.head * p.bias_head +
                                     i64(w.start_q + w.first_query) * p.bias_row;
    const int queries = min(w.seqlen_q - w.first_query, kTileQ), size = sizeof(Bias);
    const auto rows = buffer((const void*)plane, ((queries - 1) * p.bias_row + w.seqlen_k) * size);
    const int row = (query.row - w.first_query) * p.bias_row + from;
    each([&](float s, int, int column) TILEKILN_LAMBDA {
      const int at = (row + column) * size;
      if constexpr (size == 4)
        return s + unit * bit_cast<float>(__builtin_amdgcn_raw_buffer_load_b32(rows, at, 0, 0));
      else
        return s + unit * float(bit_cast<Bias>(__builtin_amdgcn_raw_buffer_load_b16(rows, at, 0, 0)));
    });
  }
  if (!masked) return;
  const auto seen = fmha::SeenKeys::of(mask_of(p, query.shift), query.row, w.seqlen_k, from);
  each([&](float s, int, int column) TILEKILN_LAMBDA { return fmha::SeenKeys::hide(seen, column) ? -kInfinity : s; });
}

/// m' = max(m, scale max s); P = exp2(scale s - m'); l = l exp2(m - m') + sum P; O *= exp2(m - m') in_units.
TILEKILN_DEVICE void softmax(Scores& x, Query& query, float in_units) {
  float most = -kInfinity;
  each_score([&](int block, int r) TILEKILN_LAMBDA { most = max(most, x.s[block][r]); });
  most = max(most, other_half(most)) * x.scale;
  const float now = max(query.maximum, most), base = now == -kInfinity ? 0.f : now;
  const float correction = exp2(query.maximum - base);
  query.maximum = now;
  float sum = 0.f;
  each_score([&](int block, int r) TILEKILN_LAMBDA {
    const float p = exp2(__builtin_fmaf(x.s[block][r], x.scale, -base));
    x.s[block][r] = p;
    sum += p;
  });
  query.sum = query.sum * correction + sum;
  each_out([&](int d, int r) TILEKILN_LAMBDA { query.out[d][r] *= correction * in_units; });
}

}  // namespace tilekiln::hip
#include "kernels/attention/fmha_fwd/hip/dropout.h"

namespace tilekiln::hip {

/// Hands a mover the fields that it must know of a cache.
template <class P> TILEKILN_DEVICE void move_from_cache(Mover& mover, const P& p, const Work& w,
                                                        const fmha::KeyMask& mask) {
  mover.seen = {w.first_query + mask.shift - mask.left, min(w.seqlen_k, w.last_query + mask.shift + mask.right + 1),
                mask.sinks};
  mover.p = &p, mover.keys = &w.keys;
  mover.chunk_k = p.k_chunk, mover.chunk_v = p.v_chunk;
  mover.one_page = p.at.table == nullptr || (p.at.page_size % kTileK == 0 && w.keys.first % kTileK == 0);
}

/// Tiles of a part of the keys: those of the window are dealt out; those of sink columns are the first split's.
template <class P> TILEKILN_DEVICE void deal_out(const P& p, const Work& w, fmha::KeyRange& r) {
  if (p.splits == 1) return;
  const int part = (r.last - r.first + p.splits - 1) / p.splits;
  if (w.split > 0) r.sinks = 0;
  r.first = min(r.first + w.split * part, r.last);
  r.last = min(r.first + part, r.last);
}

/// Stores a part's result where the keys are split, or out of e4m3. Returns whether it was either.
template <class P>
TILEKILN_DEVICE bool store_of_cache(const P& p, const Work& w, const Query& query, float sum, float inverse) {
  if (p.splits > 1) {
    const i64 part = ((i64(w.batch) * p.seqlen_q + query.row) * p.nhead_q + w.head + query.head) * p.splits + w.split;
    const Global<float> to = (Global<float>)p.part_out + part * p.hdim_v;
    each_out([&](int d, int r) TILEKILN_LAMBDA {
      const int column = d * kRows + row_of(r, query.half);
      if (column < p.hdim_v) to[column] = query.out[d][r] * inverse;
    });
    if (query.half == 0) ((Global<float>)p.part_lse)[part] = sum > 0.f ? query.maximum + log2(sum) : -kInfinity;
    return true;
  }
  if constexpr (kFp8) {
    if (p.out_fp8) {
      const float factor = inverse * (p.out_scale ? *(Global<const float>)p.out_scale : 1.f);
      const Global<unsigned char> out =
          (Global<unsigned char>)p.out + w.out_at + i64(query.row) * p.out_row + query.head * p.out_head;
      each_out([&](int d, int r) TILEKILN_LAMBDA {
        const int column = d * kRows + row_of(r, query.half);
        if (column < p.hdim_v) out[column] = static_cast<unsigned char>(as_fp8(query.out[d][r] * factor));
      });
      return true;
    }
  }
  return false;
}

/// The rows of q: in registers, or where each tile loads them from.
struct QueryRows {
  Global<const Element> from;
  int bytes, at;  // of the block's rows; of the lane's
  ScoreFragment piece[kHdimQ / kScoreDepth];

  TILEKILN_DEVICE auto load(const QueryRows& q, const Problem& p, int zero, int d, int half) {
    const auto rows = buffer((const void*)q.from, q.bytes);
    return q_of_memory(rows, q.at + zero, d * kScoreDepth + score_depth_of(half), p.hdim_q);
  }
  TILEKILN_DEVICE QueryRows of(const Problem& p, const Work& w, const Query& query) {
    QueryRows q;
    q.from = w.q + i64(w.first_query) * p.q_row;
    q.bytes = ((w.seqlen_q - w.first_query - 1) * p.q_row + p.hdim_q + (w.pack - 1) * int(p.q_head)) * kSize;
    const int row = (query.row - w.first_query) * p.q_row + query.head * int(p.q_head);
    q.at = kCache && query.row >= w.seqlen_q ? 0x40000000 : row * kSize;
    if constexpr (!kReloadQ) {
#pragma unroll
      for (int d = 0; d < kHdimQ / kScoreDepth; d++) q.piece[d] = load(q, p, 0, d, query.half);
    }
    return q;
  }
};

/// S^T = K Q^T of a tile in LDS.
TILEKILN_DEVICE void multiply(const Problem& p, const QueryRows& q, const Query& query, const Score* shared_k,
                              Scores& x) {
  int zero = 0;
  if constexpr (kReloadQ)  // Q comes from the cache for every tile: RDNA has no registers for it from head dim 160 on
    asm volatile("" : "+s"(zero));  // keeps the loads in the loop
#pragma unroll
  for (int block = 0; block < kTileK / kRows; block++) {
    x.s[block] = Accumulator(0.f);
#pragma unroll
    for (int d = 0; d < kHdimQ / kScoreDepth; d++) {
      const Score* at = shared_k + (block * kRows + query.lane) * kRowK + d * kScoreDepth + score_depth_of(query.half);
      const ScoreFragment piece = kReloadQ ? QueryRows::load(q, p, zero, d, query.half) : q.piece[d];
      x.s[block] = multiply_scores(*(const ScoreFragment*)at, piece, x.s[block]);
    }
  }
}

/// O^T += V^T P^T of a tile in LDS.
TILEKILN_DEVICE void multiply_values(Query& query, const T* shared_v, const Scores& x) {
#pragma unroll
  for (int block = 0; block < kTileK / kRows; block++)
#pragma unroll
    for (int part = 0; part < kRows / kDepth; part++) {
      const Fragment probability = of_accumulator<true>(x.s[block], part, query.half);
#pragma unroll
      for (int d = 0; d < kHdimV / kRows; d++)
        query.out[d] =
            multiply_add(to_meet(shared_v + (d * kRows + query.lane) * kRowV + block * kRows, part, query.half),
                         probability, query.out[d]);
    }
}

/// The keys from n on, a tile of them in LDS, for the lane's query. bytes: LDS of the wave.
TILEKILN_DEVICE void add_tile(const Problem& p, const Work& w, const QueryRows& q, const Scales& scales, int n,
                              bool masked, const Score* shared_k, const T* shared_v, unsigned char* bytes,
                              Query& query) {
  Scores x;
  float in_units = 1.f;
  const Scales::Tile scale = Scales::at(scales, p, w, n);
  if (kScaled && scale.v != 0.f) in_units = query.unit / scale.v, query.unit = scale.v;
  multiply(p, q, query, shared_k, x);
  if (kScaled) each_score([&](int block, int r) TILEKILN_LAMBDA { x.s[block][r] *= scale.scores; });
  finish_scores(p, w, query, n, masked, x);
  softmax(x, query, in_units);
  if (kScaled && scale.v == 0.f) each_score([&](int block, int r) TILEKILN_LAMBDA { x.s[block][r] = 0.f; });
  if constexpr (kDropout) drop(p, w, query, n, bytes, x);
  if constexpr (kRoundsByHand) {
    if (features_of(p) & kRoundEven)
      each_score([&](int block, int r) TILEKILN_LAMBDA { x.s[block][r] = round_even(x.s[block][r]); });
    if (features_of(p) & kRoundUp)
      each_score([&](int block, int r) TILEKILN_LAMBDA { x.s[block][r] = round_up(x.s[block][r]); });
  }
  multiply_values(query, shared_v, x);
}

/// O = O^T / l and the LSE, with the sink: a key of its own, without a value; the only one of a row that sees none.
TILEKILN_DEVICE void store(const Problem& p, const Work& w, Query& query) {
  float sum = query.sum + other_half(query.sum);
  float kept = 1.f;
  if (features_of(p) & kSink && w.split == 0) {
    const float sink = p.sink[w.head + query.head] * kLog2e, most = max(query.maximum, sink);
    if (most > -kInfinity) {
      kept = exp2(query.maximum - most);
      sum = sum * kept + exp2(sink - most);
      query.maximum = most;
    }
  }
  if (query.row >= w.seqlen_q) return;
  if (kScaled) kept *= query.unit * kOfWidened;
  const float inverse =
      sum > 0.f ? kept * (kDropout ? p.keep_scale : 1.f) * reciprocal(sum) : 0.f;  // a row without keys: 0
  if constexpr (kCache)
    if (store_of_cache(p, w, query, sum, inverse)) return;
  const Global<Out> out = w.out + i64(query.row) * p.out_row + query.head * p.out_head;
  each_out([&](int d, int r) TILEKILN_LAMBDA {
    const int column = d * kRows + row_of(r, query.half);
    if (column < p.hdim_v) out[column] = Out(query.out[d][r] * inverse);
  });
  if (features_of(p) & kLse && query.half == 0)
    p.lse[w.batch * p.lse_batch + (w.head + query.head) * p.lse_head + w.start_q + query.row] =
        sum > 0.f ? (query.maximum + log2(sum)) * kLn2 : -kInfinity;
}

}  // namespace tilekiln::hip
using namespace tilekiln;
using namespace tilekiln::hip;

extern "C" __constant__ const ForwardBuild tilekiln_fmha_fwd_build = {
    kHdimQ, kHdimV, kTileQ, kTileK, kThreads, kBf16, kDropout, kKvFp8 ? 3 : kFp8, kFnuz};

TILEKILN_KERNEL(kThreads) __attribute__((amdgpu_waves_per_eu(1, 2))) void tilekiln_fmha_fwd_waves(Problem p) {
  __shared__ __align__(16) Score shared_k[kTileK * kRowK];
  __shared__ __align__(16) T shared_v[kHdimV * kRowV];
  __shared__ __align__(16) unsigned char shared_bytes[kWaves * 1024];  // of dropout, and of no kernel without
  const Work w = work(p);
  if (w.first >= w.rows || w.seqlen_q <= p.min_seqlen_q) return;

  const int thread = __builtin_amdgcn_workitem_id_x(), wave = __builtin_amdgcn_readfirstlane(thread / kLanes);
  Query query;
  query.lane = lane() % kHalf, query.half = lane() / kHalf;
  const int pair = w.first + wave * kColumns + query.lane;
  query.row = kCache ? pair / w.pack : pair, query.head = kCache ? pair - query.row * w.pack : 0;
  query.maximum = -kInfinity, query.sum = 0.f, query.unit = 1.f;
#pragma unroll
  for (int d = 0; d < kHdimV / kRows; d++) query.out[d] = Accumulator(0.f);
  const QueryRows q = QueryRows::of(p, w, query);
  query.shift = features_of(p) & kTopLeft ? 0 : w.seqlen_k - w.seqlen_q;
  query.slope = features_of(p) & kAlibi
                    ? ((Global<const float>)p.alibi_slopes)[w.batch * p.alibi_batch + w.head + query.head]
                    : 0.f;
  const Scales scales = Scales::of(p, w, query);
  Mover mover;
  mover.from_k = w.k, mover.from_v = w.v;
  mover.thread = thread, mover.seqlen_k = w.seqlen_k;
  mover.row_k = p.k_row, mover.row_v = p.v_row, mover.hdim_q = p.hdim_q, mover.hdim_v = p.hdim_v;
  const fmha::KeyMask mask = mask_of(p, query.shift);
  if constexpr (kCache) move_from_cache(mover, p, w, mask);
  const int queries = w.last_query - w.first_query + 1;
  fmha::KeyRange range = fmha::KeyRange::of<kTileK>(mask, w.first_query, queries, w.seqlen_k);
  const auto whole = fmha::KeyRange::whole<kTileK>(mask, w.first_query, queries, w.seqlen_k, range.first);
  if constexpr (kCache) deal_out(p, w, range);
  // First the tiles of sink columns. A step from one range to the other in the inner loop would cost 30 registers of
  // copies.
  int from = range.sinks > 0 ? 0 : range.first, to = range.sinks > 0 ? range.sinks : range.last;
  for (;;) {
    for (int i = from; i < to; i++) {
      Mover::load(mover, i * kTileK);
      __builtin_amdgcn_s_barrier();  // every wave has done with the tile before
      Mover::store(mover, shared_k, shared_v);
      publish();
      add_tile(p, w, q, scales, i * kTileK, i < whole.first || i >= whole.last, shared_k, shared_v,
               shared_bytes + wave * 1024, query);
    }
    if (to == range.last) break;
    from = range.first, to = range.last;
  }
  store(p, w, query);
}
