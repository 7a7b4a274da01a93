// SPDX-License-Identifier: MIT
// Calls over a KV cache from arguments to results: every shape of cache and index array, against a loop that looks up
// each key by itself; for every number of splits the same result. Built twice: over a plain engine, and
// (TILEKILN_TEST_LIBRARY) through the C ABI of a library.
#include "kv_call_append.h"
#include "kv_call_prefill.h"
#ifndef TILEKILN_TEST_LIBRARY
#include "kernels/runtime/table.h"

const tilekiln::Table tilekiln::table = {};  // no target but the CPU's
#endif

namespace {

// Split-KV calls over every kind of cache.
void splitkv_case(int number) {
  const bool bf16 = library && coin();
  const bool group = coin(), paged = coin(), bhsd = coin(), gappy = group && paged && pick(0, 2) == 0;
  const int batch = pick(1, 4), nhead_k = pick(1, 3), nhead_q = nhead_k * pick(1, 5), D = 8 * pick(1, 2), Dv = 8;
  const int page_size = pick(1, 9), pool = 64, rows_of_cache = batch + pick(0, 2);
  const bool indexed = !group && coin(), padded = !group && coin(), lengths_of_q = !group && coin();
  const int seqlen_cache = pick(1, 40);
  std::vector<int32_t> seqlen_q, seqlen_k, first_key, row, start_q = {0}, start_k = {0};
  for (int b = 0; b < batch; ++b) {
    const int room = paged ? 40 : seqlen_cache;
    seqlen_k.push_back(pick(0, 3) == 0 ? room : pick(0, room));
    first_key.push_back(gappy ? pick(0, 20) : padded ? pick(0, seqlen_k.back()) : 0);
    seqlen_q.push_back(pick(0, 6));
    row.push_back(indexed ? pick(0, rows_of_cache - 1) : b);
    start_q.push_back(start_q.back() + seqlen_q.back());
    start_k.push_back(start_k.back() + seqlen_k.back());
  }
  const int rows_q = group ? start_q.back() : 6, cache_batch = indexed ? rows_of_cache : batch;
  const int64_t blocks = (40 + 20 + page_size - 1) / page_size;

  // q and out.
  const std::vector<int64_t> q_shape = group  ? std::vector<int64_t>{rows_q, nhead_q, D}
                                       : bhsd ? std::vector<int64_t>{batch, nhead_q, rows_q, D}
                                              : std::vector<int64_t>{batch, rows_q, nhead_q, D};
  std::vector<int64_t> out_shape = q_shape;
  out_shape.back() = Dv;
  const Data q_data(noise(static_cast<size_t>(batch * rows_q * nhead_q * D + 1)), bf16);
  const Data out_data(std::vector<float>(static_cast<size_t>(batch * rows_q * nhead_q * Dv + 1), 7), bf16);
  std::vector<float> lse_data(static_cast<size_t>(batch * rows_q * nhead_q + 1), 7);
  tilekiln_tensor q = q_data.tensor_of(q_shape), out = out_data.tensor_of(out_shape);
  const bool group_bhsd = group && bhsd;  // (nhead, total, hdim)
  if (group_bhsd) {
    for (auto* t : {&q, &out}) std::swap(t->shape[0], t->shape[1]), std::swap(t->stride[0], t->stride[1]);
  }
  tilekiln_tensor lse = group ? tensor(lse_data.data(), TILEKILN_FP32, {nhead_q, rows_q})
                              : tensor(lse_data.data(), TILEKILN_FP32, {batch, nhead_q, rows_q});

  // The cache.
  const int64_t outer = paged ? pool : group ? start_k.back() : cache_batch, tokens = paged ? page_size : seqlen_cache;
  std::vector<int64_t> k_shape, v_shape;
  if (group && !paged) {
    k_shape = bhsd ? std::vector<int64_t>{nhead_k, outer, D} : std::vector<int64_t>{outer, nhead_k, D};
  } else {
    k_shape = bhsd ? std::vector<int64_t>{outer, nhead_k, tokens, D} : std::vector<int64_t>{outer, tokens, nhead_k, D};
  }
  v_shape = k_shape;
  v_shape.back() = Dv;
  size_t elements = 1;
  for (int64_t length : k_shape) elements *= static_cast<size_t>(length);
  const Data k_data(noise(elements + 1), bf16), v_data(noise(elements + 1), bf16);
  const tilekiln_tensor k = k_data.tensor_of(k_shape), v = v_data.tensor_of(v_shape);
  const int table_rows = indexed ? rows_of_cache : batch;
  std::vector<int32_t> table(static_cast<size_t>(table_rows * blocks));
  for (int32_t& page : table) page = pick(0, pool - 1);
  const tilekiln_tensor block_table = tensor(table.data(), TILEKILN_INT32, {table_rows, blocks});
  // Key j of sequence b, and the element there.
  const auto key = [&](const Data& data, const tilekiln_tensor& t, int b, int head, int j, int d) -> double {
    int64_t place = first_key[size_t(b)] + j, first = row[size_t(b)];
    if (group && !paged) {
      const int64_t token = start_k[size_t(b)] + j;
      return data.values[size_t(bhsd ? at(t, head, token, d) : at(t, token, head, d))];
    }
    if (paged) first = table[size_t(row[size_t(b)] * blocks + place / page_size)], place %= page_size;
    return data.values[size_t(bhsd ? at(t, first, head, place, d) : at(t, first, place, head, d))];
  };

  tilekiln_fmha_fwd_splitkv_args args = tilekiln_fmha_fwd_splitkv_defaults();
  args.q = &q, args.k = &k, args.v = &v, args.out = &out;
  args.layout = bhsd ? TILEKILN_BHSD : TILEKILN_BSHD;
  if (coin()) args.lse = &lse;
  const tilekiln_tensor lengths_q = tensor(seqlen_q.data(), TILEKILN_INT32, {batch}),
                        lengths_k = tensor(seqlen_k.data(), TILEKILN_INT32, {batch});
  const tilekiln_tensor starts_q = tensor(start_q.data(), TILEKILN_INT32, {batch + 1}),
                        starts_k = tensor(start_k.data(), TILEKILN_INT32, {batch + 1});
  const tilekiln_tensor firsts = tensor(first_key.data(), TILEKILN_INT32, {batch}),
                        rows = tensor(row.data(), TILEKILN_INT32, {batch});
  if (group) args.cu_seqlens_q = &starts_q;
  if (lengths_q.shape[0] != 0 && lengths_of_q) args.seqlen_q = &lengths_q;
  if (group && !paged) {
    args.cu_seqlens_k = &starts_k;
  } else if (gappy) {
    args.seqlen_k = &lengths_k, args.seqstart_k = &firsts, args.is_gappy = 1;
  } else if (group && coin()) {
    (coin() ? args.cu_seqlens_k : args.seqstart_k) = &starts_k;
  } else {
    args.seqlen_k = &lengths_k;
  }
  if (paged) args.block_table = &block_table;
  if (indexed) args.cache_batch_idx = &rows;
  if (padded) args.cache_leftpad = &firsts;

  const auto slopes_data = noise(static_cast<size_t>(batch * nhead_q)), sink_data = noise(static_cast<size_t>(nhead_q));
  const Data bias_data(noise(static_cast<size_t>((group ? 1 : batch) * nhead_q * rows_q * 64 + 1)), bf16);
  const tilekiln_tensor slopes = tensor(slopes_data.data(), TILEKILN_FP32, {batch, nhead_q}),
                        sink = tensor(sink_data.data(), TILEKILN_FP32, {nhead_q});
  const tilekiln_tensor bias = bias_data.tensor_of(group ? std::vector<int64_t>{nhead_q, rows_q, 64}
                                                         : std::vector<int64_t>{batch, nhead_q, rows_q, 64});
  const int score = pick(0, 3);
  if (score == 1) args.bias = &bias;
  if (score == 2) args.alibi_slopes = &slopes;
  if (score == 3) args.softcap = 2;
  if (coin()) args.sink = &sink;
  if (pick(0, 2) == 0) args.causal = 1;
  if (pick(0, 2) == 0) args.window_left = pick(0, 10);
  if (coin()) args.mask_origin = TILEKILN_TOP_LEFT;
  if (coin()) args.sink_size = pick(0, 3);
  const int splits[] = {0, 1, 2, 3, 8, 128};
  args.num_splits = splits[pick(0, 5)];
  args.num_threads = pick(1, 3);

  if (!runs(args, "splitkv", number)) return;

  double worst = 0;
  std::vector<bool> written(out_data.values.size()), written_lse(lse_data.size());
  for (int b = 0; b < batch; ++b) {
    const int sq = group || lengths_of_q ? seqlen_q[size_t(b)] : rows_q;
    const int keys = seqlen_k[size_t(b)] - (padded ? first_key[size_t(b)] : 0);
    for (int h = 0; h < nhead_q; ++h) {
      for (int i = 0; i < sq; ++i) {
        const int64_t r = group ? start_q[size_t(b)] + i : i;
        const auto place = [&](const tilekiln_tensor& t, int d) {
          if (group) return bhsd ? at(t, h, r, d) : at(t, r, h, d);
          return bhsd ? at(t, b, h, r, d) : at(t, b, r, h, d);
        };
        const int shift = args.mask_origin == TILEKILN_TOP_LEFT ? 0 : keys - sq;
        const auto visible = [&](int j) {
          if (args.causal != 0 && j > i + shift) return false;
          return args.window_left < 0 || j >= i + shift - args.window_left || j < args.sink_size;
        };
        const auto logit = [&](int j) {
          double s = 0;
          for (int d = 0; d < D; ++d)
            s += double(q_data.values[size_t(place(q, d))]) * key(k_data, k, b, h / (nhead_q / nhead_k), j, d);
          s /= sqrt(double(D));
          if (score == 1) s += bias_data.values[size_t(group ? at(bias, h, r, j) : at(bias, b, h, r, j))];
          if (score == 2) s -= slopes_data[size_t(b * nhead_q + h)] * fabs(double(i + shift - j));
          return score == 3 ? 2 * tanh(s / 2) : s;
        };
        const Result expected = attend(
            keys, Dv, visible, logit, [&](int j, int d) { return key(v_data, v, b, h / (nhead_q / nhead_k), j, d); },
            args.sink != nullptr ? &sink_data[size_t(h)] : nullptr);
        for (int d = 0; d < Dv; ++d) {
          worst = fmax(worst, fabs(out_data.now(size_t(place(out, d))) - expected.out[size_t(d)]));
          written[size_t(place(out, d))] = true;
        }
        const size_t lse_at = size_t(group ? h * lse.stride[0] + r : at(lse, b, h, r));
        if (args.lse != nullptr) {
          const float got = lse_data[lse_at];
          worst = fmax(worst, std::isinf(expected.lse) ? (got == -INFINITY ? 0 : 1) : fabs(got - expected.lse));
          written_lse[lse_at] = true;
        }
      }
    }
  }
  if (!CHECK(worst < (bf16 ? 4e-2 : 2e-5)))
    fprintf(stderr, "case %d: worst %g, splits %d\n", number, worst, args.num_splits);
  bool untouched = true;
  for (size_t i = 0; i < written.size(); ++i) untouched = untouched && (written[i] || out_data.now(i) == 7);
  for (size_t i = 0; i < lse_data.size(); ++i) untouched = untouched && (written_lse[i] || lse_data[i] == 7);
  CHECK(untouched);
}

}  // namespace

int main() {
  for (int i = 0; i < 400; ++i) splitkv_case(i);
  for (int i = 0; i < 200; ++i) prefill_case(i);
  for (int i = 0; i < 200; ++i) append_case(i);
  CHECK(ran > (library ? 200 : 799));
  return check_result();
}
