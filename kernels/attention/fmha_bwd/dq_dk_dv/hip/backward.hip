// SPDX-License-Identifier: MIT
// Attention backward on AMD GPUs, three kernels of one code object for each (architecture, dtype, head dim).
//
//   D = rowsum(dO o O)    P = exp(S - LSE)    dP = dO V^T    dS = P o (dP - D)
//   dV^T += dO^T P        dK^T += scale Q^T dS        dQ += scale dS K
//
// Main stage: a unit is a tile of keys of one key head; a workgroup walks over the query heads that share it and the
// tiles of queries that see it. A lane owns one key: S and dP are products of Q and dO, which lie in LDS, with the
// lane's row of K and V; their accumulators are, but for rounding, the second operands of dV^T and dK^T, so P and dS
// meet dO^T and Q^T (a transposed copy in LDS) without crossing lanes. dS crosses them once, through LDS, for dQ, which
// is added to fp32 sums by atomics: one for all workgroups, each a unit of its own; or, deterministic, in slots of
// persistent workgroups, which walk over units in an order of their own, no two of them in one slot
// (kernels/attention/fmha_bwd/schedule.h). The first stage writes the schedule of packed sequences, the last adds slots
// up in their order. Source: Dao et al., "FlashAttention-2" (2023), section 3.1.2. Emulated (functional), never run on
// AMD silicon.
//
// Where a tile of the whole head dim does not fit into LDS or dK and dV not into registers, a workgroup makes the
// gradients of a part of the columns: S and dP it makes whole, from lines of Q, then of dO in their place, so a pair of
// halves costs 7 products for 5.
//
// -D: TILEKILN_FP16, HDIM, WAVES, RELOAD_K (K and V from the cache for every product: registers), PARTS of the columns.
#include "kernels/attention/fmha_bwd/dq_dk_dv/hip/sequence.h"
#include "kernels/attention/hip/fragments.h"

#include "kernels/attention/fmha_bwd/schedule.h"
#include "kernels/attention/random_bytes.h"

