// Page numbers, checked and copied: what an engine reads of a table is what was checked, whatever the caller does to it
// meanwhile.
#pragma once
#include <stdio.h>

#include "index_arrays.h"
#include "tilekiln/runtime/fmha_kv.h"

namespace tilekiln::fmha {

// int32 (rows, max_blocks). `batch`: the rows it must have; -1: any.
[[nodiscard]] inline tilekiln_status check_block_table(const Array& table, i64 batch) {
  TILEKILN_TRY(check_dtype(table, TILEKILN_INT32, "int32"));
  TILEKILN_TRY(check_ndim(table, 2, "(batch, max_blocks)"));
  return batch < 0 ? TILEKILN_OK : check_length(table, 0, "batch", batch, "the batch of q");
}

// Whether row `row` of a block table has room for `end` keys.
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

// Entries [first, last) of a row (of a table of one dimension: of the table) to `to`.
[[nodiscard]] inline tilekiln_status copy_pages(const Array& table, i64 row, i64 first, i64 last, i64 pages, int* to) {
  for (i64 i = first; i < last; ++i) {
    const int page = table.ndim == 2 ? entry(table, row, i) : entry(table, i);
    TILEKILN_TRY(check_page(table, row, i, page, pages));
    *to++ = page;
  }
  return TILEKILN_OK;
}

}  // namespace tilekiln::fmha
