// The arguments of fmha_fwd_appendkv. Those of its attention are checked as split-KV's, over the grown cache.
#include <algorithm>
#include <vector>

#include "attention_check.h"
#include "page_table.h"

namespace tilekiln::fmha {
namespace {

class AppendCheck : AttentionCheck<tilekiln_fmha_fwd_appendkv_args, KvArrays, AppendCall> {
 public:
  using AttentionCheck::AttentionCheck;

  tilekiln_status run() {
    if (args_.rotary_interleaved != 0 && args_.rotary_interleaved != 1)
      return fail_argument("rotary_interleaved", "was %d, must be 0 or 1", args_.rotary_interleaved);
    if (args_.layout != TILEKILN_BSHD && args_.layout != TILEKILN_BHSD) {
      return fail_argument("layout", "was %d, must be %d (bshd) or %d (bhsd)", args_.layout, TILEKILN_BSHD,
                           TILEKILN_BHSD);
    }
    bhsd_ = args_.layout == TILEKILN_BHSD;
    if (args_.causal != 0 && args_.causal != 1) return fail_argument("causal", "was %d, must be 0 or 1", args_.causal);
    TILEKILN_TRY(at_least("window_left", args_.window_left, -1, "-1 (unbounded) or more"));
    TILEKILN_TRY(at_least("window_right", args_.window_right, -1, "-1 (unbounded) or more"));
    if (args_.instance < -1) {
      return fail_argument("instance", "was %lld, must be -1 (the dispatcher chooses) or an instance",
                           static_cast<ll>(args_.instance));
    }
    TILEKILN_TRY(read_arrays());
    TILEKILN_TRY(shapes());
    TILEKILN_TRY(rotary());
    TILEKILN_TRY(check_append_places(arrays_, cache_, &call_));
    TILEKILN_TRY(rotary_positions());
    const bool rotates_q = arrays_.q.given() && problem_.rope != Rope::none;
    TILEKILN_TRY(overlaps({&arrays_.k, &arrays_.v, rotates_q ? &arrays_.q : &none_, &arrays_.out, &arrays_.lse}));
    TILEKILN_TRY(where_to_run());
    set_appendkv_signature(&call_);
    call_.query.wants[want_hdim_q] = problem_.hdim_q;
    call_.query.wants[want_hdim_v] = problem_.hdim_v;
    return args_.out != nullptr ? attention() : TILEKILN_OK;
  }