namespace tilekiln::hip {

constexpr bool kReloadK = RELOAD_K;
constexpr int kHdim = HDIM, kParts = PARTS, kWaves = WAVES, kPart = kHdim / kParts, kTileQ = 32,
              kTileK = kWaves * kColumns, kThreads = kWaves * kLanes;
constexpr int kRowD = kHdim + 8, kRowQ = kTileQ + 8, kRowK = kTileK + 8;  // lines of LDS, padded against bank conflicts
constexpr int kBlocks = kTileQ / kRows;
constexpr float kLargest = 3.402823466e38f;

static_assert(kPart % kRows == 0 && kHdim % kDepth == 0,
              "a part of the kernel's head dim must be a multiple of the product's rows");
static_assert(kBlocks <= 2, "the main stage has the scores of one block of rows, or two");
static_assert(kParts == 1 || kReloadK, "parts of the head dim take K and V from the cache");
static_assert(kTileK % kDepth == 0, "the key tile must be a multiple of the product's depth");

/// Row 0 of head h of the sequence in an array.
template <class Rows> TILEKILN_DEVICE Rows rows_of(const void* data, int b, int start, int h, i64 batch, i64 head,
                                                   int row) {
  return (Rows)data + b * batch + h * head + i64(start) * row;
}
using Read = Global<const T>;
using Write = Global<T>;

/// kCount rows of kWide columns of an array, 16 bytes at a time, four rows by eight columns an item: to LDS as they are
/// and transposed.
template <int kCount, int kWide = kHdim> struct Tile {
  enum { kItems = kCount / 4 * (kWide / 8), kEach = (kItems + kThreads - 1) / kThreads };
  U4 piece[kEach][4] = {};  // an item that a thread has not got would else be held through a walk

  TILEKILN_DEVICE void load(Tile& t, Read from, int row_step, int rows, int hdim, int thread) {
    const auto memory =
        buffer((const void*)from, rows > 0 && (kWide == kHdim || hdim > 0) ? ((rows - 1) * row_step + hdim) * 2 : 0);
#pragma unroll
    for (int c = 0; c < kEach; c++) {
      const int item = c * kThreads + thread, row = item / (kWide / 8) * 4, column = item % (kWide / 8) * 8;
      if (kItems % kThreads != 0 && item >= kItems) continue;
#pragma unroll
      for (int j = 0; j < 4; j++) {
        const int at = column < hdim && row + j < rows ? ((row + j) * row_step + column) * 2 : 0x7fffffff;
        t.piece[c][j] = __builtin_amdgcn_raw_buffer_load_b128(memory, at, 0, 0);
      }
    }
  }

  /// lines: null for the transposed copy alone, which has kPart columns from `first` on.
  TILEKILN_DEVICE void store(const Tile& t, T* lines, T* transposed, int step, int thread,
                             [[maybe_unused]] int first = 0) {
#pragma unroll
    for (int c = 0; c < kEach; c++) {
      const int item = c * kThreads + thread, row = item / (kWide / 8) * 4, column = item % (kWide / 8) * 8;
      if (kItems % kThreads != 0 && item >= kItems) continue;
      if (lines != nullptr)
#pragma unroll
        for (int j = 0; j < 4; j++) *(U4*)(lines + (row + j) * kRowD + column) = t.piece[c][j];
      if (kWide != kPart && u32(column - first) >= u32(kPart)) continue;
#pragma unroll
      for (int i = 0; i < 8; i++) {  // column + i of the four rows
        const u32 halves = i % 2 ? 0x07060302u : 0x05040100u;
        *(U2*)(transposed + ((kWide != kPart ? column - first : column) + i) * step + row) =
            U2{__builtin_amdgcn_perm(t.piece[c][1][i / 2], t.piece[c][0][i / 2], halves),
               __builtin_amdgcn_perm(t.piece[c][3][i / 2], t.piece[c][2][i / 2], halves)};
      }
    }
  }
};

/// Walk over one query head and tile of queries: what the lane's key needs to know.
struct Walk {
  int b, h, first, key, half, lane;  // first: query of the tile
  int column;                        // the first of the part
  float slope;
};

struct Pair { Accumulator p, ds; };

template <class Body> TILEKILN_DEVICE void each(Body body) {
#pragma unroll
  for (int r = 0; r < kAccumulator; r++) body(r);
}

/// P, dropped, and dS of scores and dP, of the rows from `block` on: of pairs that see each other, 0 of others.
TILEKILN_DEVICE void finish(const BackwardProblem& p, const Sequence& s, const Walk& w, int block, const float* lse,
                            const float* delta, const unsigned char* bytes, Pair& x) {
  const int rows = s.seqlen_q - w.first;  // of the sequence from the tile on
  Accumulator slope = Accumulator(1.f);
  each([&](int r) TILEKILN_LAMBDA { x.p[r] *= p.softmax_scale; });
  if (p.features & kBwdSoftcap)
    each([&](int r) TILEKILN_LAMBDA {
      const float t = tanh(x.p[r] * reciprocal(p.softcap));
      x.p[r] = p.softcap * t, slope[r] = 1.f - t * t;
    });
  if (p.features & kBwdAlibi)
    each([&](int r) TILEKILN_LAMBDA {
      x.p[r] -= w.slope * __builtin_fabsf(float(w.first + block + row_of(r, w.half) + s.shift - w.key));
    });
  // Offsets in a tile are small; those past the sequence are past the buffer, too.
  const auto place = [&](int r, i64 row_step) TILEKILN_LAMBDA {
    const int row = block + row_of(r, w.half);
    return row < rows && w.key < s.seqlen_k ? (row * int(row_step) + w.key) * 2 : 0x7fffffff;
  };
  const auto plane = [&](const void* data, i64 batch, i64 head, i64 row) TILEKILN_LAMBDA {
    const int inside = rows < kTileQ ? rows : kTileQ;
    return buffer((const void*)((Read)data + w.b * batch + w.h * head + i64(s.start_q + w.first) * row),
                  ((inside - 1) * int(row) + s.seqlen_k) * 2);
  };
  if (p.features & kBwdBias) {
    const auto bias = plane(p.bias, p.bias_batch, p.bias_head, p.bias_row);
    each([&](int r) TILEKILN_LAMBDA {
      x.p[r] += float(bit_cast<T>(u16(__builtin_amdgcn_raw_buffer_load_b16(bias, place(r, p.bias_row), 0, 0))));
    });
  }
  int first = 0, last = rows;  // of the tile's rows: those that see the key
  if (w.key >= s.seqlen_k) last = 0;
  if (p.features & kBwdWindow) {
    first = w.key - s.shift - p.right - w.first;
    if (w.key >= p.sink_keys) last = min(last, w.key - s.shift + p.left - w.first + 1);
  }
  each([&](int r) TILEKILN_LAMBDA {
    const int row = block + row_of(r, w.half);
    const float weight = exp2(x.p[r] * kLog2e - lse[row]);
    x.p[r] = row >= first && row < last ? weight : 0.f;
  });
  if (p.features & kBwdDropout) {
    each([&](int r) TILEKILN_LAMBDA {
      const int row = block + row_of(r, w.half);
      int byte = bytes[row / 8 % 2 * 512 + row / 16 * 8 + row % 8 + w.key % 32 * 16];
      asm("" : "+v"(byte));  // else gfx9 compares a part of a register (SDWA), which nothing here has tested
      const bool keep = byte <= p.dropout_threshold;
      const float scale = keep ? p.keep_scale : 0.f;
      x.ds[r] = x.p[r] * (x.ds[r] * scale - delta[row]);
      x.p[r] *= scale;
    });
  } else {
    each([&](int r) TILEKILN_LAMBDA { x.ds[r] = x.p[r] * (x.ds[r] - delta[block + row_of(r, w.half)]); });
  }
  if (p.dbias && w.column == 0) {
    const auto dbias = plane(p.dbias, p.dbias_batch, p.dbias_head, p.dbias_row);
    each([&](int r) TILEKILN_LAMBDA {
      __builtin_amdgcn_raw_buffer_store_b16(bit_cast<u16>(T(x.ds[r])), dbias, place(r, p.dbias_row), 0, 0);
    });
  }
  each([&](int r) TILEKILN_LAMBDA { x.ds[r] *= slope[r]; });
}

/// The random bytes of a 32 x 32 patch into LDS of the wave's own (kernels/attention/fmha_fwd/hip/forward.hip).
TILEKILN_DEVICE void draw(const BackwardProblem& p, const Walk& w, unsigned char* bytes) {
  const u64 offset = p.dropout_offset + u64(w.b * p.nhead_q + w.h) * 64;
  const int key32 = __builtin_amdgcn_readfirstlane(w.key / 32);
#pragma unroll 1
  for (int call = 0; call < 64 / kLanes; call++) {
    const int at = call * kLanes + lane();
    *(U4*)(bytes + at * 16) = philox(p.dropout_seed, offset + u64(at), u32(w.first / 32), u32(key32));
  }
  publish_to_wave();
}

/// Makes the compiler take a value for another number in every turn of a loop: addresses made of it are worked out
/// again, not kept in registers through the loop, where there are too few.
TILEKILN_DEVICE int again(int value) {
  asm volatile("" : "+v"(value));
  return value;
}

TILEKILN_DEVICE float across(float value, int distance) {
  return bit_cast<float>(__builtin_amdgcn_ds_bpermute((lane() ^ distance) << 2, bit_cast<int>(value)));
}

}  // namespace tilekiln::hip

