// SPDX-License-Identifier: MIT
// Page numbers, checked and copied: what an engine reads of a table is what was checked, whatever the caller does to it
// meanwhile.
#pragma once
#include <stdio.h>

#include <algorithm>

#include "kernels/attention/index_arrays.h"
#include "kernels/attention/kv/call.h"
#include "kernels/attention/window.h"

namespace tilekiln::fmha {

// int32 (rows, max_blocks). `batch`: the rows it must have; -1: any.
[[nodiscard]] inline tilekiln_status check_block_table(const Array& table, i64 batch) {
  TILEKILN_TRY(check_dtype(table, TILEKILN_INT32, "int32"));
  TILEKILN_TRY(check_ndim(table, 2, "(batch, max_blocks)"));
  return batch < 0 ? TILEKILN_OK : check_length(table, 0, "batch", batch, "the batch of q");
}

// The keys that so many pages hold, or the most that a sequence may have.
constexpr i64 keys_of_pages(i64 pages, i64 page_size) {
  return pages > max_seqlen / page_size ? max_seqlen : pages * page_size;
}

// Checks that row `row` of a block table has room for `end` keys.
[[nodiscard]] inline tilekiln_status check_table_room(const Array& table, i64 sequence, i64 end, i64 page_size) {
  const i64 blocks = (end + page_size - 1) / page_size;
  if (blocks <= table.shape[1]) return TILEKILN_OK;
  return fail_argument(table.name,
                       "had %lld blocks of %lld keys a sequence, must have %lld: sequence %lld is %lld keys long",
                       static_cast<long long>(table.shape[1]), static_cast<long long>(page_size),
                       static_cast<long long>(blocks), static_cast<long long>(sequence), static_cast<long long>(end));
}

[[nodiscard]] inline tilekiln_status check_page(const Array& table, i64 row, i64 i, int page, i64 pages) {
  if (page >= 0 && page < pages) return TILEKILN_OK;
  char where[64];
  if (table.ndim == 2) {
    snprintf(where, sizeof(where), "(%lld, %lld)", static_cast<long long>(row), static_cast<long long>(i));
  } else {
    snprintf(where, sizeof(where), "%lld", static_cast<long long>(i));
  }
  if (pages == 0) return fail_argument(table.name, "entry %s was %d, but k has no pages", where, page);
  return fail_argument(table.name, "entry %s was %d, must be from 0 to %lld: k has %lld pages", where, page,
                       static_cast<long long>(pages - 1), static_cast<long long>(pages));
}

// Entries of a sequence's table that some query needs: [begin, end), and those before sink_end.
struct NeededPages {
  i64 begin, end, sink_end;

  bool contains(i64 i) const { return (i >= begin && i < end) || i < sink_end; }
};

// Pages that a sequence needs, whose keys are the places [first_key, first_key + seqlen_k): what its window hides is not needed.
[[nodiscard]] inline NeededPages needed_pages(const KvProblem& problem, const KvSequence& sequence, i64 page_size) {
  const Window window = window_of(problem, sequence);
  const i64 keys = sequence.seqlen_k;
  const i64 first = std::clamp<i64>(window.shift - window.left, 0, keys);
  const i64 last = std::clamp<i64>(window.shift + sequence.seqlen_q + window.right, first, keys);
  const i64 sink = std::min(window.sink, last);
  if (sequence.seqlen_q == 0 || last == 0) return {0, 0, 0};
  const auto page = [&](i64 key) { return (sequence.first_key + key) / page_size; };
  return {page(first), last > first ? page(last - 1) + 1 : page(first), sink > 0 ? page(sink - 1) + 1 : 0};
}

// Entries [first, last) of a row (of a table of one dimension: of the table) to `to`; entry `origin` is the sequence's page 0.
// What is not needed is not looked at, and serving stacks put anything there. Tiles at the edge of a window load such keys all
// the same before they mask them, so its place in the copy is taken by a page that is needed.
[[nodiscard]] inline tilekiln_status copy_pages(const Array& table, i64 row, i64 origin, i64 first, i64 last,
                                                const NeededPages& needed, i64 pages, int* to) {
  int other = 0;
  bool some = false;
  for (i64 i = first; i < last; ++i) {
    if (!needed.contains(i)) continue;
    const i64 at = origin + i;
    const int page = table.ndim == 2 ? entry(table, row, at) : entry(table, at);
    TILEKILN_TRY(check_page(table, row, at, page, pages));
    to[i - first] = page;
    if (!some) other = page;
    some = true;
  }
  for (i64 i = first; i < last; ++i) {
    if (!needed.contains(i)) to[i - first] = other;
  }
  return TILEKILN_OK;
}

}  // namespace tilekiln::fmha
