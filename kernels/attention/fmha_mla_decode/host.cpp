// SPDX-License-Identifier: MIT
// Arguments of fmha_mla_decode as the plain data of its engines, and its units.
#include "kernels/generated/operators/fmha_mla_decode_entries.h"

#include <algorithm>

#include "kernels/attention/page_table.h"
#include "kernels/attention/splits.h"

namespace tilekiln::op::fmha_mla_decode {

using mla::i64;
using ll = long long;

namespace {

// Elements of a row that are the value.
i64 width_of_value(const Args& args, i64 hdim_q) { return args.hdim_v > 0 ? args.hdim_v : std::min<i64>(hdim_q, 512); }

bool is_fp8(const Array& cache) { return cache.dtype == TILEKILN_FP8; }

tilekiln_status check_rows(const Args& args, const Call& call) {
  const Array& cache = call.in.cache;
  const i64 hdim_v = width_of_value(args, call.D);
  if (hdim_v > call.D)
    return fail_argument("hdim_v", "was %lld, must be at most %lld, the hdim of q", static_cast<ll>(hdim_v),
                         static_cast<ll>(call.D));
  if (!is_fp8(cache)) return check_length(cache, 2, "width", call.D, "the hdim of q");
  TILEKILN_TRY(check_length(cache, 2, "width", mla::kFp8RowBytes,
                            "the bytes of a row of fp8: 512 e4m3, 4 fp32 factors, 64 bf16"));
  if (call.D != mla::kMostDims)
    return fail_argument("q", "hdim was %lld, must be %d with a cache of fp8", static_cast<ll>(call.D), mla::kMostDims);
  if (hdim_v == 512) return TILEKILN_OK;
  return fail_argument("hdim_v", "was %lld, must be 512 with a cache of fp8", static_cast<ll>(hdim_v));
}

// The keys that a sequence may have.
tilekiln_status room_of(const Call& call, i64* room) {
  const Arrays& in = call.in;
  if (call.form == Form::contiguous) {
    if (in.cache.shape[0] != call.B)
      return fail_argument("cache", "batch was %lld, must be %lld, the batch of q", static_cast<ll>(in.cache.shape[0]),
                           static_cast<ll>(call.B));
    *room = call.Sk;
    return TILEKILN_OK;
  }
  TILEKILN_TRY(fmha::check_block_table(in.block_table, call.B));
  const i64 blocks = in.block_table.shape[1];
  *room = blocks > fmha::max_seqlen / call.Ps ? i64(fmha::max_seqlen) : blocks * call.Ps;
  return TILEKILN_OK;
}

tilekiln_status read_lengths(Call& call, i64 room) {
  const Arrays& in = call.in;
  std::vector<int32_t>& seqlen_k = call.to.problem.seqlen_k;
  seqlen_k.assign(static_cast<size_t>(call.B), static_cast<int32_t>(room));
  if (!in.seqlen_k.given()) return TILEKILN_OK;
  TILEKILN_TRY(fmha::check_index(in.seqlen_k, call.B, "batch"));
  for (i64 i = 0; i < call.B; ++i) {
    const int32_t keys = fmha::entry(in.seqlen_k, i);
    if (keys < 0 || keys > room) {
      return fail_argument("seqlen_k", "entry %lld was %d, must be from 0 to %lld, %s", static_cast<ll>(i), keys,
                           static_cast<ll>(room),
                           call.form == Form::paged ? "the keys of a row of block_table" : "the seqlen of cache");
    }
    seqlen_k[static_cast<size_t>(i)] = keys;
  }
  return TILEKILN_OK;
}

// The pages in use, checked: what the engine reads is what was checked, whatever the caller does to them meanwhile.
tilekiln_status read_table(Call& call) {
  const Arrays& in = call.in;
  mla::Call& to = call.to.problem;
  int32_t longest = 0;
  for (const int32_t keys : to.seqlen_k) longest = std::max(longest, keys);
  const i64 row = (longest + call.Ps - 1) / call.Ps;
  to.problem.table_row = row;
  to.table.assign(static_cast<size_t>(call.B * row), 0);
  for (i64 i = 0; i < call.B; ++i) {
    const i64 used = (to.seqlen_k[static_cast<size_t>(i)] + call.Ps - 1) / call.Ps;
    for (i64 page = 0; page < used; ++page) {
      const int32_t number = fmha::entry(in.block_table, i, page);
      if (number < 0 || number >= call.P) {
        return fail_argument("block_table", "entry (%lld, %lld) was %d, must be from 0 to %lld, the last page of cache",
                             static_cast<ll>(i), static_cast<ll>(page), number, static_cast<ll>(call.P - 1));
      }
      to.table[static_cast<size_t>(i * row + page)] = number;
    }
  }
  return TILEKILN_OK;
}

}  // namespace

tilekiln_status latent(const Args& args, tilekiln_shape* shape) {
  const int64_t* const q = args.q->shape;
  *shape = {4, {q[0], q[1], q[2], width_of_value(args, q[3])}};
  return TILEKILN_OK;
}

tilekiln_status rows(const Args& args, Call& call) { return check_rows(args, call); }

// Index arrays that kernels read: of a page out of the pool the keys are zeros.
static tilekiln_status leave_there(Call& call, i64 room) {
  const Arrays& in = call.in;
  mla::Call& to = call.to.problem;
  to.room = static_cast<int>(room);
  if (in.seqlen_k.given()) {
    TILEKILN_TRY(fmha::check_unread(in.seqlen_k, call.B, "batch"));
    to.device_seqlen_k = reinterpret_cast<const int*>(in.seqlen_k.data);
  }
  if (call.form != Form::paged) return TILEKILN_OK;
  if (in.block_table.stride[1] != 1 && in.block_table.shape[1] > 1 && call.B > 0)
    return fail_argument("block_table", "the stride of its last dimension was %lld, must be 1 on a GPU",
                         static_cast<ll>(in.block_table.stride[1]));
  to.problem.table = reinterpret_cast<const int*>(in.block_table.data);
  to.problem.table_row = in.block_table.stride[0];
  to.pages = static_cast<int>(std::min<i64>(call.P, INT32_MAX));
  return TILEKILN_OK;
}

tilekiln_status keys(const Args&, Call& call) {
  i64 room = 0;
  TILEKILN_TRY(room_of(call, &room));
  if (!call.to.backend->takes_units) return leave_there(call, room);
  TILEKILN_TRY(read_lengths(call, room));
  return call.form == Form::paged ? read_table(call) : TILEKILN_OK;
}

void fill(const Args& args, Call& call) {
  const Arrays& in = call.in;
  mla::Call& to = call.to.problem;
  mla::Problem& p = to.problem;
  to.paged = call.form == Form::paged;
  to.num_splits = args.num_splits;
  p.q = in.q.data, p.q_batch = in.q.stride[0], p.q_row = in.q.stride[1], p.q_head = in.q.stride[2];
  p.cache = in.cache.data, p.cache_page = in.cache.stride[0], p.cache_row = in.cache.stride[1];
  p.out = in.out.data, p.out_batch = in.out.stride[0], p.out_row = in.out.stride[1], p.out_head = in.out.stride[2];
  if (in.lse.given()) {
    p.lse = reinterpret_cast<float*>(in.lse.data);
    p.lse_batch = in.lse.stride[0], p.lse_head = in.lse.stride[1];
  }
  p.batch = static_cast<int>(call.B), p.seqlen_q = static_cast<int>(call.Sq), p.nhead = static_cast<int>(call.H);
  p.hdim_q = static_cast<int>(call.D), p.hdim_v = static_cast<int>(width_of_value(args, call.D));
  p.page_size = static_cast<int>(to.paged ? call.Ps : std::max<i64>(call.Sk, 1));
  p.causal = args.causal != 0;
  p.storage = static_cast<mla::Storage>(call.signature.dtype);
  p.softmax_scale =
      args.softmax_scale != nullptr ? *args.softmax_scale : 1 / __builtin_sqrtf(static_cast<float>(call.D));
}

namespace {

// Parts of the longest sequence: enough units for 64 threads, each of 512 keys or more. Threads do not count, so that the bits of a
// result do not depend on them.
i64 chosen_splits(const mla::Call& call, i64 tiles) {
  if (call.num_splits > 0) return call.num_splits;
  constexpr i64 kUnits = 64, kLeastKeys = 512;
  i64 longest = 0;
  for (const int32_t keys : call.seqlen_k) longest = std::max<i64>(longest, keys);
  const i64 wanted = (kUnits + tiles - 1) / std::max<i64>(tiles, 1);
  return std::clamp<i64>(std::min(wanted, longest / kLeastKeys), 1, fmha::max_splits);
}

class Run {
 public:
  explicit Run(StageCall<mla::Call>& call)
      : call_(call), p_(call.problem.problem), engine_(*static_cast<const mla::Engine*>(call.choice.engine)) {
    p_.table = call.problem.paged ? call.problem.table.data() : nullptr;
    rows_ = i64(p_.seqlen_q) * p_.nhead;
    tiles_ = (rows_ + engine_.tile_rows - 1) / engine_.tile_rows;
    splits_ = chosen_splits(call.problem, tiles_ * p_.batch);
  }