using namespace tilekiln::hip;
using namespace tilekiln::fmha;

extern "C" __constant__ const BackwardBuild tilekiln_fmha_bwd_build = {kHdim, kTileQ, kTileK, kThreads, kBf16, kParts};

/// The schedule of packed sequences. One wave, whose lanes alone see what they write before the launch ends.
TILEKILN_KERNEL(kScheduleThreads)
void tilekiln_fmha_bwd_schedule(BackwardProblem p) {
  pack_group((Global<int>)p.nsplits, (Global<i64>)p.offsets, (Global<int>)p.cu_state, (Global<int>)p.batch_state,
             p.batch, p.nhead_q / p.heads_per_key_head, p.nhead_q, p.hdim_q, u32(kTileQ), u32(kTileK), u32(p.workers),
             [&](int b) TILEKILN_LAMBDA { return room(p.seqstart_q, b, p.total_q); },
             [&](int b) TILEKILN_LAMBDA {
               const int keys = room(p.seqstart_k, b, p.total_k);
               return keys < p.seqlen_k ? keys : p.seqlen_k;
             },
             int(__builtin_amdgcn_workitem_id_x()), kScheduleThreads,
             [] TILEKILN_LAMBDA {
               __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
               __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
             });
}

/// D, the random bytes of dropout, zeros in the shares of dq and, where a mask hides pairs, in dbias. Grid (tiles of
/// kRowTile rows, nhead_q, batch).
TILEKILN_KERNEL(kRowThreads) void tilekiln_fmha_bwd_prepare(BackwardProblem p) {
  const int b = __builtin_amdgcn_workgroup_id_z(), h = __builtin_amdgcn_workgroup_id_y();
  const int first = __builtin_amdgcn_workgroup_id_x() * kRowTile, thread = __builtin_amdgcn_workitem_id_x();
  const Sequence s = sequence(p, b);
  if (first >= s.seqlen_q) return;
  const int row = first + thread / 8, rows = s.seqlen_q - first < kRowTile ? s.seqlen_q - first : kRowTile;
  float sum = 0.f;
  if (row < s.seqlen_q) {
    Read out = rows_of<Read>(p.out, b, s.start_q, h, p.out_batch, p.out_head, p.out_row) + i64(row) * p.out_row;
    Read dout = rows_of<Read>(p.dout, b, s.start_q, h, p.dout_batch, p.dout_head, p.dout_row) + i64(row) * p.dout_row;
    for (int column = thread % 8 * 8; column < p.hdim_v; column += 64) {
      const T8 x = *(Global<const T8>)(out + column), y = *(Global<const T8>)(dout + column);
#pragma unroll
      for (int i = 0; i < 8; i++) sum += float(x[i]) * float(y[i]);
    }
  }
#pragma unroll
  for (int distance = 1; distance < 8; distance *= 2) sum += across(sum, distance);
  if (row < s.seqlen_q && thread % 8 == 0) {
    ((Global<float>)p.delta)[h * p.rows + s.row + row] = sum;
    if (p.delta_out) ((Global<float>)p.delta_out)[b * p.lse_batch + h * p.lse_head + s.start_q + row] = sum;
  }
  const Shares dq = shares(p, s, b);
  for (int split = 0; split < dq.splits; split++) {
    Global<float> to = share(p, dq, h, split) + i64(first) * p.hdim_q;
    for (int i = thread; i < rows * p.hdim_q; i += kRowThreads) to[i] = 0.f;
  }
  if (p.randval) {
    const u64 offset = p.dropout_offset + u64(b * p.nhead_q + h) * 64;
    store_random_bytes((Global<unsigned char>)p.randval + b * p.randval_batch + h * p.randval_head +
                           (s.start_q + first) * p.randval_row,
                       p.randval_row, first, rows, s.seqlen_k, thread, kRowThreads,
                       [&](int lane, int row32, int key32, u32* words) TILEKILN_LAMBDA {
                         const U4 drawn = philox(p.dropout_seed, offset + u64(lane), u32(row32), u32(key32));
#pragma unroll
                         for (int i = 0; i < 4; i++) words[i] = drawn[i];
                       });
  }
  if (!p.dbias || !(p.features & kBwdWindow)) return;
  Write dbias = (Write)p.dbias + b * p.dbias_batch + h * p.dbias_head + (s.start_q + first) * p.dbias_row;
  for (int i = 0; i < rows; i++)
    for (int key = thread; key < s.seqlen_k; key += kRowThreads) dbias[i * p.dbias_row + key] = T(0.f);
}

