// SPDX-License-Identifier: MIT
// Every kind of bad input to the families over a KV cache: the literal sentence, and no output touched. Runs on flash;
// also through _find and _why, which check alike. What these families check as the forward does is in bad_input_test.cpp.
#include <stdint.h>

#include <vector>

#include "check.h"
#include "kv_world.h"

namespace {

struct Case {
  int line;
  void (*spoil)(World&);
  const char* says;
};
#define CASE(text, ...) {__LINE__, [](World& w) { __VA_ARGS__; }, text}

const Case split_cases[] = {
    CASE("args: size was 1, must be 256, sizeof(tilekiln_fmha_fwd_splitkv_args) of ABI 2: start from "
         "tilekiln_fmha_fwd_splitkv_defaults()",
         w.split.size = 1),
    CASE("q: was null, must be given", w.split.q = nullptr),
    CASE("k: was null, must be given", w.split.k = nullptr),
    CASE("v: was null, must be given", w.split.v = nullptr),
    CASE("out: was null, must be given", w.split.out = nullptr),
    CASE("num_splits: was 129, must be 0 (chosen from the sizes) or from 1 to 128", w.split.num_splits = 129),
    CASE("num_splits: was -1, must be 0 (chosen from the sizes) or from 1 to 128", w.split.num_splits = -1),
    CASE("is_gappy: was 2, must be 0 or 1", w.split.is_gappy = 2),
    CASE("is_gappy: was 1 without group mode, must be 0: gaps are of pages in group mode (q of 3 dimensions)",
         w.split.is_gappy = 1),
    CASE("window_left: was -3, must be -1 (unbounded) or more", w.split.window_left = -3),
    CASE("softcap: was nan, must be 0 (off) or a finite number above", w.split.softcap = nan),
    CASE("k: dtype was fp16, must be fp32, the dtype of q", w.k.dtype = TILEKILN_FP16),
    CASE("out: dtype was bf16, must be fp32, the dtype of q", w.out.dtype = TILEKILN_BF16),
    CASE("q: dtype was bf8, must be fp32, fp16, bf16 or fp8", w.q.dtype = TILEKILN_BF8),
    CASE("q: dtype was fp8fnuz, must be fp32, fp16, bf16 or fp8: FNUZ formats have kernels for gfx942 alone, "
         "convert it",
         w.q.dtype = TILEKILN_FP8FNUZ),
    CASE("k: had 3 dimensions, must have 4: (batch, seqlen, nhead, hdim) as q", w.k.ndim = 3),
    CASE("v: seqlen was 63, must be 64, the seqlen of k", w.v.shape[1] = 63),
    CASE("v: batch was 1, must be 2, the batch of k", w.v.shape[0] = 1),
    CASE("k: batch was 3, must be 2, the batch of q, without cache_batch_idx", w.k.shape[0] = w.v.shape[0] = 3),
    CASE("k: hdim was 8, must be 16, the hdim of q", w.k.shape[3] = 8),
    CASE("k: nhead was 3, must divide 4, the nhead of q", w.k.shape[2] = w.v.shape[2] = 3),
    CASE("v: nhead was 1, must be 2, the nhead of k", w.v.shape[2] = 1),
    CASE("k: the stride of its last dimension was 2, must be 1: pass a copy whose last dimension is contiguous",
         w.k.stride[3] = 2),
    CASE("k: stride 4611686018427387904 over 64 elements of dimension 1 leaves the address space",
         w.k.stride[1] = INT64_C(1) << 62),
    CASE("out: shares memory with k, must have its own", w.out.data = w.k.data),
    CASE("lse: shares memory with block_table, must have its own", w.pool(); w.split.lse = &w.lse;
         w.lse.data = w.table.data; w.lse.shape[2] = 3),
    CASE("q_descale: was given, must be null unless q is fp8", w.split.q_descale = &w.scale),
    CASE("out_scale: was given, must be null unless out is fp8", w.split.out_scale = &w.scale),
    // Lengths.
    CASE("seqlen_k: had 3 entries, must have 2: batch", w.seqlen_k.shape[0] = 3),
    CASE("seqlen_k: dtype was int64, must be int32", w.seqlen_k.dtype = TILEKILN_DTYPE(0, 64)),
    CASE("seqlen_k: entry 1 was -2, must be 0 or more", w.set(1, {20, -2})),
    CASE("seqlen_k: sequence 0 was 65 long, must be at most 64, the seqlen of k", w.set(1, {65, 20})),
    CASE("seqlen_k: was given with cu_seqlens_k, must be alone: both say the logical lengths",
         w.split.cu_seqlens_k = &w.cu_k),
    CASE("seqstart_k: was given in batch mode (q of 4 dimensions), must be null: there a sequence starts at its batch "
         "index",
         w.split.seqstart_k = &w.start_k),
    CASE("cu_seqlens_k: must not decrease, but entry 2 is 1 after 2", w.split.seqlen_k = nullptr;
         w.split.cu_seqlens_k = &w.cu_k; w.set(3, {0, 2, 1})),
    CASE("seqlen_q: sequence 0 was 4 long, must be at most 3, the seqlen of q", w.split.seqlen_q = &w.seqlen_q;
         w.set(0, {4, 0})),
    CASE("cache_batch_idx: entry 1 was 2, must be from 0 to 1: k has that many sequences",
         w.split.cache_batch_idx = &w.batch_idx;
         w.set(5, {0, 2})),
    CASE("cache_batch_idx: entry 0 was -1, must be from 0 to 1: k has that many sequences",
         w.split.cache_batch_idx = &w.batch_idx;
         w.set(5, {-1, 0})),
    CASE("cache_batch_idx: had 1 entries, must have 2: batch", w.split.cache_batch_idx = &w.batch_idx;
         w.batch_idx.shape[0] = 1),
    CASE("cache_leftpad: entry 0 was 21, must be from 0 to 20, the keys of its sequence",
         w.split.cache_leftpad = &w.leftpad;
         w.set(5, {21, 0})),
    CASE("cache_leftpad: entry 1 was -1, must be from 0 to 50, the keys of its sequence",
         w.split.cache_leftpad = &w.leftpad;
         w.set(5, {0, -1})),
    CASE("cache_leftpad: was given in group mode (q of 3 dimensions), must be null", w.pool(); w.group();
         w.split.cache_leftpad = &w.leftpad),
    CASE("cache_batch_idx: was given in group mode (q of 3 dimensions), must be null", w.pool(); w.group();
         w.split.cache_batch_idx = &w.batch_idx),
    CASE("bias: max_seqlen_k was 49, must be at least 50, the longest seqlen_k", w.split.bias = &w.bias;
         w.bias = tensor(w.memory[0].data(), TILEKILN_FP32, {B, Hq, Sq, 49})),
    // Pages.
    CASE("k: had 3 dimensions, must have 4: (pages, page_size, nhead, hdim) with block_table", w.pool(); w.k.ndim = 3),
    CASE("v: had 5 dimensions, must have 4: (pages, nhead, page_size, hdim) with block_table", w.pool(); w.v.ndim = 5;
         w.v.shape[4] = 1; w.split.layout = TILEKILN_BHSD),
    CASE("v: page size was 8, must be 16, the page size of k", w.pool(); w.v.shape[1] = 8),
    CASE("v: page count was 9, must be 10, the page count of k", w.pool(); w.v.shape[0] = 9),
    CASE("k: page size was 0, must be from 1 to 536870912", w.pool(); w.k.shape[1] = w.v.shape[1] = 0),
    CASE("block_table: dtype was int64, must be int32", w.pool(); w.table.dtype = TILEKILN_DTYPE(0, 64)),
    CASE("block_table: had 1 dimensions, must have 2: (batch, max_blocks)", w.pool(); w.table.ndim = 1),
    CASE("block_table: batch was 3, must be 2, the batch of q", w.pool(); w.table.shape[0] = 3),
    CASE("block_table: entry (1, 2) was 10, must be from 0 to 9: k has 10 pages", w.pool(); w.indices[4][6] = Pages),
    CASE("block_table: entry (0, 1) was -1, must be from 0 to 9: k has 10 pages", w.pool(); w.indices[4][1] = -1),
    CASE("block_table: entry (0, 0) was 9, but k has no pages", w.pool(); w.k.shape[0] = w.v.shape[0] = 0),
    CASE("block_table: had 4 blocks of 16 keys a sequence, must have 5: sequence 1 is 65 keys long", w.pool();
         w.set(1, {20, 65})),
    CASE("block_table: had 0 blocks of 16 keys a sequence, must have 2: sequence 0 is 20 keys long", w.pool();
         w.table.shape[1] = 0),
    CASE("seqlen_k: sequence 0 was 2147483647 long, must be at most 536870912", w.pool(); w.set(1, {INT32_MAX, 1})),
    CASE("cache_batch_idx: entry 1 was 7, must be from 0 to 1: block_table has a row for each", w.pool();
         w.split.cache_batch_idx = &w.batch_idx; w.set(5, {0, 7})),
    CASE("seqlen_k: was null, must be given in group mode unless cu_seqlens_k or seqstart_k is", w.pool(); w.group();
         w.split.seqlen_k = nullptr),
    CASE("seqstart_k: was null, must be given with is_gappy", w.pool(); w.group(); w.split.is_gappy = 1),
    CASE("seqstart_k: had 3 entries, must have 2: batch, with is_gappy", w.pool(); w.group(); w.split.is_gappy = 1;
         w.split.seqstart_k = &w.start_k),
    CASE("seqstart_k: entry 0 was -9, must be 0 or more", w.pool(); w.group(); w.split.is_gappy = 1;
         w.split.seqstart_k = &w.start_k; w.start_k.shape[0] = 2; w.set(3, {-9, 0})),
    CASE("block_table: had 4 blocks of 16 keys a sequence, must have 5: sequence 1 is 70 keys long", w.pool();
         w.group(); w.split.is_gappy = 1; w.split.seqstart_k = &w.start_k; w.start_k.shape[0] = 2; w.set(3, {0, 20})),
};

const Case paged_cases[] = {
    CASE("args: size was 1, must be 248, sizeof(tilekiln_fmha_fwd_pagedkv_args) of ABI 2: start from "
         "tilekiln_fmha_fwd_pagedkv_defaults()",
         w.paged.size = 1),
    CASE("block_table: was null, must be given", w.pool(); w.paged.block_table = nullptr),
    CASE("k: page size was 24, must be a multiple of 16", w.pool();
         for (auto* t : {&w.k, &w.v})* t = tensor(t->data, TILEKILN_FP32, {Pages, 24, Hk, D})),
    CASE("block_table: entry (1, 3) was 99, must be from 0 to 9: k has 10 pages", w.pool(); w.indices[4][7] = 99),
    CASE("block_table: had 3 blocks of 16 keys a sequence, must have 4: sequence 1 is 50 keys long", w.pool();
         w.table.shape[1] = 3),
    CASE("out: shares memory with q, must have its own", w.pool(); w.out.data = w.q.data),
};

const Case append_cases[] = {
    CASE("args: size was 1, must be 272, sizeof(tilekiln_fmha_fwd_appendkv_args) of ABI 2: start from "
         "tilekiln_fmha_fwd_appendkv_defaults()",
         w.append.size = 1),
    CASE("knew: was null, must be given", w.append.knew = nullptr),
    CASE("seqlen_k: was null, must be given", w.append.seqlen_k = nullptr),
    CASE("out: was given without q, must be null: attention is of queries", w.append.q = nullptr;
         w.append.out = &w.out),
    CASE("lse: was given without out, must be null: it is of the attention", w.append.lse = &w.lse),
    CASE("rotary_sin: was null, must be given: rotary_cos and rotary_sin go together", w.append.rotary_cos = &w.cos),
    CASE("rotary_interleaved: was 2, must be 0 or 1", w.append.rotary_interleaved = 2),
    CASE("rotary_cos: dtype was fp16, must be fp32, the dtype of k", w.rope(); w.cos.dtype = TILEKILN_FP16),
    CASE("rotary_sin: dtype was bf16, must be fp32, the dtype of rotary_cos", w.rope(); w.sin.dtype = TILEKILN_BF16),
    CASE("rotary_cos: had 3 dimensions, must have 2: (positions, rotary_dim / 2)", w.rope(); w.cos.ndim = 3),
    CASE("rotary_sin: rotary_dim / 2 was 4, must be 8, that of rotary_cos", w.rope(); w.sin.shape[1] = 4),
    CASE("rotary_cos: rotary_dim was 2 x 9, must be from 2 to 16, the hdim of q", w.rope();
         w.cos.shape[1] = w.sin.shape[1] = 9),
    CASE("rotary_cos: had 54 positions, must have 55: sequence 1 grows to that length", w.rope();
         w.cos.shape[0] = w.sin.shape[0] = 54),
    CASE("knew: dtype was fp16, must be fp32, the dtype of k", w.knew.dtype = TILEKILN_FP16),
    CASE("vnew: seqlen was 4, must be 5, the seqlen of knew", w.vnew.shape[1] = 4),
    CASE("knew: nhead was 1, must be 2, the nhead of k", w.knew.shape[2] = 1),
    CASE("vnew: hdim was 8, must be 16, the hdim of v", w.vnew.shape[3] = 8),
    CASE("q: nhead was 3, must be a multiple of 2, the nhead of k", w.q.shape[2] = 3),
    CASE("q: batch was 1, must be 2, the batch of knew", w.q.shape[0] = 1),
    CASE("q: had 3 dimensions, must have 4: (batch, seqlen, nhead, hdim) as k", w.q.ndim = 3),
    CASE("seqlen_k: sequence 1 was 60 long and 5 keys more, must then be at most 64, the seqlen of k",
         w.set(1, {20, 60})),
    CASE("seqlen_k: entry 0 was -1, must be 0 or more", w.set(1, {-1, 0})),
    CASE("cache_batch_idx: entries 0 and 1 were both 1, must be different", w.append.cache_batch_idx = &w.batch_idx;
         w.set(5, {1, 1})),
    CASE("block_table: page 1 would be written for sequences 0 and 1, must be of one only", w.pool();
         w.indices[4][7] = 1),
    CASE("block_table: entry (1, 3) was -3, must be from 0 to 9: k has 10 pages", w.pool(); w.indices[4][7] = -3),
    CASE("block_table: had 4 blocks of 16 keys a sequence, must have 5: sequence 1 is 65 keys long", w.pool();
         w.set(1, {20, 60})),
    CASE("k: shares memory with knew, must have its own", w.knew.data = w.k.data),
    CASE("k: strides put two elements at one address, must give each its own: pass an array that is not expanded",
         w.k.stride[1] = 0),
    CASE("k: shares memory with v, must have its own", w.v.data = w.k.data),
    CASE("q: shares memory with rotary_cos, must have its own", w.rope(); w.cos.data = w.q.data),
    CASE("out: shares memory with vnew, must have its own", w.append.out = &w.out; w.vnew.data = w.out.data),
    CASE("num_splits: was 200, must be 0 (chosen from the sizes) or from 1 to 128", w.append.out = &w.out;
         w.append.num_splits = 200),
    CASE("cache_leftpad: entry 0 was 26, must be from 0 to 25, the keys of its sequence", w.append.out = &w.out;
         w.append.cache_leftpad = &w.leftpad; w.set(5, {26, 0})),
    CASE("block_table: entry (0, 0) was 77, must be from 0 to 9: k has 10 pages", w.pool(); w.append.out = &w.out;
         w.indices[4][0] = 77),
    CASE("window_right: was -5, must be -1 (unbounded) or more", w.append.window_right = -5),
};

const Case prefill_cases[] = {
    CASE("args: size was 1, must be 248, sizeof(tilekiln_fmha_batch_prefill_args) of ABI 2: start from "
         "tilekiln_fmha_batch_prefill_defaults()",
         w.listed();
         w.prefill.size = 1),
    CASE("q: dtype was fp32, must be fp16, bf16 or fp8", w.listed(); w.q.dtype = TILEKILN_FP32),
    CASE("k: dtype was fp16, must be bf16, fp8 or bf8 when q is bf16", w.listed(); w.k.dtype = TILEKILN_FP16),
    CASE("v: dtype was fp8, must be bf16, the dtype of k", w.listed(); w.v.dtype = TILEKILN_FP8),
    CASE("out: dtype was fp8, must be bf16 when q is fp8", w.listed();
         for (auto* t : {&w.q, &w.k, &w.v, &w.out}) t->dtype = TILEKILN_FP8),
    CASE("q: had 4 dimensions, must have 3: (total, nhead, hdim)", w.listed();
         w.q = tensor(w.q.data, TILEKILN_BF16, {1, total, Hq, D})),
    CASE("k: had 2 dimensions, must have 4, (pages, page_size, nhead, hdim), or 3, (pages, nhead, hdim), or 5, (pages, "
         "nhead, hdim_q / vec, page_size, vec)",
         w.listed();
         w.k.ndim = 2),
    CASE("v: had 3 dimensions, must have 4: (pages, page_size, nhead, hdim)", w.listed(); w.v.ndim = 3),
    CASE("k: page size was 24, must be a power of two", w.listed();
         for (auto* t : {&w.k, &w.v})* t = tensor(t->data, TILEKILN_BF16, {Pages, 24, Hk, D})),
    CASE("k: vec was 4, must be 8, the elements in 16 bytes", w.vectorized(); w.k.shape[4] = 4),
    CASE("v: page size / vec was 1, must be 2, the page size of k by the elements in 16 bytes", w.vectorized();
         w.v.shape[2] = 1),
    CASE("k: hdim / vec was 1, must be 2, the hdim of q by the elements in 16 bytes", w.vectorized(); w.k.shape[2] = 1),
    CASE("k: page size was 4, must be a multiple of 8 in a vectorized cache", w.vectorized(); w.k.shape[3] = 4),
    CASE("k: the stride of dimension 3 was 16, must be 8: its vectors lie side by side", w.vectorized();
         w.k.stride[3] = 16),
    CASE("cu_seqlens_q: was null, must be given", w.listed(); w.prefill.cu_seqlens_q = nullptr),
    CASE("kv_indptr: was null, must be given, with kv_page_indices, unless block_table is", w.listed();
         w.prefill.kv_indptr = nullptr),
    CASE("kv_page_indices: was null, must be given with kv_indptr", w.listed(); w.prefill.kv_page_indices = nullptr),
    CASE("kv_last_page_lens: was null, must be given with kv_indptr when pages have 16 keys", w.listed();
         w.prefill.kv_last_page_lens = nullptr),
    CASE("kv_last_page_lens: entry 1 was 17, must be from 1 to 16, the page size of k", w.listed(); w.set(7, {4, 17})),
    CASE("kv_last_page_lens: entry 0 was 0, must be from 1 to 16, the page size of k", w.listed(); w.set(7, {0, 4})),
    CASE("kv_indptr: must not decrease, but entry 2 is 1 after 2", w.listed(); w.set(3, {0, 2, 1})),
    CASE("kv_indptr: ended at 7, must end at 6 or before, the entries of kv_page_indices", w.listed();
         w.set(3, {0, 2, 7})),
    CASE("kv_indptr: had 2 entries, must have 3: batch + 1", w.listed(); w.indptr.shape[0] = 2),
    CASE("kv_page_indices: entry 5 was 10, must be from 0 to 9: k has 10 pages", w.listed(); w.indices[6][5] = 10),
    CASE("kv_page_indices: entry 0 was -1, must be from 0 to 9: k has 10 pages", w.listed(); w.indices[6][0] = -1),
    CASE("seqlen_k: was given with kv_indptr, must be null: kv_last_page_lens says the lengths", w.listed();
         w.prefill.seqlen_k = &w.seqlen_k),
    CASE("kv_indptr: was given with block_table, must be alone: both say where the keys are", w.listed();
         w.prefill.block_table = &w.table; w.prefill.seqlen_k = &w.seqlen_k),
    CASE("seqlen_k: was null, must be given with block_table", w.tabled(); w.prefill.seqlen_k = nullptr),
    CASE("seqlen_k: entry 0 was -1, must be from 0 to 536870912", w.tabled(); w.set(1, {-1, 4})),
    CASE("block_table: had 4 blocks of 16 keys a sequence, must have 5: sequence 0 is 65 keys long", w.tabled();
         w.set(1, {65, 4})),
    CASE("block_table: entry (1, 0) was 11, must be from 0 to 9: k has 10 pages", w.tabled(); w.indices[4][4] = 11),
    CASE("k_descale: was given, must be null unless k is fp8 or bf8", w.listed(); w.prefill.k_descale = &w.scale),
    CASE("v_descale: was nan, must be finite", w.listed(); w.k.dtype = w.v.dtype = TILEKILN_FP8;
         w.prefill.v_descale = &w.scale; w.memory[5][0] = nan),
    CASE("k_descale: dimension 0 was 2 long, must have one element", w.listed(); w.k.dtype = w.v.dtype = TILEKILN_FP8;
         w.prefill.k_descale = &w.scale; w.scale.shape[0] = 2),
    CASE("kv_block_descale: was given, must be null unless k is fp8", w.listed();
         w.prefill.kv_block_descale = &w.block_scale),
    CASE("k_descale: was given with kv_block_descale, must be alone: both scale the cache", w.listed();
         w.k.dtype = w.v.dtype = TILEKILN_FP8; w.prefill.k_descale = &w.scale;
         w.prefill.kv_block_descale = &w.block_scale),
    CASE("kv_block_descale: was given with pages of 16 keys, must be of pages of a multiple of 128", w.listed();
         w.k.dtype = w.v.dtype = TILEKILN_FP8; w.prefill.kv_block_descale = &w.block_scale),
    CASE("kv_block_descale: pages was 9, must be 10, the page count of k", w.listed();
         w.k.dtype = w.v.dtype = TILEKILN_FP8; w.prefill.kv_block_descale = &w.block_scale; w.block_scale.shape[0] = 9),
    CASE("dropout_p: was 1, must be at least 0 and below 1", w.listed(); w.prefill.dropout_p = 1),
};

template <class Args, class Member, size_t count>
void run_cases(const Case (&cases)[count], Member member, tilekiln_status (*call)(const Args*),
               tilekiln_status (*find)(const Args*, int64_t*),
               tilekiln_status (*why)(const Args*, char*, size_t, size_t*)) {
  for (const Case& bad : cases) {
    World world;
    bad.spoil(world);
    std::vector<float> before[5];
    for (int i = 0; i < 5; ++i) before[i] = world.written[i];
    const Args& args = world.*member;
    if (check_that(call(&args) == TILEKILN_INVALID_ARGUMENT, "refused", __FILE__, bad.line))
      check_text(tilekiln_last_error(), bad.says, __FILE__, bad.line);
    int64_t instances[3] = {-7, -7, -7};
    check_that(find(&args, instances) == TILEKILN_INVALID_ARGUMENT && instances[0] == -7, "find refuses", __FILE__,
               bad.line);
    char text[8] = "before";
    size_t length = 99;
    check_that(why(&args, text, sizeof(text), &length) == TILEKILN_INVALID_ARGUMENT && length == 99, "why refuses",
               __FILE__, bad.line);
    CHECK_TEXT(text, "before");
    for (int i = 0; i < 5; ++i)
      check_that(memcmp(world.written[i].data(), before[i].data(), before[i].size() * 4) == 0, "untouched", __FILE__,
                 bad.line);
  }
}

// Calls that look strange and are right.
void run_good() {
  {  // Entries past the end of a sequence are not read; nor is the row that cache_batch_idx leaves out.
    World w;
    w.pool();
    CHECK(tilekiln_fmha_fwd_splitkv(&w.split) == TILEKILN_OK);
    w.split.cache_batch_idx = &w.batch_idx;
    w.set(5, {1, 1});
    w.set(4, {-9, -9, -9, -9});
    CHECK(tilekiln_fmha_fwd_splitkv(&w.split) == TILEKILN_OK);
    w.set(1, {0, 0});  // no key, no page
    w.set(5, {0, 0});
    CHECK(tilekiln_fmha_fwd_splitkv(&w.split) == TILEKILN_OK);
    CHECK(w.written[1][0] == 0);
  }
  {  // Without lengths the cache is full.
    World w;
    w.split.seqlen_k = nullptr;
    CHECK(tilekiln_fmha_fwd_splitkv(&w.split) == TILEKILN_OK);
    int32_t splits = 0;
    CHECK(tilekiln_fmha_fwd_splitkv_num_splits(&w.split, &splits) == TILEKILN_OK && splits == 1);
    w.split.num_splits = 128;
    CHECK(tilekiln_fmha_fwd_splitkv_num_splits(&w.split, &splits) == TILEKILN_OK && splits == 128);
    int64_t stages[2] = {-1, -1};
    CHECK(tilekiln_fmha_fwd_splitkv_find(&w.split, stages) == TILEKILN_OK && stages[0] >= 0 && stages[1] >= 0);
    CHECK_HOLDS(tilekiln_instance_name(stages[0]), "fmha_fwd_splitkv_fp32_");
    CHECK_HOLDS(tilekiln_instance_name(stages[1]), "fmha_fwd_splitkv_combine_fp32_");
    char text[8192];
    CHECK(tilekiln_fmha_fwd_splitkv_why(&w.split, text, sizeof(text), nullptr) == TILEKILN_OK);
    CHECK_HOLDS(text, "chosen: fmha_fwd_splitkv_fp32_");
    CHECK_HOLDS(text, "chosen: fmha_fwd_splitkv_combine_fp32_");
  }
  {  // Few queries take the lanes along the head dim, many those along queries.
    World w;
    int64_t stages[2];
    CHECK(tilekiln_fmha_fwd_splitkv_find(&w.split, stages) == TILEKILN_OK);
    CHECK_HOLDS(tilekiln_instance_name(stages[0]), "_dlanes_b16x64");
    for (auto* t : {&w.q, &w.out}) *t = tensor(t->data, TILEKILN_FP32, {B, 64, Hq, D});
    CHECK(tilekiln_fmha_fwd_splitkv_find(&w.split, stages) == TILEKILN_OK);
    CHECK_HOLDS(tilekiln_instance_name(stages[0]), "_qlanes_b64x64");
  }
  {  // An append without keys or queries; pages that only the attention would read are not looked at.
    World w;
    w.pool();
    w.indices[4][0] = -5;
    w.append.q = nullptr;
    CHECK(tilekiln_fmha_fwd_appendkv(&w.append) == TILEKILN_OK);
    int64_t stages[3];
    CHECK(tilekiln_fmha_fwd_appendkv_find(&w.append, stages) == TILEKILN_OK && stages[0] >= 0 && stages[1] == -1 &&
          stages[2] == -1);
    w.knew.shape[1] = w.vnew.shape[1] = 0;
    CHECK(tilekiln_fmha_fwd_appendkv(&w.append) == TILEKILN_OK);
  }
  {  // In a stream: index arrays may be gone when it runs.
    World w;
    w.pool();
    w.append.out = &w.out;
    tilekiln_stream* stream = nullptr;
    CHECK(tilekiln_stream_create(&stream) == TILEKILN_OK);
    World now;
    now.pool();
    now.append.out = &now.out;
    CHECK(tilekiln_fmha_fwd_appendkv(&now.append) == TILEKILN_OK);
    w.append.stream = stream;
    CHECK(tilekiln_fmha_fwd_appendkv(&w.append) == TILEKILN_OK);
    for (auto& row : w.indices) {
      for (int32_t& entry : row) entry = -1;
    }
    CHECK(tilekiln_stream_synchronize(stream) == TILEKILN_OK);
    for (int i = 0; i < 5; ++i) CHECK(w.written[i] == now.written[i]);
    CHECK(tilekiln_stream_destroy(stream) == TILEKILN_OK);
  }
}

}  // namespace

int main() {
  run_cases(split_cases, &World::split, tilekiln_fmha_fwd_splitkv, tilekiln_fmha_fwd_splitkv_find,
            tilekiln_fmha_fwd_splitkv_why);
  run_cases(paged_cases, &World::paged, tilekiln_fmha_fwd_pagedkv, tilekiln_fmha_fwd_pagedkv_find,
            tilekiln_fmha_fwd_pagedkv_why);
  run_cases(append_cases, &World::append, tilekiln_fmha_fwd_appendkv, tilekiln_fmha_fwd_appendkv_find,
            tilekiln_fmha_fwd_appendkv_why);
  run_cases(prefill_cases, &World::prefill, tilekiln_fmha_batch_prefill, tilekiln_fmha_batch_prefill_find,
            tilekiln_fmha_batch_prefill_why);
  run_good();
  return check_result();
}
