// SPDX-License-Identifier: MIT
// An append of random shape, and the attention after it, against a loop.
#pragma once
#include "kv_call.h"

namespace {

// Appends in fp32: the cache byte by byte, q, and the attention that follows.
void append_case(int number) {
  const bool paged = coin(), indexed = coin(), rope = coin(), attends = coin();
  const int batch = pick(1, 4), nhead_k = pick(1, 2), nhead_q = nhead_k * pick(1, 3), D = 16, sq = pick(0, 4),
            sn = pick(0, 20);
  const int page_size = pick(1, 8), room = 40, rows_of_cache = batch + 2;
  const int64_t blocks = (room + page_size - 1) / page_size;
  std::vector<int32_t> length, row;
  std::vector<int32_t> order(static_cast<size_t>(rows_of_cache)), table(size_t(rows_of_cache * blocks), -3);
  for (int i = 0; i < rows_of_cache; ++i) order[size_t(i)] = i;
  std::shuffle(order.begin(), order.end(), random_bits);
  constexpr int pool = 500;
  std::vector<int32_t> pages(pool);
  for (int i = 0; i < pool; ++i) pages[size_t(i)] = i;
  std::shuffle(pages.begin(), pages.end(), random_bits);
  int next = 0;
  for (int b = 0; b < batch; ++b) {
    length.push_back(pick(0, room - sn));
    row.push_back(indexed ? order[size_t(b)] : b);
    for (int i = 0; i * page_size < length.back() + sn; ++i)
      table[size_t(row.back() * blocks + i)] = pages[size_t(next++)];
  }
  const int cache_rows = indexed ? rows_of_cache : batch, outer = paged ? pool : cache_rows,
            tokens = paged ? page_size : room;
  const auto q_before = noise(size_t(batch * sq * nhead_q * D + 1)), knew = noise(size_t(batch * sn * nhead_k * D + 1)),
             vnew = noise(knew.size());
  const auto k_before = noise(size_t(outer * tokens * nhead_k * D)), v_before = noise(k_before.size());
  auto q_data = q_before, k_data = k_before, v_data = v_before;
  const int half = pick(1, D / 2), positions = 64;
  const auto cos = noise(size_t(positions * half)), sin = noise(cos.size());
  std::vector<float> out_data(q_data.size(), 7);
  const tilekiln_tensor q = tensor(q_data.data(), TILEKILN_FP32, {batch, sq, nhead_q, D}),
                        out = tensor(out_data.data(), TILEKILN_FP32, {batch, sq, nhead_q, D});
  const tilekiln_tensor k = tensor(k_data.data(), TILEKILN_FP32, {outer, tokens, nhead_k, D}),
                        v = tensor(v_data.data(), TILEKILN_FP32, {outer, tokens, nhead_k, D});
  const tilekiln_tensor kn = tensor(knew.data(), TILEKILN_FP32, {batch, sn, nhead_k, D}),
                        vn = tensor(vnew.data(), TILEKILN_FP32, {batch, sn, nhead_k, D});
  const tilekiln_tensor c = tensor(cos.data(), TILEKILN_FP32, {positions, half}),
                        s = tensor(sin.data(), TILEKILN_FP32, {positions, half});
  const tilekiln_tensor lengths = tensor(length.data(), TILEKILN_INT32, {batch}),
                        rows = tensor(row.data(), TILEKILN_INT32, {batch});
  const tilekiln_tensor block_table = tensor(table.data(), TILEKILN_INT32, {cache_rows, blocks});
  tilekiln_fmha_fwd_appendkv_args args = tilekiln_fmha_fwd_appendkv_defaults();
  args.q = &q, args.k = &k, args.v = &v, args.knew = &kn, args.vnew = &vn, args.seqlen_k = &lengths;
  if (attends) args.out = &out;
  if (rope) args.rotary_cos = &c, args.rotary_sin = &s;
  args.rotary_interleaved = pick(0, 1);
  if (paged) args.block_table = &block_table;
  if (indexed) args.cache_batch_idx = &rows;
  args.causal = pick(0, 1);
  args.num_splits = pick(0, 3);
  args.num_threads = pick(1, 2);

  if (!runs(args, "append", number)) return;

  auto k_expected = k_before, v_expected = v_before, q_expected = q_before;
  const auto rotated = [&](const float* x, int d, int position) {
    const float* const co = &cos[size_t(position * half)];
    const float* const si = &sin[size_t(position * half)];
    if (!rope || d >= 2 * half) return x[d];
    const bool inter = args.rotary_interleaved != 0;
    const int i = inter ? d / 2 : d % half;
    const bool first = inter ? d % 2 == 0 : d < half;
    const float x0 = x[inter ? 2 * i : i], x1 = x[inter ? 2 * i + 1 : i + half];
    return first ? x0 * co[i] - x1 * si[i] : x1 * co[i] + x0 * si[i];
  };
  const auto cell = [&](int b, int j, int h) {
    if (!paged) return ((int64_t(row[size_t(b)]) * tokens + j) * nhead_k + h) * D;
    return ((int64_t(table[size_t(row[size_t(b)] * blocks + j / page_size)]) * page_size + j % page_size) * nhead_k +
            h) *
           D;
  };
  for (int b = 0; b < batch; ++b) {
    for (int j = 0; j < sn; ++j) {
      for (int h = 0; h < nhead_k; ++h) {
        const size_t from = size_t(((b * sn + j) * nhead_k + h) * D);
        for (int d = 0; d < D; ++d) {
          k_expected[size_t(cell(b, length[size_t(b)] + j, h) + d)] = rotated(&knew[from], d, length[size_t(b)] + j);
          v_expected[size_t(cell(b, length[size_t(b)] + j, h) + d)] = vnew[from + size_t(d)];
        }
      }
    }
    for (int i = 0; i < sq; ++i) {
      for (int h = 0; h < nhead_q; ++h) {
        const size_t from = size_t(((b * sq + i) * nhead_q + h) * D);
        for (int d = 0; d < D; ++d)
          q_expected[from + size_t(d)] = rotated(&q_before[from], d, length[size_t(b)] + (args.causal != 0 ? i : 0));
      }
    }
  }
  const auto same = [](const std::vector<float>& a, const std::vector<float>& b) {
    double worst = 0;
    for (size_t i = 0; i < a.size(); ++i) worst = fmax(worst, fabs(a[i] - b[i]));
    return worst < 1e-5;
  };
  CHECK(same(k_data, k_expected) && same(v_data, v_expected) && same(q_data, q_expected));
  double worst = 0;
  for (int b = 0; b < batch && attends; ++b) {
    const int keys = length[size_t(b)] + sn;
    for (int i = 0; i < sq; ++i) {
      for (int h = 0; h < nhead_q; ++h) {
        const size_t from = size_t(((b * sq + i) * nhead_q + h) * D);
        const int hk = h / (nhead_q / nhead_k);
        const Result expected = attend(
            keys, D, [&](int j) { return args.causal == 0 || j <= i + keys - sq; },
            [&](int j) {
              double score = 0;
              for (int d = 0; d < D; ++d)
                score += double(q_expected[from + size_t(d)]) * k_expected[size_t(cell(b, j, hk) + d)];
              return score / 4;
            },
            [&](int j, int d) { return v_expected[size_t(cell(b, j, hk) + d)]; }, nullptr);
        for (int d = 0; d < D; ++d) worst = fmax(worst, fabs(out_data[from + size_t(d)] - expected.out[size_t(d)]));
      }
    }
  }
  if (!CHECK(worst < 1e-4)) fprintf(stderr, "append %d: worst %g\n", number, worst);
}

}  // namespace