/// The lane's key: where its rows of K and V lie in the unit's, and their pieces unless each product loads them anew.
struct Key {
  Read k, v;  // rows of the unit
  int k_bytes, v_bytes, k_at, v_at;
  Fragment k_piece[kHdim / kDepth], v_piece[kHdim / kDepth];

  TILEKILN_DEVICE auto k_memory(const Key& key) { return buffer((const void*)key.k, key.k_bytes); }
  TILEKILN_DEVICE auto v_memory(const Key& key) { return buffer((const void*)key.v, key.v_bytes); }
};

/// LDS of a workgroup.
struct Memory {
  T *q_lines, *q_transposed, *dout_lines, *dout_transposed, *k_transposed, *ds_lines;
  float *lse_log2, *delta;
  unsigned char* bytes;  // of the wave
};

/// Rows of LDS times the lane's row of K, or of V, in memory.
TILEKILN_DEVICE Accumulator of_lines(const T* lines, __amdgpu_buffer_rsrc_t memory, int at, int hdim, int half) {
  Accumulator made = Accumulator(0.f);
  int zero = 0;
  asm volatile("" : "+s"(zero));  // keeps the loads in the loop
#pragma unroll 1                  // else the loads of all are held in registers at once
  for (int d = 0; d < kHdim / kDepth; d++) {
    const int column = d * kDepth + depth_of(half);
    made = multiply_add(*(const Fragment*)(lines + column), of_memory(memory, at + zero, column, hdim), made);
  }
  return made;
}