 private:
  tilekiln_status read_arrays() {
    TILEKILN_TRY(required("k", args_.k, &arrays_.k));
    TILEKILN_TRY(required("v", args_.v, &arrays_.v));
    TILEKILN_TRY(required("knew", args_.knew, &arrays_.knew));
    TILEKILN_TRY(required("vnew", args_.vnew, &arrays_.vnew));
    TILEKILN_TRY(required("seqlen_k", args_.seqlen_k, &arrays_.seqlen_k));
    if (args_.out != nullptr && args_.q == nullptr) return fail_argument("q", "was null, must be given with out");
    if ((args_.rotary_cos == nullptr) != (args_.rotary_sin == nullptr)) {
      return fail_argument(args_.rotary_cos == nullptr ? "rotary_cos" : "rotary_sin",
                           "was null, must be given: rotary_cos and rotary_sin go together");
    }
#define TILEKILN_OPTIONAL(name) \
  if (args_.name != nullptr) TILEKILN_TRY(given(#name, args_.name, &arrays_.name))
    TILEKILN_OPTIONAL(q);
    TILEKILN_OPTIONAL(rotary_cos);
    TILEKILN_OPTIONAL(rotary_sin);
    TILEKILN_OPTIONAL(block_table);
    TILEKILN_OPTIONAL(cache_batch_idx);
    TILEKILN_OPTIONAL(out);
#undef TILEKILN_OPTIONAL
#define TILEKILN_ATTENTION(name)                                                                              \
  if (args_.name != nullptr) {                                                                                \
    if (args_.out == nullptr) return fail_argument(#name, "was given without out, must be null"); \
    TILEKILN_TRY(given(#name, args_.name, &arrays_.name));                                                    \
  }
    TILEKILN_ATTENTION(lse);
    TILEKILN_ATTENTION(bias);
    TILEKILN_ATTENTION(alibi_slopes);
    TILEKILN_ATTENTION(sink);
    TILEKILN_ATTENTION(q_descale);
    TILEKILN_ATTENTION(k_descale);
    TILEKILN_ATTENTION(v_descale);
    TILEKILN_ATTENTION(out_scale);
    TILEKILN_ATTENTION(cache_leftpad);
#undef TILEKILN_ATTENTION
    return TILEKILN_OK;
  }

  tilekiln_status shapes() {
    const Array &k = arrays_.k, &v = arrays_.v, &knew = arrays_.knew, &vnew = arrays_.vnew, &q = arrays_.q;
    const bool paged = arrays_.block_table.given();
    const char* const rows = bhsd_ ? "(batch, nhead, seqlen, hdim)" : "(batch, seqlen, nhead, hdim)";
    const char* const pool = !paged  ? rows
                             : bhsd_ ? "(pages, nhead, page_size, hdim) with block_table"
                                     : "(pages, page_size, nhead, hdim) with block_table";
    if (q.given()) TILEKILN_TRY(check_ndim(q, 4, rows));
    for (const Array* array : {&k, &v}) {
      if (array->ndim == 5) {
        return fail_argument(array->name,
                             "had 5 dimensions, as vectorized pages have, must have 4, %s: only linear caches can be "
                             "appended to; write the new keys yourself and call fmha_batch_prefill",
                             pool);
      }
      TILEKILN_TRY(check_ndim(*array, 4, pool));
    }
    for (const Array* array : {&knew, &vnew}) TILEKILN_TRY(check_ndim(*array, 4, rows));
    axes_ = axes_of(4);
    if (k.dtype != TILEKILN_FP32 && k.dtype != TILEKILN_FP16 && k.dtype != TILEKILN_BF16)
      TILEKILN_TRY(check_dtype(k, TILEKILN_FP8, "fp32, fp16, bf16 or fp8"));
    for (const Array* array : {&v, &knew, &vnew}) TILEKILN_TRY(dtype_like(*array, k));
    if (q.given()) TILEKILN_TRY(dtype_like(q, k));

    const i64 hdim_q = k.shape[axes_.hdim], hdim_v = v.shape[axes_.hdim], nhead_k = k.shape[axes_.head];
    if (hdim_q < 1 || hdim_q > 256)
      return fail_argument("k", "hdim was %lld, must be from 1 to 256", static_cast<ll>(hdim_q));
    if (hdim_v < 1 || hdim_v > 256)
      return fail_argument("v", "hdim was %lld, must be from 1 to 256", static_cast<ll>(hdim_v));
    TILEKILN_TRY(check_length(knew, axes_.hdim, "hdim", hdim_q, "the hdim of k"));
    TILEKILN_TRY(check_length(vnew, axes_.hdim, "hdim", hdim_v, "the hdim of v"));
    if (nhead_k < 1 || nhead_k > INT32_MAX)
      return fail_argument("k", "nhead was %lld, must be from 1 to 2147483647", static_cast<ll>(nhead_k));
    for (const Array* array : {&v, &knew, &vnew})
      TILEKILN_TRY(check_length(*array, axes_.head, "nhead", nhead_k, "the nhead of k"));
    const char* const token_name = paged ? "page size" : "seqlen";
    const char* const first_name = paged ? "page count" : "batch";
    TILEKILN_TRY(
        check_length(v, axes_.seq, token_name, k.shape[axes_.seq], paged ? "the page size of k" : "the seqlen of k"));
    TILEKILN_TRY(check_length(v, 0, first_name, k.shape[0], paged ? "the page count of k" : "the batch of k"));
    const i64 tokens = k.shape[axes_.seq];
    if (paged && (tokens < 1 || tokens > max_seqlen))
      return fail_argument("k", "page size was %lld, must be from 1 to %d", static_cast<ll>(tokens), max_seqlen);
    if (tokens > max_seqlen)
      return fail_argument("k", "seqlen was %lld, must be at most %d", static_cast<ll>(tokens), max_seqlen);
    cache_ = paged ? Cache{true, k.shape[0], tokens, 0, 0} : Cache{false, 0, 0, k.shape[0], tokens};

    const i64 batch = knew.shape[0], seqlen_new = knew.shape[axes_.seq];
    if (batch > INT32_MAX)
      return fail_argument("knew", "batch was %lld, must be at most 2147483647", static_cast<ll>(batch));
    if (seqlen_new > max_seqlen)
      return fail_argument("knew", "seqlen was %lld, must be at most %d", static_cast<ll>(seqlen_new), max_seqlen);
    TILEKILN_TRY(check_length(vnew, 0, "batch", batch, "the batch of knew"));
    TILEKILN_TRY(check_length(vnew, axes_.seq, "seqlen", seqlen_new, "the seqlen of knew"));
    call_.batch = static_cast<int>(batch);
    call_.seqlen_new = static_cast<int>(seqlen_new);
    if (q.given()) {
      TILEKILN_TRY(check_length(q, 0, "batch", batch, "the batch of knew"));
      TILEKILN_TRY(check_length(q, axes_.hdim, "hdim", hdim_q, "the hdim of k"));
      const i64 nhead_q = q.shape[axes_.head];
      if (nhead_q < 1 || nhead_q > INT32_MAX || nhead_q % nhead_k != 0) {
        return fail_argument("q", "nhead was %lld, must be a multiple of %lld, the nhead of k",
                             static_cast<ll>(nhead_q), static_cast<ll>(nhead_k));
      }
      if (q.shape[axes_.seq] > max_seqlen) {
        return fail_argument("q", "seqlen was %lld, must be at most %d", static_cast<ll>(q.shape[axes_.seq]),
                             max_seqlen);
      }
      call_.seqlen_q = static_cast<int>(q.shape[axes_.seq]);
      problem_.nhead_q = static_cast<int>(nhead_q);
      TILEKILN_TRY(check_contiguous(q));
      steps_of(q, &problem_.q_row, &problem_.q_head, &call_.steps.q);
    }
    for (const Array* array : {&k, &v, &knew, &vnew}) TILEKILN_TRY(check_contiguous(*array));
    problem_.dtype = k.dtype == TILEKILN_FP32   ? KvDtype::fp32
                     : k.dtype == TILEKILN_FP16 ? KvDtype::fp16
                     : k.dtype == TILEKILN_BF16 ? KvDtype::bf16
                                                : KvDtype::fp8;
    problem_.nhead_k = static_cast<int>(nhead_k);
    problem_.hdim_q = static_cast<int>(hdim_q);
    problem_.hdim_v = static_cast<int>(hdim_v);
    problem_.k = k.data;
    problem_.v = v.data;
    problem_.knew = knew.data;
    problem_.vnew = vnew.data;
    steps_of(k, &problem_.k_row, &problem_.k_head, &call_.steps.k);
    steps_of(v, &problem_.v_row, &problem_.v_head, &call_.steps.v);
    steps_of(knew, &problem_.knew_row, &problem_.knew_head, &call_.steps.knew);
    steps_of(vnew, &problem_.vnew_row, &problem_.vnew_head, &call_.steps.vnew);
    if (paged) {
      problem_.pages.page_size = static_cast<int>(tokens);
      problem_.pages.layout = KvLayout::linear;
      problem_.pages.k_page = k.stride[0];
      problem_.pages.v_page = v.stride[0];
    }
    return TILEKILN_OK;
  }

  tilekiln_status rotary() {
    const Array &cos = arrays_.rotary_cos, &sin = arrays_.rotary_sin;
    if (!cos.given()) return TILEKILN_OK;
    if (cos.dtype != TILEKILN_FP32) TILEKILN_TRY(dtype_like(cos, arrays_.k));
    TILEKILN_TRY(dtype_like(sin, cos));
    for (const Array* array : {&cos, &sin}) TILEKILN_TRY(check_ndim(*array, 2, "(positions, rotary_dim / 2)"));
    TILEKILN_TRY(check_length(sin, 0, "positions", cos.shape[0], "those of rotary_cos"));
    TILEKILN_TRY(check_length(sin, 1, "last dimension", cos.shape[1], "that of rotary_cos"));
    if (cos.shape[1] < 1 || cos.shape[1] > problem_.hdim_q / 2) {
      return fail_argument("rotary_cos", "rotary_dim was 2 x %lld, must be from 2 to %d, the hdim of q",
                           static_cast<ll>(cos.shape[1]), problem_.hdim_q / 2 * 2);
    }
    for (const Array* array : {&cos, &sin}) TILEKILN_TRY(check_contiguous(*array));
    problem_.rope = args_.rotary_interleaved != 0 ? Rope::interleaved : Rope::half;
    problem_.rotary_dim = static_cast<int>(2 * cos.shape[1]);
    problem_.rotary_cos = cos.data;
    problem_.rotary_sin = sin.data;
    problem_.rotary_fp32 = cos.dtype == TILEKILN_FP32;
    problem_.rotary_cos_row = cos.stride[0];
    problem_.rotary_sin_row = sin.stride[0];
    problem_.q_advances = args_.causal != 0 || args_.window_left >= 0 || args_.window_right >= 0;
    if (arrays_.q.given()) problem_.q = arrays_.q.data;
    return TILEKILN_OK;
  }

  // A row of cos and sin for every position in use.
  tilekiln_status rotary_positions() {
    if (problem_.rope == Rope::none) return TILEKILN_OK;
    const i64 queries = problem_.q_advances ? call_.seqlen_q : std::min(call_.seqlen_q, 1);
    const i64 used = std::max<i64>(call_.seqlen_new, queries);
    for (const AppendSequence& sequence : call_.kv_sequences) {
      if (used == 0 || sequence.seqlen_k + used <= arrays_.rotary_cos.shape[0]) continue;
      return fail_argument("rotary_cos", "had %lld positions, must have %lld: sequence %d grows to that length",
                           static_cast<ll>(arrays_.rotary_cos.shape[0]), static_cast<ll>(sequence.seqlen_k + used),
                           sequence.batch);
    }
    return TILEKILN_OK;
  }

  // The call of split-KV that follows.
  tilekiln_status attention() {
    std::vector<int32_t> lengths;
    for (const AppendSequence& sequence : call_.kv_sequences) lengths.push_back(sequence.seqlen_k + call_.seqlen_new);
    tilekiln_tensor grown = *args_.seqlen_k;
    grown.data = lengths.data();
    grown.stride[0] = 1;
    tilekiln_fmha_fwd_splitkv_args split = tilekiln_fmha_fwd_splitkv_defaults();
#define TILEKILN_SAME(name) split.name = args_.name
    TILEKILN_SAME(q), TILEKILN_SAME(k), TILEKILN_SAME(v), TILEKILN_SAME(out), TILEKILN_SAME(lse), TILEKILN_SAME(bias);
    TILEKILN_SAME(alibi_slopes), TILEKILN_SAME(sink), TILEKILN_SAME(q_descale), TILEKILN_SAME(k_descale);
    TILEKILN_SAME(v_descale), TILEKILN_SAME(out_scale), TILEKILN_SAME(block_table), TILEKILN_SAME(cache_batch_idx);
    TILEKILN_SAME(cache_leftpad), TILEKILN_SAME(softmax_scale), TILEKILN_SAME(softcap), TILEKILN_SAME(causal);
    TILEKILN_SAME(window_left), TILEKILN_SAME(window_right), TILEKILN_SAME(mask_origin), TILEKILN_SAME(sink_size);
    TILEKILN_SAME(num_splits), TILEKILN_SAME(layout), TILEKILN_SAME(num_threads), TILEKILN_SAME(stream);
    TILEKILN_SAME(executor);
#undef TILEKILN_SAME
    split.seqlen_k = &grown;
    call_.attends = true;
    return check_splitkv(split, &call_.attention);
  }

  Cache cache_ = {};
  Array none_;
};

}  // namespace

// What a sequence writes must be its own, or the result would depend on the order of the threads.
tilekiln_status check_append_places(const KvArrays& arrays, const Cache& cache, AppendCall* call) {
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

tilekiln_status check_appendkv(const tilekiln_fmha_fwd_appendkv_args& args, AppendCall* call) {
  // Only the size may be read before it is known to be right.
  if (args.size != sizeof(args)) {
    return fail_argument("args",
                         "size was %zu, must be %zu, sizeof(tilekiln_fmha_fwd_appendkv_args) of ABI %d: start from "
                         "tilekiln_fmha_fwd_appendkv_defaults()",
                         args.size, sizeof(args), TILEKILN_ABI_VERSION);
  }
  return AppendCheck(args, call).run();
}

}  // namespace tilekiln::fmha
