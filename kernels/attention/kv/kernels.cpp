// SPDX-License-Identifier: MIT
// A call over a KV cache on a backend with kernels of its own: where its sequences are, the memory of its splits, the launches.
#include <algorithm>
#include <vector>

#include "kernels/attention/kv/call.h"
#include "kernels/attention/page_table.h"
#include "kernels/attention/splits.h"
#include "kernels/attention/visible.h"
#include "kernels/generated/fmha_fwd_splitkv.h"
#include "kernels/runtime/launch.h"

namespace tilekiln::fmha {
namespace {

const int* data_of(const Array& array) { return array.given() ? reinterpret_cast<const int*>(array.data) : nullptr; }

// Places of arrays that stay on the device.
KvDevicePlaces unread_places(const UnreadKeys& unread) {
  const KvIndexArrays& in = unread.arrays;
  const Cache& cache = unread.cache;
  KvDevicePlaces at = {};
  if (unread.group) {
    at.seqstart_q = data_of(in.seqstart_q.given() ? in.seqstart_q : in.cu_seqlens_q);
    at.total_q = static_cast<int>(std::min<i64>(unread.rows, INT32_MAX));
  }
  at.seqlen_q = data_of(in.seqlen_q);
  at.cu_seqlens_q = in.cu_seqlens_q.given() ? data_of(in.cu_seqlens_q) : at.seqstart_q;
  at.seqlen_k = data_of(in.seqlen_k);
  at.cu_seqlens_k = data_of(in.cu_seqlens_k);
  at.more = unread.more;
  at.pages = static_cast<int>(std::min<i64>(cache.pages, INT32_MAX));
  if (unread.group && !cache.paged) {  // sequences lie one after another
    at.first_key = data_of(in.seqstart_k.given() ? in.seqstart_k : in.cu_seqlens_k);
    at.first_is_start = true;
    if (at.cu_seqlens_k == nullptr) at.cu_seqlens_k = at.first_key;
  } else if (unread.gappy) {
    at.first_key = data_of(in.seqstart_k);
    at.first_is_start = true;
  } else {
    at.first_key = data_of(in.cache_leftpad);
    if (at.cu_seqlens_k == nullptr) at.cu_seqlens_k = data_of(in.seqstart_k);
  }
  at.row_k = data_of(in.cache_batch_idx);
  at.rows_k = static_cast<int>(cache.paged ? 0 : cache.batch);
  at.room_k = static_cast<int>(std::min<i64>(cache.seqlen, max_seqlen));
  if (in.block_table.given()) {
    at.table = data_of(in.block_table);
    at.table_row = in.block_table.stride[0];
    at.rows_k = static_cast<int>(in.block_table.shape[0]);
    at.room_k = static_cast<int>(keys_of_pages(in.block_table.shape[1], cache.page_size));
  } else if (in.kv_indptr.given()) {
    at.table = data_of(in.kv_page_indices);
    at.table_start = data_of(in.kv_indptr);
    at.last_page_len = data_of(in.kv_last_page_lens);
    at.entries = in.kv_page_indices.shape[0];
    at.room_k = static_cast<int>(keys_of_pages(at.entries, cache.page_size));
  }
  return at;
}

// Some columns of numbers, a row a sequence, and a table behind them, copied to the device together.
class Upload {
 public:
  Upload(i64 columns, i64 rows, const SmallArray<int, 64>& table)
      : rows_(static_cast<size_t>(rows)), table_(table.size()), numbers_(static_cast<size_t>(columns * rows) + table_) {
    std::copy(table.begin(), table.end(), numbers_.end() - static_cast<i64>(table_));
  }
  int& at(i64 column, i64 row) { return numbers_[static_cast<size_t>(column) * rows_ + static_cast<size_t>(row)]; }
  tilekiln_status copy(const Run& run, CallMemory* memory) {
    const size_t bytes = sizeof(int) * numbers_.size();
    TILEKILN_TRY(memory->get(run, bytes));
    device_ = memory->as<int>();
    return run.backend->copy(run.device, run.native, memory->as<int>(), numbers_.data(), bytes, Direction::to_device);
  }
  const int* column(i64 number) const { return device_ + static_cast<size_t>(number) * rows_; }
  const int* table() const { return table_ != 0 ? device_ + (numbers_.size() - table_) : nullptr; }

