// SPDX-License-Identifier: MIT
// A batch prefill of random shape against a loop that looks up each key by itself.
#pragma once
#include "kv_call.h"

namespace {

// bf16 batch prefill: both layouts, both lookups.
void prefill_case(int number) {
  const bool vectorized = coin(), listed = coin();
  const int batch = pick(1, 4), nhead_k = pick(1, 2), nhead_q = nhead_k * pick(1, 3), D = 16, Dv = 8, pool = 32,
            vec = 8;
  const int page_size = vectorized ? 8 << pick(0, 2) : 1 << pick(0, 4);
  const bool flat = page_size == 1 && coin();  // 3 dimensions
  std::vector<int32_t> start_q = {0}, indptr = {0}, last, seqlen_k, indices;
  const int64_t blocks = 4;
  std::vector<int32_t> table;
  for (int b = 0; b < batch; ++b) {
    start_q.push_back(start_q.back() + pick(0, 9));
    const int pages = pick(0, 4);
    last.push_back(pages == 0 ? 99 : pick(1, page_size));
    seqlen_k.push_back(pages == 0 ? 0 : (pages - 1) * page_size + last.back());
    indptr.push_back(indptr.back() + pages);
    for (int i = 0; i < blocks; ++i) {
      table.push_back(i < pages ? pick(0, pool - 1) : -5);  // what is past the end is not read
      if (i < pages) indices.push_back(table.back());
    }
  }
  indices.push_back(-7);
  const int total = start_q.back();
  const auto bf16 = [](const std::vector<float>& values) {
    std::vector<uint16_t> result(values.size());
    for (size_t i = 0; i < values.size(); ++i) plain::store(result.data(), static_cast<int64_t>(i), true, values[i]);
    return result;
  };
  const auto q_data = bf16(noise(size_t(total * nhead_q * D + 1))),
             k_data = bf16(noise(size_t(pool * page_size * nhead_k * D)));
  const auto v_data = bf16(noise(size_t(pool * page_size * nhead_k * Dv))),
             bias_data = bf16(noise(size_t(total * 128 + 1)));
  std::vector<uint16_t> out_data(size_t(total * nhead_q * Dv + 1), 7);
  const tilekiln_tensor q = tensor(q_data.data(), TILEKILN_BF16, {total, nhead_q, D}),
                        out = tensor(out_data.data(), TILEKILN_BF16, {total, nhead_q, Dv});
  const tilekiln_tensor k = vectorized ? tensor(k_data.data(), TILEKILN_BF16, {pool, nhead_k, D / vec, page_size, vec})
                            : flat     ? tensor(k_data.data(), TILEKILN_BF16, {pool, nhead_k, D})
                                       : tensor(k_data.data(), TILEKILN_BF16, {pool, page_size, nhead_k, D});
  const tilekiln_tensor v = vectorized ? tensor(v_data.data(), TILEKILN_BF16, {pool, nhead_k, page_size / vec, Dv, vec})
                            : flat     ? tensor(v_data.data(), TILEKILN_BF16, {pool, nhead_k, Dv})
                                       : tensor(v_data.data(), TILEKILN_BF16, {pool, page_size, nhead_k, Dv});
  const tilekiln_tensor bias = tensor(bias_data.data(), TILEKILN_BF16, {total, 128}),
                        starts = tensor(start_q.data(), TILEKILN_INT32, {batch + 1});
  const tilekiln_tensor ptr = tensor(indptr.data(), TILEKILN_INT32, {batch + 1}),
                        list = tensor(indices.data(), TILEKILN_INT32, {int64_t(indices.size())});
  const tilekiln_tensor lasts = tensor(last.data(), TILEKILN_INT32, {batch}),
                        lengths = tensor(seqlen_k.data(), TILEKILN_INT32, {batch});
  const tilekiln_tensor block_table = tensor(table.data(), TILEKILN_INT32, {batch, blocks});
  tilekiln_fmha_batch_prefill_args args = tilekiln_fmha_batch_prefill_defaults();
  args.q = &q, args.k = &k, args.v = &v, args.out = &out, args.cu_seqlens_q = &starts;
  if (listed) {
    args.kv_indptr = &ptr, args.kv_page_indices = &list;
    if (page_size > 1 || coin()) args.kv_last_page_lens = &lasts;
  } else {
    args.block_table = &block_table, args.seqlen_k = &lengths;
  }
  args.causal = pick(0, 1);
  if (coin()) args.bias = &bias;
  args.num_threads = pick(1, 2);

  if (!runs(args, "prefill", number)) return;

  double worst = 0;
  for (int b = 0; b < batch; ++b) {
    const int sq = start_q[size_t(b + 1)] - start_q[size_t(b)], keys = seqlen_k[size_t(b)];
    const auto key = [&](bool is_k, int head, int j, int d) -> double {
      const int64_t page = table[size_t(b * blocks + j / page_size)], in = j % page_size;
      const int dims = is_k ? D : Dv;
      const int64_t index = !vectorized ? ((page * page_size + in) * nhead_k + head) * dims + d
                            : is_k
                                ? (((page * nhead_k + head) * (D / vec) + d / vec) * page_size + in) * vec + d % vec
                                : (((page * nhead_k + head) * (page_size / vec) + in / vec) * Dv + d) * vec + in % vec;
      return plain::load(is_k ? k_data.data() : v_data.data(), index, true);
    };
    for (int h = 0; h < nhead_q; ++h) {
      for (int i = 0; i < sq; ++i) {
        const int64_t r = start_q[size_t(b)] + i;
        const Result expected = attend(
            keys, Dv, [&](int j) { return args.causal == 0 || j <= i + keys - sq; },
            [&](int j) {
              double s = 0;
              for (int d = 0; d < D; ++d)
                s +=
                    double(plain::load(q_data.data(), at(q, r, h, d), true)) * key(true, h / (nhead_q / nhead_k), j, d);
              return s / sqrt(double(D)) +
                     (args.bias != nullptr ? plain::load(bias_data.data(), r * 128 + j, true) : 0);
            },
            [&](int j, int d) { return key(false, h / (nhead_q / nhead_k), j, d); }, nullptr);
        for (int d = 0; d < Dv; ++d)
          worst = fmax(worst, fabs(plain::load(out_data.data(), at(out, r, h, d), true) - expected.out[size_t(d)]));
      }
    }
  }
  if (!CHECK(worst < 2e-2)) fprintf(stderr, "prefill %d: worst %g\n", number, worst);
}

}  // namespace
