// SPDX-License-Identifier: MIT
// The places of an append's new keys.
#include <algorithm>
#include <vector>

#include "kernels/attention/host_copies.h"
#include "kernels/attention/page_table.h"

namespace tilekiln::fmha {

// Checks that each sequence writes places of its own alone, or the result would depend on the order of the threads.
tilekiln_status check_append_places(const KvIndexArrays& arrays, const Cache& cache, int most, AppendCall* call) {
  using ll = long long;
  const Array &lengths = arrays.seqlen_k, &rows = arrays.cache_batch_idx, &table = arrays.block_table;
  TILEKILN_TRY(check_index(lengths, call->batch, "batch"));
  if (rows.given()) TILEKILN_TRY(check_index(rows, call->batch, "batch"));
  if (cache.paged) {
    TILEKILN_TRY(check_block_table(table, rows.given() ? -1 : call->batch));
  } else if (!rows.given() && cache.batch != call->batch) {
    return fail_argument("k", "batch was %lld, must be %d, the batch of knew, without cache_batch_idx",
                         static_cast<ll>(cache.batch), call->batch);
  }
  if (call->unread) {
    if (call->seqlen_new > most)
      return fail_argument("max_seqlen_k", "was %d, must be at least %d, the new keys of a sequence", most,
                           call->seqlen_new);
    for (const Array* array : {&lengths, &rows, &table})
      if (array->given()) TILEKILN_TRY(check_last_contiguous(*array));
    call->unread_places.reset(new UnreadPlaces{arrays, cache});
    call->seqlen_k = most;
    return TILEKILN_OK;
  }
  call->kv_sequences.reset(static_cast<size_t>(call->batch));
  const i64 row_count = cache.paged ? table.shape[0] : cache.batch;
  const auto first_page = [&](const AppendSequence& s) { return s.seqlen_k / cache.page_size; };
  const auto end_page = [&](const AppendSequence& s) {
    return call->seqlen_new == 0 ? first_page(s) : (s.seqlen_k + i64(call->seqlen_new) - 1) / cache.page_size + 1;
  };
  i64 entries = 0;
  for (int i = 0; i < call->batch; ++i) {
    AppendSequence& sequence = call->kv_sequences[i];
    sequence = {i, entry(lengths, i), i, 0};
    if (sequence.seqlen_k < 0)
      return fail_argument("seqlen_k", "entry %d was %d, must be 0 or more", i, sequence.seqlen_k);
    const i64 grown = i64(sequence.seqlen_k) + call->seqlen_new, room = cache.paged ? i64(max_seqlen) : cache.seqlen;
    if (grown > room) {
      return fail_argument("seqlen_k", "sequence %d was %d long and %d keys more, must then be at most %lld%s", i,
                           sequence.seqlen_k, call->seqlen_new, static_cast<ll>(room),
                           cache.paged ? "" : ", the seqlen of k");
    }
    TILEKILN_TRY(check_longest("max_seqlen_k", most, static_cast<int>(grown)));
    if (rows.given()) sequence.place_k = entry(rows, i);
    if (sequence.place_k < 0 || sequence.place_k >= row_count) {
      return fail_argument("cache_batch_idx", "entry %d was %lld, must be from 0 to %lld: %s", i,
                           static_cast<ll>(sequence.place_k), static_cast<ll>(row_count - 1),
                           cache.paged ? "block_table has a row for each" : "k has that many sequences");
    }
    if (!cache.paged) continue;
    TILEKILN_TRY(check_table_room(table, i, grown, cache.page_size));
    entries += end_page(sequence) - first_page(sequence);
  }
  std::vector<std::pair<i64, int>> written;  // (page or sequence of the cache, sequence)
  if (cache.paged) {
    call->table.reset(static_cast<size_t>(entries));
    int* to = call->table.begin();
    for (AppendSequence& sequence : call->kv_sequences) {
      const i64 first = first_page(sequence), end = end_page(sequence);
      TILEKILN_TRY(copy_pages(table, sequence.place_k, 0, first, end, {first, end, 0}, cache.pages, to));
      for (i64 i = 0; i < end - first; ++i) written.emplace_back(to[i], sequence.batch);
      sequence.pages_offset = to - call->table.begin() - first;
      sequence.place_k = 0;
      to += end - first;
    }
  } else if (rows.given() && call->seqlen_new > 0) {
    for (const AppendSequence& sequence : call->kv_sequences) written.emplace_back(sequence.place_k, sequence.batch);
  }
  std::sort(written.begin(), written.end());
  for (size_t i = 1; i < written.size(); ++i) {
    if (written[i].first != written[i - 1].first) continue;
    const ll what = written[i].first;
    const int one = written[i - 1].second, other = written[i].second;
    if (cache.paged) {
      return fail_argument("block_table", "page %lld would be written for sequences %d and %d, must be of one only",
                           what, one, other);
    }
    return fail_argument("cache_batch_idx", "entries %d and %d were both %lld, must be different", one, other, what);
  }
  return TILEKILN_OK;
}

tilekiln_status read_places(AppendCall* call) {
  UnreadPlaces& unread = *call->unread_places;
  HostCopies copies;
  TILEKILN_TRY(take_all(*call, &unread.arrays, &copies));
  call->unread = false;
  return check_append_places(unread.arrays, unread.cache, call->seqlen_k, call);
}

}  // namespace tilekiln::fmha