 private:
  size_t rows_, table_;
  std::vector<int> numbers_;
  const int* device_ = nullptr;
};

// Places keys of a call whose arrays the host has read.
tilekiln_status place_keys(const KvCall& call, CallMemory* memory, KvDevicePlaces* at) {
  const KvProblem& problem = call.problem;
  const bool group = problem.features.group, paged = problem.pages.page_size != 0;
  *at = {};
  at->rows_k = at->pages = at->total_q = INT32_MAX;
  at->room_k = call.seqlen_k;
  bool alike = !group && !paged;
  for (const KvSequence& one : call.kv_sequences) {
    alike = alike && one.seqlen_q == call.seqlen_q && one.seqlen_k == call.seqlen_k && one.first_key == 0 &&
            one.place_k == one.batch;
  }
  if (alike) return TILEKILN_OK;
  at->room_k = INT32_MAX;
  enum Column { start_q, length_q, length_k, first_k, row_k, pages_at, columns };
  Upload upload(columns, call.batch, call.table);
  for (const KvSequence& one : call.kv_sequences) {
    upload.at(start_q, one.batch) = static_cast<int>(one.place_q);
    upload.at(length_q, one.batch) = one.seqlen_q;
    upload.at(length_k, one.batch) = one.seqlen_k;
    upload.at(first_k, one.batch) = static_cast<int>(group && !paged ? one.place_k : one.first_key);
    upload.at(row_k, one.batch) = static_cast<int>(one.place_k);
    upload.at(pages_at, one.batch) = static_cast<int>(one.pages_offset);
  }
  TILEKILN_TRY(upload.copy(call, memory));
  if (group) at->seqstart_q = upload.column(start_q);
  at->seqlen_q = upload.column(length_q);
  at->seqlen_k = upload.column(length_k);
  at->first_key = upload.column(first_k);
  at->first_is_start = true;
  if (!group && !paged) at->row_k = upload.column(row_k);
  if (paged) {
    at->table = upload.table() != nullptr ? upload.table() : upload.column(0);  // of no entry, nothing is read
    at->table_at = upload.column(pages_at);
  }
  return TILEKILN_OK;
}

tilekiln_status place_append(const AppendCall& call, CallMemory* memory, KvDevicePlaces* at) {
  if (call.unread) {
    const UnreadPlaces& unread = *call.unread_places;
    *at = unread_places({unread.arrays, unread.cache, false, false, 0, nullptr});
    at->first_key = nullptr;
    return TILEKILN_OK;
  }
  *at = {};
  at->rows_k = at->pages = at->room_k = INT32_MAX;
  enum Column { length_k, row_k, pages_at, columns };
  Upload upload(columns, call.batch, call.table);
  for (const AppendSequence& one : call.kv_sequences) {
    upload.at(length_k, one.batch) = one.seqlen_k;
    upload.at(row_k, one.batch) = static_cast<int>(one.place_k);
    upload.at(pages_at, one.batch) = static_cast<int>(one.pages_offset);
  }
  TILEKILN_TRY(upload.copy(call, memory));
  at->seqlen_k = upload.column(length_k);
  if (call.problem.pages.page_size == 0) {
    at->row_k = upload.column(row_k);
  } else {
    at->table = upload.table() != nullptr ? upload.table() : upload.column(0);
    at->table_at = upload.column(pages_at);
  }
  return TILEKILN_OK;
}

}  // namespace

// Takes the fewest splits of those with the least time, in keys of a processor: it has up to `side` blocks side by side, which share its
// speed; one alone waits for memory more. Blocks in turn cost so many keys more, a second launch and its parts too. Measured on an H200 over
// twenty shapes of 1 to 128 rows of queries, each at up to 13 numbers of splits: 1.0025 of the best one's time, 1.03 at most.
int splits_of_kernels(const KvCall& call) {
  constexpr i64 step = 64, block_cost = 64, combine_cost = 128, part_cost = 1;
  const KvProblem& problem = call.problem;
  const i64 all_rows = i64(call.seqlen_q) * (problem.nhead_q / problem.nhead_k);
  const i64 rows = call.choice.how->fields[fmha_fwd_splitkv::fields::tile_q];
  const int side = problem.hdim_q > 128 || problem.hdim_v > 128 ? 1 : 2;
  const i64 blocks = i64(call.batch) * problem.nhead_k * ((all_rows + rows - 1) / rows),
            keys = most_visible_keys(problem, call.seqlen_q, call.seqlen_k);
  const i64 workers = call.backend->processors(call.device);
  i64 best = INT64_MAX;
  int chosen = 1;
  for (int splits = 1; splits <= max_splits && (splits == 1 || (splits - 1) * step < keys); ++splits) {
    const i64 share = ((keys + splits - 1) / splits + step - 1) / step * step, all = blocks * splits;
    const i64 turns = (all + workers * side - 1) / (workers * side);
    const i64 load = all <= workers ? share * 6 / 5 : turns * side * share;
    const i64 time = load + turns * block_cost + (splits > 1 ? combine_cost + part_cost * splits : 0);
    if (time < best) best = time, chosen = splits;
  }
  return chosen;
}

static KvKernelProblem kernel_problem(const KvCall& call) {
  return {call.problem,  call.steps, {},      call.batch, call.seqlen_q,
          call.seqlen_k, 1,          nullptr, nullptr,    call.query.sizes[size_cache_bytes],
          call.out_scale};
}

tilekiln_status run_kernels(KvCall& call) {
  KvKernelProblem problem = kernel_problem(call);
  if (call.batch == 0 || call.seqlen_q == 0) return TILEKILN_OK;
  CallMemory places, parts;
  if (call.unread) {
    problem.places = unread_places(*call.unread_keys);
  } else {
    TILEKILN_TRY(place_keys(call, &places, &problem.places));
  }
  if (call.choice.how->pipeline == static_cast<uint8_t>(fmha_fwd_splitkv::Pipeline::decode)) {
    if (call.combine.how != nullptr)
      problem.num_splits = num_splits(call);
    else
      problem.own_splits = splits_of_kernels(call);
  }
  if (problem.num_splits > 1) {
    const KvProblem& p = call.problem;
    const double rows = static_cast<double>(call.batch) * call.seqlen_q * p.nhead_q * problem.num_splits;
    if (rows * (p.hdim_v + 1) * 4 > static_cast<double>(INT64_MAX) / 2)
      return fail(TILEKILN_OUT_OF_MEMORY, "no memory for partial results; out is as it was. num_splits was %d",
                  problem.num_splits);
    const size_t count = static_cast<size_t>(call.batch) * static_cast<size_t>(call.seqlen_q) *
                         static_cast<size_t>(p.nhead_q) * static_cast<size_t>(problem.num_splits);
    TILEKILN_TRY(parts.get(call, count * static_cast<size_t>(p.hdim_v + 1) * sizeof(float)));
    problem.part_out = parts.as<float>();
    problem.part_lse = problem.part_out + count * static_cast<size_t>(p.hdim_v);
  }
  TILEKILN_TRY(launch_kernel(call, call.choice, problem));
  return problem.num_splits > 1 ? launch_kernel(call, call.combine, problem) : TILEKILN_OK;
}

tilekiln_status run_kernels(AppendCall& call) {
  const int queries = call.problem.q != nullptr ? call.seqlen_q : 0;
  if (call.batch > 0 && std::max(queries, call.seqlen_new) > 0) {
    AppendKernelProblem problem = {call.problem, call.steps, {}, call.batch, queries, call.seqlen_new, call.positions};
    CallMemory places;
    TILEKILN_TRY(place_append(call, &places, &problem.places));
    const KvCall& next = call.attention;
    KvKernelProblem attention = {};
    bool attended = false;
    if (call.attends && next.unread && next.num_splits == 0 && queries == 1 && call.seqlen_new == 1 &&
        next.choice.how->pipeline == static_cast<uint8_t>(fmha_fwd_splitkv::Pipeline::decode)) {
      attention = kernel_problem(next);
      attention.places = unread_places(*next.unread_keys);
      problem.attention = &attention, problem.attended = &attended;
    }
    TILEKILN_TRY(launch_kernel(call, call.choice, problem));
    if (attended) return TILEKILN_OK;
  }
  return call.attends ? run_kv(call.attention) : TILEKILN_OK;
}

}  // namespace tilekiln::fmha
