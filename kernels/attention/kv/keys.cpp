// SPDX-License-Identifier: MIT
// Number and place of each sequence's keys in its cache.
#include <stdio.h>

#include <initializer_list>

#include "kernels/attention/page_table.h"

namespace tilekiln::fmha {
namespace {

using ll = long long;

// The keys of a sequence in its cache: the place of the first, and the end.
struct Extent { i64 first, end; };

tilekiln_status check_count(const Array& array, i64 i, i64 length, i64 room, const char* room_name) {
  if (length < 0)
    return fail_argument(array.name, "entry %lld was %lld, must be 0 or more", static_cast<ll>(i),
                         static_cast<ll>(length));
  if (length <= room) return TILEKILN_OK;
  return fail_argument(array.name, "sequence %lld was %lld long, must be at most %lld%s", static_cast<ll>(i),
                       static_cast<ll>(length), static_cast<ll>(room), room_name);
}

class Keys {
 public:
  Keys(const KvIndexArrays& arrays, const Cache& cache, bool group, bool is_gappy, KvCall& call)
      : arrays_(arrays), cache_(cache), group_(group), gappy_(is_gappy), call_(call) {}

  // Looks at lengths and pages of arrays that stay on the device.
  tilekiln_status look(i64 rows, Longest longest) {
    TILEKILN_TRY(which());
    if (group_ && !cache_.paged) {
      TILEKILN_TRY(check_sequences_within(arrays_, true, rows, cache_.seqlen, nullptr, longest.q, longest.k, &call_));
    } else {
      TILEKILN_TRY(check_queries(arrays_, group_, rows, &call_));
      TILEKILN_TRY(shapes());
    }
    const i64 room = cache_.paged ? keys_of_pages(arrays_.block_table.shape[1], cache_.page_size) : cache_.seqlen;
    set_longest({static_cast<int>(std::min<i64>(longest.q, rows)), static_cast<int>(std::min<i64>(longest.k, room))},
                &call_);
    return TILEKILN_OK;
  }

  tilekiln_status run(i64 rows) {
    TILEKILN_TRY(which());
    if (group_ && !cache_.paged) {
      TILEKILN_TRY(check_sequences(arrays_, true, rows, cache_.seqlen, nullptr, &call_));
      make();
      for (i64 i = 0; i < call_.batch; ++i) {
        call_.kv_sequences[i].seqlen_k = call_.sequences[i].seqlen_k;
        call_.kv_sequences[i].place_k = call_.sequences[i].place_k;
      }
      return TILEKILN_OK;
    }
    TILEKILN_TRY(check_queries(arrays_, group_, rows, &call_));
    make();
    TILEKILN_TRY(shapes());
    i64 entries = 0;
    for (i64 i = 0; i < call_.batch; ++i) {
      KvSequence& sequence = call_.kv_sequences[i];
      TILEKILN_TRY(row_of(i, &sequence.place_k));
      Extent extent = {};
      TILEKILN_TRY(extent_of(i, &extent));
      if (cache_.paged) TILEKILN_TRY(check_table_room(arrays_.block_table, i, extent.end, cache_.page_size));
      sequence.first_key = extent.first;
      sequence.seqlen_k = static_cast<int>(extent.end - extent.first);
      if (sequence.seqlen_k > call_.seqlen_k) call_.seqlen_k = sequence.seqlen_k;
      if (cache_.paged) entries += pages_end(sequence) - pages_begin(sequence);
    }
    if (!cache_.paged) return TILEKILN_OK;
    call_.table.reset(static_cast<size_t>(entries));
    int* to = call_.table.begin();
    for (i64 i = 0; i < call_.batch; ++i) {
      KvSequence& sequence = call_.kv_sequences[i];
      const i64 begin = pages_begin(sequence), end = pages_end(sequence);
      const NeededPages needed = needed_pages(call_.problem, sequence, cache_.page_size);
      TILEKILN_TRY(copy_pages(arrays_.block_table, sequence.place_k, 0, begin, end, needed, cache_.pages, to));
      sequence.pages_offset = to - call_.table.begin() - begin;
      sequence.place_k = 0;
      to += end - begin;
    }
    return TILEKILN_OK;
  }