/// Rows of LDS times the lane's rows of K and of V: S and dP.
TILEKILN_DEVICE void multiply_rows(const BackwardProblem& p, const Memory& m, const Key& key, int row, int half,
                                   Pair& x) {
  x.p = x.ds = Accumulator(0.f);
  [[maybe_unused]] const auto k_memory = Key::k_memory(key), v_memory = Key::v_memory(key);
  const auto step = [&](int d, int zero) TILEKILN_LAMBDA {
    const int column = d * kDepth + depth_of(half), at = row * kRowD + column;
    const Fragment of_k = kReloadK ? of_memory(k_memory, key.k_at + zero, column, p.hdim_q) : key.k_piece[d];
    const Fragment of_v = kReloadK ? of_memory(v_memory, key.v_at + zero, column, p.hdim_v) : key.v_piece[d];
    x.p = multiply_add(*(const Fragment*)(m.q_lines + at), of_k, x.p);
    x.ds = multiply_add(*(const Fragment*)(m.dout_lines + at), of_v, x.ds);
  };
  if constexpr (kReloadK) {
    int zero = 0;
    asm volatile("" : "+s"(zero));  // keeps the loads in the loop
#pragma unroll 1                    // else the loads of all are held in registers at once
    for (int d = 0; d < kHdim / kDepth; d++) step(d, zero);
  } else {
#pragma unroll
    for (int d = 0; d < kHdim / kDepth; d++) step(d, 0);
  }
}

using Keys = Accumulator[kPart / kRows];  // gradients of the lane's key

/// The lane's rows of dk and dv.
TILEKILN_DEVICE void store_keys(const BackwardProblem& p, const Sequence& s, const Walk& w, int head_k, const Keys& dk,
                                const Keys& dv) {
  Write to_k = rows_of<Write>(p.dk, w.b, s.start_k, head_k, p.dk_batch, p.dk_head, p.dk_row) + i64(w.key) * p.dk_row;
  Write to_v = rows_of<Write>(p.dv, w.b, s.start_k, head_k, p.dv_batch, p.dv_head, p.dv_row) + i64(w.key) * p.dv_row;
#pragma unroll
  for (int d = 0; d < kPart / kRows; d++)
#pragma unroll
    for (int r = 0; r < kAccumulator; r++) {
      const int column = w.column + d * kRows + row_of(r, w.half);
      if (column < p.hdim_q) to_k[column] = T(dk[d][r] * p.softmax_scale);
      if (column < p.hdim_v) to_v[column] = T(dv[d][r]);
    }
}

/// Rows of q and dO of a tile of queries, LSE and D to LDS. scores: with parts S, of which the lines of dO take the
/// place.
TILEKILN_DEVICE void load_queries(const BackwardProblem& p, const Sequence& s, const Walk& w, const Memory& m,
                                  const Key& key, Read q, Read dout, int rows, int thread,
                                  Accumulator (&scores)[kBlocks]) {
  float row_lse = kInfinity, row_delta = 0.f;
  if (thread < rows) {
    const float lse = ((Global<const float>)p.lse)[w.b * p.lse_batch + w.h * p.lse_head + s.start_q + w.first + thread];
    row_lse = lse < -kLargest * kLn2 ? kInfinity : lse * kLog2e;
    row_delta = ((Global<const float>)p.delta)[w.h * p.rows + s.row + w.first + thread];
  }
  Tile<kTileQ> tile;
  Tile<kTileQ>::load(tile, q, p.q_row, rows, p.hdim_q, thread);
  // Every wave has done with the tile before: none reads of it behind the barrier before dq.
  if constexpr (kReloadK) {  // one after the other: registers
    Tile<kTileQ>::store(tile, m.q_lines, m.q_transposed, kRowQ, thread, w.column);
    if constexpr (kParts > 1) {
      publish();
#pragma unroll
      for (int i = 0; i < kBlocks; i++)
        scores[i] = of_lines(m.q_lines + (i * kRows + w.lane) * kRowD, Key::k_memory(key), key.k_at, p.hdim_q, w.half);
    }
    Tile<kTileQ>::load(tile, dout, p.dout_row, rows, p.hdim_v, thread);
    if (kParts > 1) __builtin_amdgcn_s_barrier();  // every wave has done with the lines of q
    Tile<kTileQ>::store(tile, m.dout_lines, m.dout_transposed, kRowQ, thread, w.column);
  } else {
    Tile<kTileQ> second;
    Tile<kTileQ>::load(second, dout, p.dout_row, rows, p.hdim_v, thread);
    Tile<kTileQ>::store(tile, m.q_lines, m.q_transposed, kRowQ, thread);
    Tile<kTileQ>::store(second, m.dout_lines, m.dout_transposed, kRowQ, thread);
  }
  if (thread < kTileQ) m.lse_log2[thread] = row_lse, m.delta[thread] = row_delta;
  publish();
}