  tilekiln_status run() {
    if (splits_ > 1) TILEKILN_TRY(take_memory());
    double work = 0;
    for (const int32_t keys : call_.problem.seqlen_k) work += static_cast<double>(keys);
    work *= static_cast<double>(rows_) * (p_.hdim_q + p_.hdim_v);
    const auto rows = engine_.rows[static_cast<int>(p_.storage)];
    TILEKILN_TRY(launch_stage(call_, call_.choice, p_, p_.batch * splits_ * tiles_, work, engine_.scratch_bytes,
                              [&](int64_t number, void* scratch) { rows(p_, unit(number), scratch); }));
    return splits_ > 1 ? combine() : TILEKILN_OK;
  }

 private:
  // Room for partial results: out (batch, splits, seqlen_q, nhead, hdim_v), lse (batch, splits, nhead, seqlen_q).
  tilekiln_status take_memory() {
    const unsigned __int128 floats = static_cast<unsigned __int128>(p_.batch) * static_cast<uint64_t>(splits_) *
                                     static_cast<uint64_t>(rows_) * static_cast<uint64_t>(p_.hdim_v + 1);
    const size_t bytes = floats > (SIZE_MAX >> 4) ? SIZE_MAX >> 1 : static_cast<size_t>(floats) * sizeof(float);
    if (memory_.get(call_, bytes) != TILEKILN_OK)
      return fail(TILEKILN_OUT_OF_MEMORY,
                  "no memory for %zu bytes of partial results; out is as it was. num_splits was %d", bytes,
                  static_cast<int>(splits_));
    part_out_ = memory_.as<float>();
    part_lse_ = part_out_ + p_.batch * splits_ * rows_ * p_.hdim_v;
    return TILEKILN_OK;
  }

