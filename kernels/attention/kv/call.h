// SPDX-License-Identifier: MIT
// One call over a KV cache on its way from arguments to units: check, choose, run.
#pragma once
#include "kernels/attention/call.h"
#include "kernels/attention/kv_engine.h"
#include "kernels/runtime/choose.h"

namespace tilekiln {
class CallMemory;  // runtime/launch.h
}

namespace tilekiln::fmha {

class HostCopies;  // host_copies.h

// The index arrays of every operator over a cache; those that are absent have no name.
struct KvIndexArrays : IndexArrays {
  Array block_table, cache_batch_idx, cache_leftpad, kv_indptr, kv_page_indices, kv_last_page_lens;
};

// Elements from one place of a sequence to the next (see Sequence).
struct KvSteps { i64 q, k, v, out, lse, randval, bias, alibi; };

// The shape of a cache.
struct Cache {
  bool paged;
  i64 pages, page_size;  // paged
  i64 batch,
      seqlen;  // contiguous, batch mode: sequences it holds, room of each; group mode: seqlen is the total length
};

struct KvSequence {
  int batch, seqlen_q;
  int seqlen_k;          // the keys that are attended to
  i64 place_q, place_k;  // as in Sequence; place_k: contiguous cache
  i64 pages_offset;      // in KvCall::table
  i64 first_key;         // the place of key 0 in the cache of the sequence
  i64 first_row;         // among the rows of all sequences, one after another
  i64 first_unit, first_combine;
};

// Indices in the Query of fmha_batch_prefill; the other families have no use for them.
constexpr int size_cache_bytes = 1, size_page_tokens = 2;

// The bytes that a base address must reach for `pages` pages, `step` elements from one to the next; INT64_MAX when they
// are more.
constexpr int64_t bytes_between(int64_t pages, int64_t step, int64_t element_bytes) {
  const int64_t length = step == INT64_MIN ? INT64_MAX : step < 0 ? -step : step;
  int64_t bytes = 0;
  if (__builtin_mul_overflow(pages, length, &bytes) || __builtin_mul_overflow(bytes, element_bytes, &bytes))
    return INT64_MAX;
  return bytes;
}

struct KvCall;
// The longest sequences that a call says: 0 and 0, or of q and of the keys that are attended to.
struct Longest { int q, k; };

// Index arrays that stay on the device until the call runs, and what else the check of its operator takes.
struct UnreadKeys {
  KvIndexArrays arrays;
  Cache cache;
  bool group, gappy;
  i64 rows;
  tilekiln_status (*check)(const UnreadKeys& read, Longest longest, KvCall* call);  // of arrays that the host has read
  int more = 0;  // keys of every sequence that an append of the same call brings, beyond what its seqlen_k says
};

struct KvCall : AttentionCall {
  Owned<UnreadKeys> unread_keys;  // of an unread call; `kv_sequences` then has the longest lengths, and `table` nothing
  KvProblem problem = {};
  KvSteps steps = {};
  SmallArray<KvSequence, 16> kv_sequences;
  SmallArray<int, 64> table;         // the pages in use, checked
  const float* out_scale = nullptr;  // null: 1
  int num_splits = 1;                // of an operator with a second stage: 0 until it is chosen
  bool shares_heads = false;         // the pipeline takes the query heads of one key head together
  Query combine_query = {};          // of an operator with a second stage
  Choice combine;
};

struct AppendSequence {
  int batch, seqlen_k;  // before the append
  i64 place_k, pages_offset;
};

struct AppendSteps { i64 q, k, v, knew, vnew; };

struct UnreadPlaces {
  KvIndexArrays arrays;
  Cache cache;
};

struct AppendCall : AttentionCall {   // seqlen_q: of q; the sequences are all alike in that
  Owned<UnreadPlaces> unread_places;  // of an unread call; `kv_sequences` is then empty
  AppendProblem problem = {};
  AppendSteps steps = {};
  int seqlen_new = 0;
  i64 positions = 0;  // that have a row of cos and sin
  SmallArray<AppendSequence, 16> kv_sequences;
  SmallArray<int, 64> table;
  bool attends = false;
  KvCall attention;  // over the grown cache
};

// Places of the queries and keys of a call, in the memory of its device, for kernels that find them by themselves; null: as said. Of
// numbers that the host has not looked at, a kernel makes something that stays within the arrays.
struct KvDevicePlaces {
  const int *seqstart_q, *seqlen_q,
      *cu_seqlens_q;                       // (batch); first rows, in group mode. No lengths: all have the longest
  const int *seqlen_k, *cu_seqlens_k;      // where keys end in the cache of their sequence. Neither: all have room_k
  const int* first_key;                    // (batch); null: 0
  const int* row_k;                        // (batch), of the cache or the table; null: its own number
  const int* table;                        // page numbers; null: the cache is contiguous
  const int* table_at;                     // (batch), entries before a sequence's page 0; null: row times table_row
  const int *table_start, *last_page_len;  // kv_indptr and kv_last_page_lens: pages say the lengths
  i64 table_row, entries;                  // entries: of the table
  int rows_k, pages;                       // of the cache or the table; of the pool
  int more;                                // keys beyond those that seqlen_k says
  int room_k;                              // no place of a sequence is beyond
  int total_q;                             // group mode: rows of q
  bool first_is_start;                     // seqlen_k counts from first_key
};

struct AppendKernelProblem;
// The whole call, which a kernel of a device takes in place of units: of the main stage, and of the one that combines its splits.
struct KvKernelProblem {
  KvProblem problem;
  KvSteps steps;
  KvDevicePlaces places;
  int batch, seqlen_q, seqlen_k;  // sequences; the longest
  int num_splits;
  // Results of splits, of query i and head h of sequence b: [(b seqlen_q + i) nhead_q + h][num_splits][hdim_v], normalised, and base-2
  // logarithms of the sums.
  float *part_out, *part_lse;
  i64 cache_bytes;         // as size_cache_bytes; 0: of a family that has no such size
  const float* out_scale;  // of an fp8 out, in the memory of its device; null: 1. problem.out_scale is not read
  const AppendKernelProblem* append = nullptr;  // what the same launch appends first
  int own_splits = 1;  // of an operator without a second stage: those that an engine may take and combine by itself
};

struct AppendKernelProblem {
  AppendProblem problem;
  AppendSteps steps;
  KvDevicePlaces places;
  int batch, seqlen_q, seqlen_new;
  i64 positions;  // that have a row of cos and sin
  // The attention that follows, with splits to be chosen, null: none; a launch that does it, too, says so.
  const KvKernelProblem* attention = nullptr;
  bool* attended = nullptr;
};

// Checks values that are known only when the stream comes to a call: its scales must be numbers.
[[nodiscard]] tilekiln_status check_kv_scales(const KvCall& call);

// The keys of every sequence, where they lie and, with pages, the pages: fills call->kv_sequences and
// call->table. Where the arrays stay on a device (call->unread) only their shapes are looked at.
[[nodiscard]] tilekiln_status check_keys(const KvIndexArrays& arrays, const Cache& cache, bool group, bool is_gappy,
                                         i64 total_or_seqlen_q, Longest longest, KvCall* call);
[[nodiscard]] tilekiln_status check_prefill_keys(const KvIndexArrays& arrays, const Cache& cache, i64 total_q,
                                                 Longest longest, KvCall* call);
// `most`: 0, or the keys to which a sequence grows at most.
[[nodiscard]] tilekiln_status check_append_places(const KvIndexArrays& arrays, const Cache& cache, int most,
                                                  AppendCall* call);
// Reads the arrays of unread calls whose turn has come, for engines of the host.
[[nodiscard]] tilekiln_status take_all(const Run& run, KvIndexArrays* arrays, HostCopies* copies);
[[nodiscard]] tilekiln_status read_keys(KvCall* call);
[[nodiscard]] tilekiln_status read_places(AppendCall* call);
// Gives an unread call the lengths that it is chosen by: every sequence as long as the longest.
void set_longest(Longest longest, KvCall* call);

// The instances (see runtime/entry.h): both stages of a call of two, or an error that says which is missing.
[[nodiscard]] tilekiln_status choose_instances(const Stages& stages, int64_t instance, KvCall& call);
[[nodiscard]] tilekiln_status choose_instances(const Stages& stages, int64_t instance, AppendCall& call);
void list_instances(const Stages& stages, const KvCall& call, int64_t* instances);
void list_instances(const Stages& stages, const AppendCall& call, int64_t* instances);
[[nodiscard]] tilekiln_status explain_call(Text& text, const Stages& stages, int64_t instance, const KvCall& call);
[[nodiscard]] tilekiln_status explain_call(Text& text, const Stages& stages, int64_t instance, const AppendCall& call);

// The table of a call's pages where engines find it: in the host's memory, or a copy of it in `memory` on the device.
[[nodiscard]] tilekiln_status place_table(const Run& run, const SmallArray<int, 64>& table, CallMemory* memory,
                                          const int** place);

// The splits of a call that has its instances: what it asks for, or the library's choice.
int num_splits(const KvCall& call);
inline tilekiln_status num_splits(const KvCall& call, int32_t* splits) {
  return *splits = num_splits(call), TILEKILN_OK;
}

// Run the call, now or in its stream (which takes it over).
[[nodiscard]] tilekiln_status launch(KvCall& call);
[[nodiscard]] tilekiln_status launch(AppendCall& call);
// Runs a call on a backend with kernels of its own.
[[nodiscard]] tilekiln_status run_kernels(KvCall& call);
[[nodiscard]] tilekiln_status run_kernels(AppendCall& call);
// Parts of the keys that keep the processors of such a backend busy.
int splits_of_kernels(const KvCall& call);
// Runs at once, in this thread and its helpers, whatever the stream says.
[[nodiscard]] tilekiln_status run_kv(KvCall& call);

}  // namespace tilekiln::fmha