/// dV^T += dO^T P, dK^T += Q^T dS of the rows from `block` on.
TILEKILN_DEVICE void add_to_keys(const Walk& w, const Memory& m, int block, const Pair& x, Keys& dk, Keys& dv) {
#pragma unroll
  for (int part = 0; part < kRows / kDepth; part++) {
    const Fragment weights = of_accumulator<false>(x.p, part, w.half);
    const Fragment slopes = of_accumulator<false>(x.ds, part, w.half);
#pragma unroll
    for (int d = 0; d < kPart / kRows; d++) {
      const int at = (d * kRows + w.lane) * kRowQ + block;
      dv[d] = multiply_add(to_meet(m.dout_transposed + at, part, w.half), weights, dv[d]);
      dk[d] = multiply_add(to_meet(m.q_transposed + at, part, w.half), slopes, dk[d]);
      __builtin_amdgcn_sched_barrier(0);  // else operands of all are held in registers at once
    }
  }
}

/// dQ += dS K of a tile of queries: (rows of a block, columns of a block) are one wave's. sums: of the tile's first
/// row.
TILEKILN_DEVICE void add_to_queries(const BackwardProblem& p, const Walk& w, const Memory& m, Global<float> sums,
                                    int rows, int wave) {
  const int in_wave = again(w.lane), half = again(w.half);
  const u32 hdim = p.hdim_q;  // else loaded again behind each atomic
#pragma unroll 1
  for (int task = wave; task < kBlocks * (kPart / kColumns); task += kWaves) {
    const int block = task % kBlocks, column = task / kBlocks * kColumns + in_wave;
    Accumulator dq = Accumulator(0.f);
#pragma unroll
    for (int d = 0; d < kTileK / kDepth; d++)
      dq =
          multiply_add(*(const Fragment*)(m.ds_lines + (block * kRows + in_wave) * kRowK + d * kDepth + depth_of(half)),
                       *(const Fragment*)(m.k_transposed + column * kRowK + d * kDepth + depth_of(half)), dq);
    each([&](int r) TILEKILN_LAMBDA {
      const int row = block * kRows + row_of(r, half);
      if (row < rows && u32(w.column + column) < hdim)
        __builtin_amdgcn_global_atomic_fadd_f32(
            (Global<float>)((Global<char>)sums + (row * hdim + w.column + column) * 4u), dq[r]);
    });
  }
}

/// The lane's key of a unit whose tile of keys, of which there are `keys`, has been copied transposed.
TILEKILN_DEVICE Key key_of(const BackwardProblem& p, const Sequence& s, const Walk& w, const Memory& m, int head,
                           int first, int keys, int thread) {
  Key key;
  key.k = rows_of<Read>(p.k, w.b, s.start_k, head, p.k_batch, p.k_head, p.k_row) + i64(first) * p.k_row;
  key.v = rows_of<Read>(p.v, w.b, s.start_k, head, p.v_batch, p.v_head, p.v_row) + i64(first) * p.v_row;
  {
    Tile<kTileK, kPart> t;
    Tile<kTileK, kPart>::load(t, key.k + w.column, p.k_row, keys, p.hdim_q - w.column, thread);
    Tile<kTileK, kPart>::store(t, nullptr, m.k_transposed, kRowK, thread);
    publish();  // no wave comes to a barrier with a write under way
  }
  key.k_bytes = ((keys - 1) * p.k_row + p.hdim_q) * 2, key.v_bytes = ((keys - 1) * p.v_row + p.hdim_v) * 2;
  const bool own = w.key < s.seqlen_k;
  key.k_at = own ? (w.key - first) * p.k_row * 2 : 0x40000000;
  key.v_at = own ? (w.key - first) * p.v_row * 2 : 0x40000000;
  if constexpr (!kReloadK) {
#pragma unroll
    for (int d = 0; d < kHdim / kDepth; d++) {
      key.k_piece[d] = of_memory(Key::k_memory(key), key.k_at, d * kDepth + depth_of(w.half), p.hdim_q);
      key.v_piece[d] = of_memory(Key::v_memory(key), key.v_at, d * kDepth + depth_of(w.half), p.hdim_v);
    }
  }
  return key;
}

