// SPDX-License-Identifier: MIT
// The persistent schedule of the deterministic backward: arithmetic on ints, of hosts and devices.
//
// The includer defines TILEKILN_DEVICE, the words that a function begins with. tests/runtime/bwd_workspace_test.cpp holds the numbers to
// vectors, tests/kernels/hip/test_backward.py what a device makes of them. CUDA has an order of its own (dq_dk_dv/cuda/order.h): workers
// add into one sum in turn, so that no split needs memory, zeros and a sum of its own.
#pragma once

namespace tilekiln::fmha {

/// A chunk of keys of a head, and the slot of dq_acc that its worker adds to.
struct ScheduledUnit { int batch, head, chunk, split; };

constexpr int kCuStateInts = 8, kBatchStateInts = 4;  // CuState and BatchState (workspace.h), as ints

/// Quotient, rounded up; of numbers from 0 on.
TILEKILN_DEVICE unsigned whole_parts(unsigned all, unsigned each) { return all / each + (all % each != 0); }

/// Block `block` of `count` runs this logical worker: blocks go round the eight dies of a device, each die gets neighbours.
TILEKILN_DEVICE int xcd_map(int block, int count) {
  constexpr int dies = 8;
  const int per_die = int(whole_parts(unsigned(count), dies)), tall = count % dies == 0 ? dies : count % dies;
  const int die = block % dies, place = block / dies;
  return die < tall ? die * per_die + place : tall * per_die + (die - tall) * (per_die - 1) + place;
}

/// Work of a chunk against `rows` queries, rounded up to tile_q, in units of `unit`: never 0, because dk and dv must be written even
/// where there is no query.
TILEKILN_DEVICE unsigned chunk_work(unsigned rows, unsigned tile_q, unsigned unit) {
  const unsigned step = tile_q > unit ? tile_q : unit, whole = whole_parts(rows, step) * step;
  return (whole > step ? whole : step) / unit;
}

/// The start of a worker whose share begins in a sequence.
struct ShareStart { unsigned work, head, chunk, split; };

/// share: the first work of it, at or after `before`, the work of the sequences before this one.
TILEKILN_DEVICE ShareStart start_of(unsigned share, unsigned before, unsigned target, unsigned sq, unsigned nc) {
  const unsigned head = (share - before) / (nc * sq), into = share - before - head * nc * sq;
  const unsigned chunk = whole_parts(into, sq);
  // The workers that start in this head before this one: one per target, or one per chunk when a chunk is more than that.
  const unsigned split = whole_parts(into, sq > target ? sq : target);
  return {before + head * nc * sq + chunk * sq, head, chunk, split < nc ? split : nc - 1};
}

/// Writes nsplits, offsets, cu_state and batch_state, in `threads` threads that all call this with their number; `sync` lets each see
/// what others have written. length_q(b) and length_k(b) are physical lengths. `heads` are those that a unit is counted for; a slot is
/// one of nhead_q. offsets has batch + 1 elements and holds the work before each sequence meanwhile.
template <class Int, class Long, class LengthQ, class LengthK, class Sync>
TILEKILN_DEVICE void pack_group(Int* nsplits, Long* offsets, Int* cu_state, Int* batch_state, int batch, int heads,
                                int nhead_q, int hdim_q, unsigned tile_q, unsigned tile_k, unsigned workers,
                                LengthQ length_q, LengthK length_k, int thread, int threads, Sync sync) {
  constexpr unsigned most_work = 0x7fffffff, most_unit = 1u << 30;
  if (thread == 0) {
    // States hold work in 31 bits. What does not fit is counted in coarser rows: the schedule only loses evenness.
    for (unsigned unit = 1; unit <= most_unit; unit *= 2) {
      offsets[0] = 0;
      for (int b = 0; b < batch; ++b) {
        const unsigned sq = chunk_work(unsigned(length_q(b)), tile_q, unit),
                       nc = whole_parts(unsigned(length_k(b)), tile_k);
        batch_state[b * kBatchStateInts] = int(sq), batch_state[b * kBatchStateInts + 1] = int(nc);
        offsets[b + 1] = offsets[b] + (long long)heads * nc * sq;
      }
      if (offsets[batch] + tile_q <= most_work) break;
    }
  }
  sync();
  const unsigned total = unsigned(offsets[batch]), target = whole_parts(total, workers);
  const auto started = [&](unsigned share, int b) {
    return start_of(share, unsigned(offsets[b]), target, unsigned(batch_state[b * kBatchStateInts]),
                    unsigned(batch_state[b * kBatchStateInts + 1]));
  };
  const auto holds = [&](unsigned share) {  // the sequence with the work `share`, which is below the total
    int low = 0, high = batch - 1;
    while (low < high) {
      const int middle = low + (high - low) / 2;
      if ((long long)share < offsets[middle + 1])
        high = middle;
      else
        low = middle + 1;
    }
    return low;
  };
  for (int block = thread; block < int(workers); block += threads) {
    const unsigned c = unsigned(xcd_map(block, int(workers)));
    Int* const cu = cu_state + block * kCuStateInts;
    // A share that begins past the end is of nobody; the next one's start ends this one.
    const unsigned share = c * target, next = share + target;
    const bool idle = share >= total;
    const int b = idle ? batch : holds(share);
    const ShareStart own = idle ? ShareStart{total, 0, 0, 0} : started(share, b);
    cu[0] = total == 0 ? 0 : int(own.work);
    cu[1] = int(c + 1 < workers && next < total ? started(next, holds(next)).work : total);
    cu[2] = b, cu[3] = int(own.split), cu[4] = int(own.head), cu[5] = int(own.chunk);
  }
  for (int b = thread; b < batch; b += threads) {
    const unsigned nc = unsigned(batch_state[b * kBatchStateInts + 1]);
    unsigned splits = 1;
    if (nc != 0) {
      const unsigned from = whole_parts(unsigned(offsets[b]), target),
                     end = whole_parts(unsigned(offsets[b + 1]), target);
      for (unsigned c = from; c < end && c < workers; ++c) {
        const ShareStart start = started(c * target, b);
        if (start.chunk < nc && start.split >= splits) splits = start.split + 1;
      }
    }
    nsplits[b] = batch_state[b * kBatchStateInts + 2] = int(splits);
    if (total == 0) batch_state[b * kBatchStateInts] = 0;
  }
  sync();
  if (thread != 0) return;
  offsets[0] = 0;
  for (int b = 0; b < batch; ++b)
    offsets[b + 1] = total == 0 ? 0 : offsets[b] + (long long)nhead_q * nsplits[b] * length_q(b) * hdim_q;
}

/// The x-th of n chunks in the order of a masked problem: from both ends inwards, so that long and short chunks alternate.
TILEKILN_DEVICE constexpr int interleaved(int x, int n) { return x % 2 == 0 ? x / 2 : n - 1 - x / 2; }

/// Walk of one worker in batch mode, over jobs (batch, head, chunk) [at, end); first: the one it begins with. Index holds their number.
template <class Index> struct BatchWalk {
  Index at, end, first, per_worker;
  int per_head, heads, split;
};

template <class Index>
TILEKILN_DEVICE BatchWalk<Index> batch_walk(int worker, Index total, int per_head, Index per_worker, int heads) {
  const Index first = worker * per_worker, end = first + per_worker < total ? first + per_worker : total;
  return {first, end, first, per_worker, per_head, heads, 0};
}

template <class Index> TILEKILN_DEVICE bool next_unit(BatchWalk<Index>& w, bool masked, ScheduledUnit& unit) {
  if (w.at >= w.end) return false;
  const Index head = w.at / w.per_head;
  const int x = int(w.at % w.per_head);
  if (x == 0)
    w.split = 0;
  else if (w.at == w.first)
    w.split = int((x + w.per_worker - 1) / w.per_worker);
  unit = {int(head / w.heads), int(head % w.heads), masked ? interleaved(x, w.per_head) : x, w.split};
  w.at++;
  return true;
}

/// Walk of one worker in group mode: over the work [w, end).
struct GroupWalk { int w, end, b, split, head, chunk, batch, heads; };

template <class Int> TILEKILN_DEVICE GroupWalk group_walk(const Int* cu, int batch, int heads) {
  return {cu[0], cu[1], cu[2], cu[3], cu[4], cu[5], batch, heads};
}

template <class Int> TILEKILN_DEVICE bool next_unit(GroupWalk& g, const Int* batch_state, ScheduledUnit& unit) {
  for (; g.b < g.batch && g.w < g.end; g.head = 0, ++g.b)
    for (; g.head < g.heads; g.chunk = g.split = 0, ++g.head) {
      if (g.w >= g.end) return false;
      if (g.chunk >= batch_state[g.b * kBatchStateInts + 1]) continue;
      unit = {g.b, g.head, g.chunk++, g.split};
      g.w += batch_state[g.b * kBatchStateInts];
      return true;
    }
  return false;
}

}  // namespace tilekiln::fmha
