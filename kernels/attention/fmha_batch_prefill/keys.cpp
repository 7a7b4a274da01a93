// SPDX-License-Identifier: MIT
// The pages of a batch prefill: a page list for all sequences, as sglang keeps it, or a block table, as vllm does.
#include "kernels/attention/page_table.h"

namespace tilekiln::fmha {
namespace {

using ll = long long;

tilekiln_status which(const KvIndexArrays& arrays) {
  const Array* const list[] = {&arrays.kv_indptr, &arrays.kv_page_indices, &arrays.kv_last_page_lens};
  if (arrays.block_table.given()) {
    for (const Array* array : list) {
      if (array->given())
        return fail_argument(array->name, "was given with block_table, must be alone: both say where the keys are");
    }
    if (!arrays.seqlen_k.given()) return fail_argument("seqlen_k", "was null, must be given with block_table");
    return TILEKILN_OK;
  }
  if (!arrays.kv_indptr.given())
    return fail_argument("kv_indptr", "was null, must be given, with kv_page_indices, unless block_table is");
  if (!arrays.kv_page_indices.given())
    return fail_argument("kv_page_indices", "was null, must be given with kv_indptr");
  if (arrays.seqlen_k.given()) {
    return fail_argument("seqlen_k", "was given with kv_indptr, must be null: kv_last_page_lens says the lengths");
  }
  return TILEKILN_OK;
}

// Sets seqlen_k of every sequence from a block table's seqlen_k.
tilekiln_status table_lengths(const KvIndexArrays& arrays, const Cache& cache, KvCall* call) {
  TILEKILN_TRY(check_block_table(arrays.block_table, call->batch));
  TILEKILN_TRY(check_index(arrays.seqlen_k, call->batch, "batch"));
  if (call->unread) {
    TILEKILN_TRY(check_last_contiguous(arrays.seqlen_k));
    return check_last_contiguous(arrays.block_table);
  }
  for (i64 i = 0; i < call->batch; ++i) {
    const int length = entry(arrays.seqlen_k, i);
    if (length < 0 || length > max_seqlen) {
      return fail_argument("seqlen_k", "entry %lld was %d, must be from 0 to %d", static_cast<ll>(i), length,
                           max_seqlen);
    }
    TILEKILN_TRY(check_table_room(arrays.block_table, i, length, cache.page_size));
    call->kv_sequences[i].seqlen_k = length;
  }
  return TILEKILN_OK;
}

// Lists lengths from page counts and the lengths of the last pages.
tilekiln_status list_lengths(const KvIndexArrays& arrays, const Cache& cache, KvCall* call) {
  const Array &starts = arrays.kv_indptr, &list = arrays.kv_page_indices, &last = arrays.kv_last_page_lens;
  TILEKILN_TRY(check_dtype(list, TILEKILN_INT32, "int32"));
  TILEKILN_TRY(check_ndim(list, 1, "page indices of all sequences"));
  TILEKILN_TRY(check_index(starts, call->batch + i64(1), "batch + 1"));
  if (!call->unread)
    TILEKILN_TRY(check_cumulative(starts, call->batch, list.shape[0], "the entries of kv_page_indices"));
  if (last.given()) {
    TILEKILN_TRY(check_index(last, call->batch, "batch"));
  } else if (cache.page_size != 1) {
    return fail_argument("kv_last_page_lens", "was null, must be given with kv_indptr when pages have %lld keys",
                         static_cast<ll>(cache.page_size));
  }
  if (call->unread) {
    for (const Array* array : {&starts, &list, &last})
      if (array->given()) TILEKILN_TRY(check_last_contiguous(*array));
    return TILEKILN_OK;
  }
  for (i64 i = 0; i < call->batch; ++i) {
    const i64 pages = i64(entry(starts, i + 1)) - entry(starts, i);
    if (pages == 0) {
      call->kv_sequences[i].seqlen_k = 0;
      continue;
    }
    const int filled = last.given() ? entry(last, i) : 1;
    if (filled < 1 || filled > cache.page_size) {
      return fail_argument("kv_last_page_lens", "entry %lld was %d, must be from 1 to %lld, the page size of k",
                           static_cast<ll>(i), filled, static_cast<ll>(cache.page_size));
    }
    if (pages > max_seqlen / cache.page_size) {
      return fail_argument("kv_indptr", "sequence %lld had %lld pages of %lld keys, must have at most %d keys",
                           static_cast<ll>(i), static_cast<ll>(pages), static_cast<ll>(cache.page_size), max_seqlen);
    }
    call->kv_sequences[i].seqlen_k = static_cast<int>((pages - 1) * cache.page_size + filled);
  }
  return TILEKILN_OK;
}

tilekiln_status check_read(const UnreadKeys& read, Longest longest, KvCall* call) {
  return check_prefill_keys(read.arrays, read.cache, read.rows, longest, call);
}

}  // namespace

tilekiln_status check_prefill_keys(const KvIndexArrays& arrays, const Cache& cache, i64 total_q, Longest longest,
                                   KvCall* call) {
  TILEKILN_TRY(check_longest_given(longest.q, longest.k));
  TILEKILN_TRY(which(arrays));
  if (!arrays.cu_seqlens_q.given()) return fail_argument("cu_seqlens_q", "was null, must be given");
  TILEKILN_TRY(check_queries(arrays, true, total_q, call));
  const bool listed = arrays.kv_indptr.given();
  if (call->unread) {
    call->unread_keys.reset(new UnreadKeys{arrays, cache, true, false, total_q, check_read});
    TILEKILN_TRY(listed ? list_lengths(arrays, cache, call) : table_lengths(arrays, cache, call));
    const i64 pages = listed ? arrays.kv_page_indices.shape[0] : arrays.block_table.shape[1];
    const i64 keys = std::min(i64(longest.k), keys_of_pages(pages, cache.page_size));
    set_longest({static_cast<int>(std::min<i64>(longest.q, total_q)), static_cast<int>(keys)}, call);
    return TILEKILN_OK;
  }
  call->kv_sequences.reset(static_cast<size_t>(call->batch));
  for (i64 i = 0; i < call->batch; ++i) {
    const Sequence& sequence = call->sequences[i];
    call->kv_sequences[i] = {static_cast<int>(i), sequence.seqlen_q, 0, sequence.place_q, 0, 0, 0, 0, 0, 0};
  }
  TILEKILN_TRY(listed ? list_lengths(arrays, cache, call) : table_lengths(arrays, cache, call));

  const auto pages_of = [&](const KvSequence& s) { return (s.seqlen_k + cache.page_size - 1) / cache.page_size; };
  i64 entries = 0;
  for (const KvSequence& sequence : call->kv_sequences) {
    entries += pages_of(sequence);
    if (sequence.seqlen_k > call->seqlen_k) call->seqlen_k = sequence.seqlen_k;
  }
  TILEKILN_TRY(check_longest("max_seqlen_q", longest.q, call->seqlen_q));
  TILEKILN_TRY(check_longest("max_seqlen_k", longest.k, call->seqlen_k));
  call->table.reset(static_cast<size_t>(entries));
  i64 at = 0;
  for (KvSequence& sequence : call->kv_sequences) {
    const i64 count = pages_of(sequence), first = listed ? entry(arrays.kv_indptr, sequence.batch) : 0;
    const NeededPages needed = needed_pages(call->problem, sequence, cache.page_size);
    TILEKILN_TRY(copy_pages(listed ? arrays.kv_page_indices : arrays.block_table, sequence.batch, first, 0, count,
                            needed, cache.pages, call->table.begin() + at));
    sequence.pages_offset = at;
    at += count;
  }
  return TILEKILN_OK;
}

}  // namespace tilekiln::fmha