/// dk, dv, dbias and a share of dq of one unit, which is the same for all threads.
TILEKILN_DEVICE void run_unit(const BackwardProblem& p, const ScheduledUnit& unit) {
  __shared__ __align__(16) T q_lines[kTileQ * kRowD], q_transposed[kPart * kRowQ];
  __shared__ __align__(16) T dout_lines[kTileQ * kRowD], dout_transposed[kPart * kRowQ];
  __shared__ __align__(16) T k_transposed[kPart * kRowK], ds_lines[kTileQ * kRowK];
  __shared__ __align__(16) float lse_log2[kTileQ], delta[kTileQ];
  __shared__ __align__(16) unsigned char random_bytes[kWaves * 1024];
  const int b = __builtin_amdgcn_readfirstlane(unit.batch), head_k = __builtin_amdgcn_readfirstlane(unit.head);
  const int first_key = __builtin_amdgcn_readfirstlane(unit.chunk) * kTileK;
  // Anew for each unit: else what follows from them alone is held in registers through all units.
  const int thread = again(__builtin_amdgcn_workitem_id_x()), in_wave_lane = again(lane());
  const int wave = __builtin_amdgcn_readfirstlane(thread / kLanes);
  const Sequence s = sequence(p, b);
  if (first_key >= s.seqlen_k) return;
  const Memory m = {q_lines,  q_transposed, kParts > 1 ? q_lines : dout_lines, dout_transposed, k_transposed, ds_lines,
                    lse_log2, delta,        random_bytes + wave * 1024};
  Walk w;
  w.b = b, w.half = in_wave_lane / kHalf, w.lane = in_wave_lane % kHalf;
  w.key = first_key + wave * kColumns + w.lane;
  w.column = kParts > 1 ? int(__builtin_amdgcn_workgroup_id_x()) % kParts * kPart : 0;
  const int keys = s.seqlen_k - first_key < kTileK ? s.seqlen_k - first_key : kTileK;
  const Key key = key_of(p, s, w, m, head_k, first_key, keys, thread);
  Keys dk, dv;
#pragma unroll
  for (int d = 0; d < kPart / kRows; d++) dk[d] = dv[d] = Accumulator(0.f);

  // Queries that see a key of the tile.
  int begin = 0, end = s.seqlen_q;
  if (p.features & kBwdWindow) {
    begin = max(first_key - s.shift - p.right, 0) / kTileQ * kTileQ;
    if (first_key >= p.sink_keys) end = min(end, first_key + keys - s.shift + p.left);
  }
  for (int g = 0; g < p.heads_per_key_head; g++) {
    w.h = head_k * p.heads_per_key_head + g;
    w.slope = p.features & kBwdAlibi ? ((Global<const float>)p.alibi_slopes)[b * p.alibi_batch + w.h] : 0.f;
    const Global<float> sums = share(p, shares(p, s, b), w.h, __builtin_amdgcn_readfirstlane(unit.split));
    const Read q = rows_of<Read>(p.q, b, s.start_q, w.h, p.q_batch, p.q_head, p.q_row);
    const Read dout = rows_of<Read>(p.dout, b, s.start_q, w.h, p.dout_batch, p.dout_head, p.dout_row);
    for (w.first = begin; w.first < end; w.first += kTileQ) {
      const int rows = s.seqlen_q - w.first < kTileQ ? s.seqlen_q - w.first : kTileQ;
      Accumulator scores[kBlocks];
      load_queries(p, s, w, m, key, q + i64(w.first) * p.q_row, dout + i64(w.first) * p.dout_row, rows, again(thread),
                   scores);
      if (p.features & kBwdDropout) draw(p, w, m.bytes);
#pragma unroll 1
      for (int block = 0; block < kTileQ; block += kRows) {
        Pair x;  // S and dP, then P and dS
        if constexpr (kParts > 1) {
          x.p = block == 0 ? scores[0] : scores[kBlocks - 1];
          x.ds = of_lines(m.dout_lines + (block + w.lane) * kRowD, Key::v_memory(key), key.v_at, p.hdim_v, w.half);
        } else {
          multiply_rows(p, m, key, block + w.lane, w.half, x);
        }
        finish(p, s, w, block, m.lse_log2, m.delta, m.bytes, x);
        add_to_keys(w, m, block, x, dk, dv);
        each([&](int r) TILEKILN_LAMBDA {
          m.ds_lines[(block + row_of(r, w.half)) * kRowK + wave * kColumns + w.lane] = T(x.ds[r]);
        });
      }
      publish();
      add_to_queries(p, w, m, sums + i64(w.first) * p.hdim_q, rows, wave);
    }
  }
  if (w.key < s.seqlen_k) store_keys(p, s, w, head_k, dk, dv);
}

