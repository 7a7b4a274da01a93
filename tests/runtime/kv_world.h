// SPDX-License-Identifier: MIT
// A correct call of every family over a KV cache, that each case of bad input spoils in one way.
#pragma once
#include <limits>
#include <vector>

#include "tensor.h"
#include "tilekiln/tilekiln.h"

namespace {

constexpr int B = 2, Sq = 3, Hq = 4, Hk = 2, D = 16, Room = 64, Pages = 10, Page = 16, Blocks = 4, New = 5, total = 6;
constexpr float nan = std::numeric_limits<float>::quiet_NaN();

// Memory and index arrays larger than any case asks for; everything an output may be is in `written`.
struct World {
  std::vector<float> memory[8], written[5];
  int32_t indices[8][16] = {};
  float softmax_scale = 0.5f;
  tilekiln_tensor q, k, v, out, lse, bias, knew, vnew, cos, sin, scale, block_scale;
  tilekiln_tensor seqlen_q, seqlen_k, cu_q, cu_k, start_k, table, batch_idx, leftpad, indptr, list, last;
  tilekiln_fmha_fwd_splitkv_args split = tilekiln_fmha_fwd_splitkv_defaults();
  tilekiln_fmha_fwd_pagedkv_args paged = tilekiln_fmha_fwd_pagedkv_defaults();
  tilekiln_fmha_fwd_appendkv_args append = tilekiln_fmha_fwd_appendkv_defaults();
  tilekiln_fmha_batch_prefill_args prefill = tilekiln_fmha_batch_prefill_defaults();

  World() {
    for (auto& m : memory) m.assign(32768, 0.25f);
    for (auto& m : written) m.assign(32768, 7);
    q = tensor(written[0].data(), TILEKILN_FP32, {B, Sq, Hq, D});
    out = tensor(written[1].data(), TILEKILN_FP32, {B, Sq, Hq, D});
    lse = tensor(written[2].data(), TILEKILN_FP32, {B, Hq, Sq});
    k = tensor(written[3].data(), TILEKILN_FP32, {B, Room, Hk, D});
    v = tensor(written[4].data(), TILEKILN_FP32, {B, Room, Hk, D});
    bias = tensor(memory[0].data(), TILEKILN_FP32, {B, Hq, Sq, Room});
    knew = tensor(memory[1].data(), TILEKILN_FP32, {B, New, Hk, D});
    vnew = tensor(memory[2].data(), TILEKILN_FP32, {B, New, Hk, D});
    cos = tensor(memory[3].data(), TILEKILN_FP32, {Room, D / 2});
    sin = tensor(memory[4].data(), TILEKILN_FP32, {Room, D / 2});
    scale = tensor(memory[5].data(), TILEKILN_FP32, {1});
    block_scale = tensor(memory[5].data(), TILEKILN_FP32, {Pages, Hk, 2});
    set(0, {3, 2});
    seqlen_q = index(0, B);
    set(1, {20, 50});
    seqlen_k = index(1, B);
    set(2, {0, 3, 6});
    cu_q = index(2, B + 1);
    set(3, {0, 2, 6});  // also the first entries of page lists
    cu_k = indptr = start_k = index(3, B + 1);
    set(4, {9, 1, -1, -1, 2, 3, 4, 0});
    table = tensor(indices[4], TILEKILN_INT32, {B, Blocks});
    set(5, {1, 0});
    batch_idx = index(5, B);
    leftpad = index(5, B);
    set(6, {5, 3, 1, 0, 2, 9});
    list = index(6, 6);
    set(7, {4, 16});
    last = index(7, B);
    split.q = &q, split.k = &k, split.v = &v, split.out = &out, split.seqlen_k = &seqlen_k;
    append.q = &q, append.k = &k, append.v = &v, append.knew = &knew, append.vnew = &vnew, append.seqlen_k = &seqlen_k;
    paged.q = &q, paged.k = &k, paged.v = &v, paged.out = &out, paged.seqlen_k = &seqlen_k;
    prefill.q = &q, prefill.k = &k, prefill.v = &v, prefill.out = &out, prefill.cu_seqlens_q = &cu_q;
  }
  tilekiln_tensor index(int which, int64_t count) { return tensor(indices[which], TILEKILN_INT32, {count}); }
  void set(int which, std::vector<int32_t> values) {
    for (size_t i = 0; i < values.size(); ++i) indices[which][i] = values[i];
  }
  void pool() {
    k = tensor(written[3].data(), TILEKILN_FP32, {Pages, Page, Hk, D});
    v = tensor(written[4].data(), TILEKILN_FP32, {Pages, Page, Hk, D});
    split.block_table = append.block_table = paged.block_table = &table;
  }
  void group() {
    for (auto* t : {&q, &out}) *t = tensor(t->data, TILEKILN_FP32, {total, Hq, D});
    split.cu_seqlens_q = paged.cu_seqlens_q = &cu_q;
  }
  // bf16, as batch prefill takes it, with page lists.
  void listed() {
    pool();
    group();
    for (auto* t : {&q, &out, &k, &v}) t->dtype = TILEKILN_BF16;
    prefill.kv_indptr = &indptr, prefill.kv_page_indices = &list, prefill.kv_last_page_lens = &last;
  }
  void tabled() {
    listed();
    prefill.kv_indptr = prefill.kv_page_indices = prefill.kv_last_page_lens = nullptr;
    prefill.block_table = &table, prefill.seqlen_k = &seqlen_k;
  }
  void vectorized() {
    listed();
    k = tensor(written[3].data(), TILEKILN_BF16, {Pages, Hk, D / 8, Page, 8});
    v = tensor(written[4].data(), TILEKILN_BF16, {Pages, Hk, Page / 8, D, 8});
  }
  void rope() { append.rotary_cos = &cos, append.rotary_sin = &sin; }
};

}  // namespace