  // The tiles of one split follow each other: its keys stay in the cache.
  mla::Unit unit(i64 number) const {
    const i64 tile = number % tiles_, split = number / tiles_ % splits_, batch = number / tiles_ / splits_;
    mla::Unit u = {};
    u.batch = static_cast<int>(batch);
    u.row = static_cast<int>(tile) * engine_.tile_rows;
    u.rows = static_cast<int>(std::min<i64>(engine_.tile_rows, rows_ - u.row));
    u.seqlen_k = call_.problem.seqlen_k[static_cast<size_t>(batch)];
    const i64 each = (u.seqlen_k + splits_ - 1) / splits_,
              per = (each + engine_.tile_keys - 1) / engine_.tile_keys * engine_.tile_keys;
    u.key_begin = static_cast<int>(std::min<i64>(split * per, u.seqlen_k));
    u.key_end = static_cast<int>(std::min<i64>((split + 1) * per, u.seqlen_k));
    u.partial = splits_ > 1;
    if (u.partial) {
      const i64 part = batch * splits_ + split;
      u.out = part_out_ + part * rows_ * p_.hdim_v;
      u.out_row = i64(p_.nhead) * p_.hdim_v, u.out_head = p_.hdim_v;
      u.lse = part_lse_ + part * rows_, u.lse_head = p_.seqlen_q;
    } else {
      u.out = static_cast<char*>(p_.out) + batch * p_.out_batch * out_bytes();
      u.out_row = p_.out_row, u.out_head = p_.out_head;
      u.lse = p_.lse == nullptr ? nullptr : p_.lse + batch * p_.lse_batch, u.lse_head = p_.lse_head;
    }
    return u;
  }
  i64 out_bytes() const { return p_.storage == mla::Storage::fp32 ? 4 : 2; }

  tilekiln_status combine() {
    fmha::CombineProblem c = {};
    c.nsplits = static_cast<int>(splits_), c.hdim_v = p_.hdim_v;
    c.o_acc = part_out_, c.lse_acc = part_lse_;
    c.o_acc_head = p_.hdim_v, c.o_acc_row = i64(p_.nhead) * p_.hdim_v, c.o_acc_split = rows_ * p_.hdim_v;
    c.lse_acc_head = p_.seqlen_q, c.lse_acc_split = rows_;
    c.out = p_.out, c.out_head = p_.out_head, c.out_row = p_.out_row;
    c.lse = p_.lse, c.lse_head = p_.lse_head;
    c.out_scale = 1;
    const auto run = engine_.combine[static_cast<int>(p_.storage)];
    const double work = static_cast<double>(p_.batch) * static_cast<double>(rows_ * splits_) * p_.hdim_v;
    return launch_stage(call_, call_.choice, c, i64(p_.batch) * p_.nhead, work, 0, [&](int64_t number, void*) {
      const i64 batch = number / p_.nhead;
      run(c, {static_cast<int>(number % p_.nhead), 0, p_.seqlen_q, batch * splits_ * rows_ * p_.hdim_v,
              batch * splits_ * rows_, batch * p_.out_batch, batch * p_.lse_batch});
    });
  }

  StageCall<mla::Call>& call_;
  mla::Problem& p_;
  const mla::Engine& engine_;
  CallMemory memory_;
  float *part_out_ = nullptr, *part_lse_ = nullptr;
  i64 rows_, tiles_, splits_;
};

}  // namespace

tilekiln_status launch(StageCall<mla::Call>& call) {
  const mla::Problem& p = call.problem.problem;
  if (p.batch == 0 || p.seqlen_q == 0 || p.nhead == 0) return TILEKILN_OK;
  if (__builtin_expect(!call.backend->takes_units, 0)) {
    const mla::Call& of = call.problem;
    return launch_kernel(call, call.choice, mla::Launched{p, of.device_seqlen_k, of.room, of.pages, of.num_splits});
  }
  return Run(call).run();
}

}  // namespace tilekiln::op::fmha_mla_decode
