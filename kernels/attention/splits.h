// SPDX-License-Identifier: MIT
// Number of parts of the keys of a split-KV call, and the keys of a part.
#pragma once

namespace tilekiln::fmha {

using i64 = long long;

constexpr int max_splits = 128;

// Independent blocks of work of a call without splits, as the heuristic counts them. `shared`: one query a head, no
// mask and no bias, so that the query heads of one key head count as the rows of one block.
constexpr i64 blocks_of(i64 batch, i64 nhead_q, i64 nhead_k, i64 seqlen_q, bool shared) {
  constexpr i64 rows = 64;
  const bool packed = shared && seqlen_q == 1 && nhead_q > nhead_k;
  const i64 heads = packed ? nhead_k : nhead_q, length = packed ? nhead_q / nhead_k : seqlen_q;
  return batch * heads * ((length + rows - 1) / rows);
}

// The smallest number of splits whose last wave of blocks leaves few workers idle: 0.85 of the best there is up to 128.
// 1 when the blocks alone keep 0.8 of the workers busy. Workers are threads here, processors on a GPU.
int best_splits(i64 blocks, i64 workers);

struct KeyRange { int begin, end; };

// Part `split` of `splits`: [split per, (split + 1) per), per = max(1, ceil(seqlen_k / splits)). The last ones may be
// empty.
constexpr KeyRange keys_of_split(int seqlen_k, int splits, int split) {
  const i64 each = (i64(seqlen_k) + splits - 1) / splits, per = each < 1 ? 1 : each;
  const i64 begin = split * per, end = begin + per;
  return {static_cast<int>(begin < seqlen_k ? begin : seqlen_k), static_cast<int>(end < seqlen_k ? end : seqlen_k)};
}

}  // namespace tilekiln::fmha
