// SPDX-License-Identifier: MIT
#include <algorithm>
#include <utility>

#include "kernels/attention/fmha_bwd/sequences.h"
#include "kernels/attention/visible.h"
#include "kernels/backends/cpu/parallel.h"

namespace tilekiln::fmha {
namespace {

// The cost of a unit beyond its pairs, in pairs: for each key, reading k and v and writing dk and dv; for each query,
// reading q and dout in two forms and adding to dq.
constexpr double pairs_per_key = 32, pairs_per_query = 8;

// Rows of a unit of the first and the last stage, in tiles. Belongs to the problem: the shares of d_sink are summed by
// unit.
constexpr int tiles_per_unit = 4;

BwdSequence place(const BwdCall& call, int batch, int seqlen_q, int seqlen_k, i64 place_q, i64 place_k, i64 room_q) {
  const BwdSteps& steps = call.steps;
  BwdSequence s = {};
  s.batch = batch;
  s.seqlen_q = seqlen_q;
  s.seqlen_k = seqlen_k;
  s.physical_q = room_q;
  s.q = place_q * steps.q;
  s.k = place_k * steps.k;
  s.v = place_k * steps.v;
  s.out = place_q * steps.out;
  s.dout = place_q * steps.dout;
  s.lse = place_q * steps.lse;
  s.dq = place_q * steps.dq;
  s.dk = place_k * steps.dk;
  s.dv = place_k * steps.dv;
  s.dbias = place_q * steps.dbias;
  s.bias = place_q * steps.bias;
  s.alibi = batch * steps.alibi;
  s.randval = place_q * steps.randval;
  return s;
}

}  // namespace

i64 visible_pairs(const BwdProblem& problem, i64 seqlen_q, i64 seqlen_k, i64 key, i64 key_end) {
  if (!problem.features.mask) return seqlen_q * (key_end - key);
  const i64 shift = problem.top_left ? 0 : seqlen_k - seqlen_q;
  i64 pairs = 0;
  for (i64 j = key; j < key_end; ++j) {
    // Row i sees key j if i + shift - left <= j (or j is a sink column) and j <= i + shift + right.
    const i64 first = problem.window_right < 0 ? 0 : std::clamp<i64>(j - shift - problem.window_right, 0, seqlen_q);
    const i64 last =
        is_never_left(problem, j) ? seqlen_q : std::clamp<i64>(j - shift + problem.window_left + 1, 0, seqlen_q);
    pairs += std::max<i64>(last - first, 0);
  }
  return pairs;
}

void make_sequences(const BwdCall& call, int tile_q, int step, std::vector<BwdSequence>* sequences,
                    std::vector<double>* cost) {
  sequences->reserve(static_cast<size_t>(call.batch));
  i64 keys = 0;
  for (int b = 0; b < call.batch; ++b) {
    if (call.uniform) {
      sequences->push_back(place(call, b, call.seqlen_q, call.seqlen_k, b, b, call.physical_q));
    } else {
      const Sequence& s = call.sequences[static_cast<size_t>(b)];
      sequences->push_back(place(call, b, s.seqlen_q, s.seqlen_k, s.place_q, s.place_k, s.room_q));
    }
    BwdSequence& s = sequences->back();
    s.keys_before = keys;
    s.tiles = (s.seqlen_q + tile_q - 1) / tile_q;
    s.costs_before = static_cast<i64>(cost->size());
    keys += s.seqlen_k;
    if (call.uniform && b > 0) {
      s.costs_before = 0;  // all cost what the first does
      continue;
    }
    for (i64 key = 0; key < s.seqlen_k; key += step) {
      const i64 end = std::min<i64>(key + step, s.seqlen_k);
      cost->push_back(static_cast<double>(visible_pairs(call.problem, s.seqlen_q, s.seqlen_k, key, end)) +
                      pairs_per_key * static_cast<double>(end - key));
    }
  }
}

std::vector<double> claimed(std::vector<double> pieces, int threads) {
  std::vector<double> work(static_cast<size_t>(threads), 0.0);
  std::sort(pieces.begin(), pieces.end(), std::greater<>());
  for (const double piece : pieces) {
    // A heap whose front is the least busy.
    std::pop_heap(work.begin(), work.end(), std::greater<>());
    work.back() += piece;
    std::push_heap(work.begin(), work.end(), std::greater<>());
  }
  return work;
}

int keys_per_unit(int chunk, int threads, const std::function<std::vector<double>(int)>& costs) {
  if (threads == 1 || chunk % unit_parts != 0) return chunk;
  constexpr size_t even = 8;  // units a thread that need no cutting
  int best = chunk;
  double least = 0;
  for (int keys = chunk; keys >= chunk / unit_parts; keys /= 2) {
    std::vector<double> units = costs(keys);
    if (keys == chunk && units.size() >= even * static_cast<size_t>(threads)) return chunk;
    const std::vector<double> work = claimed(std::move(units), threads);
    const double time = *std::max_element(work.begin(), work.end()) * (1 + pairs_per_query / keys);
    if (keys < chunk && time >= least) continue;
    best = keys;
    least = time;
  }
  return best;
}

BwdUnits::BwdUnits(const BwdCall& call)
    : shape(shape_of(call)),
      layout(layout_of(shape)),
      step_k(shape.tile_k / unit_parts),
      group(call.problem.nhead_q / call.problem.nhead_k),
      keys_per_unit(shape.tile_k) {
  make_sequences(call, shape.tile_q, step_k, &sequences, &cost);
  list_rows();
  list_keys(call);
}

int BwdUnits::rows_per_unit() const { return shape.tile_q * tiles_per_unit; }

int BwdUnits::row_end(const Rows& unit) const {
  return std::min(unit.row + rows_per_unit(), sequences[static_cast<size_t>(unit.sequence)].seqlen_q);
}

i64 BwdUnits::rows_of_heads() const {
  const BwdSequence& last = sequences.back();
  return (last.keys_before + last.seqlen_k) * shape.nhead_q;
}

double BwdUnits::cost_of(const BwdSequence& sequence, int key, int keys_together) const {
  double sum = 0;
  for (int end = std::min(key + keys_together, sequence.seqlen_k); key < end; key += step_k)
    sum += cost[static_cast<size_t>(sequence.costs_before + key / step_k)];
  return sum;
}

void BwdUnits::list_rows() {
  for (size_t s = 0; s < sequences.size(); ++s) {
    rows_in_all += sequences[s].seqlen_q;
    for (int head = 0; head < shape.nhead_q; ++head) {
      for (int row = 0; row < sequences[s].seqlen_q; row += rows_per_unit())
        rows.push_back({static_cast<int>(s), head, row});
    }
  }
}

void BwdUnits::list_keys(const BwdCall& call) {
  const BwdProblem& problem = call.problem;
  i64 units = 0;
  for (const BwdSequence& s : sequences) {
    units += i64(problem.nhead_k) * chunks_of(s);
    work += cost_of(s, 0, s.seqlen_k) * problem.nhead_q;
  }
  work *= 2 * problem.hdim_v + 3 * problem.hdim_q;
  const bool deterministic = problem.features.deterministic;
  // A unit per query head where those of a group together would leave threads idle.
  const int all_useful = useful_threads(call, units * group * unit_parts, work);
  own_heads = group > 1 && (deterministic || units < 4 * all_useful);
  if (deterministic) return;
  const int heads = own_heads ? problem.nhead_q : problem.nhead_k;
  const auto for_each = [&](int keys_together, auto&& unit) {
    for (size_t s = 0; s < sequences.size(); ++s) {
      for (int head = 0; head < heads; ++head) {
        for (int key = 0; key < sequences[s].seqlen_k; key += keys_together) unit(static_cast<int>(s), head, key);
      }
    }
  };
  if (own_heads) units *= group;
  // Claims of threads even the costs out with 8 units a thread or more; fewer units are cut by their costs.
  if (units < 8 * all_useful) {
    keys_per_unit = fmha::keys_per_unit(shape.tile_k, all_useful, [&](int keys_together) {
      std::vector<double> costs;
      for_each(keys_together, [&](int s, int, int key) {
        costs.push_back(cost_of(sequences[static_cast<size_t>(s)], key, keys_together));
      });
      return costs;
    });
  }
  keys.reserve(static_cast<size_t>(units * (shape.tile_k / keys_per_unit)));
  for_each(keys_per_unit, [&](int s, int head, int key) { keys.push_back({s, own_heads ? head : head * group, key}); });
  if (call.uniform && !problem.features.mask) return;  // all alike
  if (useful_threads(call, static_cast<i64>(keys.size()), work) == 1) return;
  std::stable_sort(keys.begin(), keys.end(), [&](const Keys& a, const Keys& b) {
    return cost_of(sequences[static_cast<size_t>(a.sequence)], a.key, keys_per_unit) >
           cost_of(sequences[static_cast<size_t>(b.sequence)], b.key, keys_per_unit);
  });
}

}  // namespace tilekiln::fmha