/// The main stage. Grid (tiles of kTileK keys times kParts, nhead_k, batch), or (workers times kParts, 1, 1).
TILEKILN_KERNEL(kThreads) __attribute__((amdgpu_waves_per_eu(1, 2))) void tilekiln_fmha_bwd(BackwardProblem p) {
  const int block = int(__builtin_amdgcn_workgroup_id_x()) / kParts, heads = p.nhead_q / p.heads_per_key_head;
  const bool group = p.features & kBwdGroupWalk, walks = group || p.features & kBwdBatchWalk;
  ScheduledUnit unit = {int(__builtin_amdgcn_workgroup_id_z()), int(__builtin_amdgcn_workgroup_id_y()), block, 0};
  BatchWalk<int> in_batch = batch_walk(block, p.total_units, p.units_a_head, p.units_a_worker, heads);
  GroupWalk in_group = {};
  if (group) in_group = group_walk((Scheduled)p.cu_state + block * kCuStateInts, p.batch, heads);
  const auto next = [&] TILEKILN_LAMBDA {
    return group ? next_unit(in_group, (Scheduled)p.batch_state, unit)
                 : next_unit(in_batch, p.features & kBwdWindow, unit);
  };
  for (bool more = !walks || next(); more; more = next()) {
    // Arguments are loaded anew for each unit: else all that any unit needs is held in registers through the walk.
    auto at = (ConstantMemory<const BackwardProblem>)__builtin_amdgcn_kernarg_segment_ptr();
    asm volatile("" : "+s"(at));
    run_unit(*(const BackwardProblem*)at, unit);
    if (!walks) break;
    publish();  // every wave has done with the tile of keys
  }
}

/// dq = scale times the sum of its shares, in their order; d_sink[h] = -sum exp(sink - LSE) D, by the first workgroup
/// of a head. Grid as prepare's.
TILEKILN_KERNEL(kRowThreads) void tilekiln_fmha_bwd_convert(BackwardProblem p) {
  const int b = __builtin_amdgcn_workgroup_id_z(), h = __builtin_amdgcn_workgroup_id_y();
  const int first = __builtin_amdgcn_workgroup_id_x() * kRowTile, thread = __builtin_amdgcn_workitem_id_x();
  if (p.d_sink && b == 0 && first == 0 && thread < kLanes) {
    float sum = 0.f;
    for (int other = 0; other < p.batch; other++) {
      const Sequence of = sequence(p, other);
      for (int row = lane(); row < of.seqlen_q; row += kLanes) {
        const float lse = ((Global<const float>)p.lse)[other * p.lse_batch + h * p.lse_head + of.start_q + row];
        const float d = ((Global<const float>)p.delta)[h * p.rows + of.row + row];
        if (lse > -kLargest) sum += exp2((((Global<const float>)p.sink)[h] - lse) * kLog2e) * d;
      }
    }
#pragma unroll
    for (int distance = 1; distance < kLanes; distance *= 2) sum += across(sum, distance);
    if (lane() == 0) ((Global<float>)p.d_sink)[h] = -sum;
  }
  const Sequence s = sequence(p, b);
  if (first >= s.seqlen_q) return;
  const int rows = s.seqlen_q - first < kRowTile ? s.seqlen_q - first : kRowTile;
  Write to = rows_of<Write>(p.dq, b, s.start_q, h, p.dq_batch, p.dq_head, p.dq_row) + i64(first) * p.dq_row;
  const Shares dq = shares(p, s, b);
  for (int i = thread; i < rows * p.hdim_q; i += kRowThreads) {
    float sum = 0.f;
    for (int split = 0; split < dq.splits; split++) sum += (share(p, dq, h, split) + i64(first) * p.hdim_q)[i];
    to[i64(i / p.hdim_q) * p.dq_row + i % p.hdim_q] = T(sum * p.softmax_scale);
  }
}