 private:
  i64 pages_begin(const KvSequence& s) const { return s.seqlen_k == 0 ? 0 : s.first_key / cache_.page_size; }
  i64 pages_end(const KvSequence& s) const {
    return s.seqlen_k == 0 ? 0 : (s.first_key + s.seqlen_k + cache_.page_size - 1) / cache_.page_size;
  }

  // Checks which arrays are given together.
  tilekiln_status which() const {
    const Array &seqlen = arrays_.seqlen_k, &cu = arrays_.cu_seqlens_k, &start = arrays_.seqstart_k;
    for (const Array* array : {&arrays_.cache_batch_idx, &arrays_.cache_leftpad}) {
      if (array->given() && group_)
        return fail_argument(array->name, "was given in group mode (q of 3 dimensions), must be null");
    }
    if (gappy_ && !(group_ && cache_.paged)) {
      return fail_argument("is_gappy",
                           "was 1 without %s, must be 0: gaps are of pages in group mode (q of 3 dimensions)",
                           group_ ? "block_table" : "group mode");
    }
    if (gappy_ && !seqlen.given()) return fail_argument("seqlen_k", "was null, must be given with is_gappy");
    if (gappy_ && !start.given()) return fail_argument("seqstart_k", "was null, must be given with is_gappy");
    if (group_ && !cache_.paged) return TILEKILN_OK;  // check_sequences asks the rest
    if (seqlen.given() && cu.given())
      return fail_argument("seqlen_k", "was given with cu_seqlens_k, must be alone: both say the logical lengths");
    if (!group_ && start.given()) {
      return fail_argument(
          "seqstart_k",
          "was given in batch mode (q of 4 dimensions), must be null: there a sequence starts at its batch index");
    }
    if (group_ && !seqlen.given() && !cu.given() && !start.given())
      return fail_argument("seqlen_k", "was null, must be given in group mode unless cu_seqlens_k or seqstart_k is");
    return TILEKILN_OK;
  }

  // The shapes of the index arrays, now that the batch is known.
  tilekiln_status shapes() const {
    const i64 batch = call_.batch;
    const auto index = [&](const Array& array, i64 count, const char* sum) {
      if (!array.given()) return tilekiln_status(TILEKILN_OK);
      return call_.unread ? check_unread(array, count, sum) : check_index(array, count, sum);
    };
    const auto cumulative = [&](const Array& array) {
      TILEKILN_TRY(index(array, batch + 1, "batch + 1"));
      return call_.unread || !array.given() ? TILEKILN_OK : check_cumulative(array, batch, INT32_MAX, "");
    };
    TILEKILN_TRY(index(arrays_.seqlen_k, batch, "batch"));
    TILEKILN_TRY(cumulative(arrays_.cu_seqlens_k));
    TILEKILN_TRY(gappy_ ? index(arrays_.seqstart_k, batch, "batch, with is_gappy") : cumulative(arrays_.seqstart_k));
    TILEKILN_TRY(index(arrays_.cache_batch_idx, batch, "batch"));
    TILEKILN_TRY(index(arrays_.cache_leftpad, batch, "batch"));
    if (cache_.paged) {
      TILEKILN_TRY(check_block_table(arrays_.block_table, arrays_.cache_batch_idx.given() ? -1 : batch));
      return call_.unread ? check_last_contiguous(arrays_.block_table) : TILEKILN_OK;
    }
    if (!arrays_.cache_batch_idx.given() && cache_.batch != batch) {
      return fail_argument("k", "batch was %lld, must be %lld, the batch of q, without cache_batch_idx",
                           static_cast<ll>(cache_.batch), static_cast<ll>(batch));
    }
    return TILEKILN_OK;
  }

  // The sequence of the cache, or the row of the block table.
  tilekiln_status row_of(i64 i, i64* row) const {
    *row = i;
    if (!arrays_.cache_batch_idx.given()) return TILEKILN_OK;
    const i64 rows = cache_.paged ? arrays_.block_table.shape[0] : cache_.batch;
    *row = entry(arrays_.cache_batch_idx, i);
    if (*row >= 0 && *row < rows) return TILEKILN_OK;
    return fail_argument("cache_batch_idx", "entry %lld was %lld, must be from 0 to %lld: %s", static_cast<ll>(i),
                         static_cast<ll>(*row), static_cast<ll>(rows - 1),
                         cache_.paged ? "block_table has a row for each" : "k has that many sequences");
  }

  tilekiln_status extent_of(i64 i, Extent* extent) const {
    const Array &seqlen = arrays_.seqlen_k, &cu = arrays_.cu_seqlens_k, &start = arrays_.seqstart_k;
    const i64 room = cache_.paged ? i64(max_seqlen) : cache_.seqlen;
    const char* const room_name = cache_.paged ? "" : ", the seqlen of k";
    if (seqlen.given()) {
      extent->end = entry(seqlen, i);
      TILEKILN_TRY(check_count(seqlen, i, extent->end, room, room_name));
      if (start.given() && !gappy_) {
        TILEKILN_TRY(check_count(seqlen, i, extent->end, i64(entry(start, i + 1)) - entry(start, i),
                                 ", the space that seqstart_k leaves it"));
      }
    } else if (cu.given() || start.given()) {
      const Array& sums = cu.given() ? cu : start;
      extent->end = i64(entry(sums, i + 1)) - entry(sums, i);
      TILEKILN_TRY(check_count(sums, i, extent->end, room, room_name));
    } else if (cache_.paged) {
      const i64 blocks = arrays_.block_table.shape[1];
      extent->end = blocks > max_seqlen / cache_.page_size ? i64(max_seqlen) + 1 : blocks * cache_.page_size;
      TILEKILN_TRY(check_count(arrays_.block_table, i, extent->end, max_seqlen, ": give seqlen_k"));
    } else {
      extent->end = cache_.seqlen;
    }
    if (gappy_) {
      extent->first = entry(start, i);
      if (extent->first < 0)
        return fail_argument("seqstart_k", "entry %lld was %lld, must be 0 or more", static_cast<ll>(i),
                             static_cast<ll>(extent->first));
      extent->end += extent->first;
    }
    if (arrays_.cache_leftpad.given()) {
      extent->first = entry(arrays_.cache_leftpad, i);
      if (extent->first < 0 || extent->first > extent->end) {
        return fail_argument("cache_leftpad", "entry %lld was %lld, must be from 0 to %lld, the keys of its sequence",
                             static_cast<ll>(i), static_cast<ll>(extent->first), static_cast<ll>(extent->end));
      }
    }
    return TILEKILN_OK;
  }

  void make() {
    call_.kv_sequences.reset(static_cast<size_t>(call_.batch));
    for (i64 i = 0; i < call_.batch; ++i) {
      const Sequence& sequence = call_.sequences[i];
      call_.kv_sequences[i] = {static_cast<int>(i), sequence.seqlen_q, 0, sequence.place_q, 0, 0, 0, 0, 0, 0};
    }
  }

  const KvIndexArrays& arrays_;
  const Cache& cache_;
  const bool group_, gappy_;
  KvCall& call_;
};

tilekiln_status check_read(const UnreadKeys& read, Longest longest, KvCall* call) {
  return check_keys(read.arrays, read.cache, read.group, read.gappy, read.rows, longest, call);
}

}  // namespace

tilekiln_status check_keys(const KvIndexArrays& arrays, const Cache& cache, bool group, bool is_gappy, i64 rows,
                           Longest longest, KvCall* call) {
  TILEKILN_TRY(check_longest_given(longest.q, longest.k));
  Keys keys(arrays, cache, group, is_gappy, *call);
  if (call->unread) {
    call->unread_keys.reset(new UnreadKeys{arrays, cache, group, is_gappy, rows, check_read});
    return keys.look(rows, longest);
  }
  TILEKILN_TRY(keys.run(rows));
  TILEKILN_TRY(check_longest("max_seqlen_q", longest.q, call->seqlen_q));
  return check_longest("max_seqlen_k", longest.k, call->seqlen_k);
}

}  // namespace tilekiln::fmha
