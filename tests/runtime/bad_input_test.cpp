// SPDX-License-Identifier: MIT
// Every kind of bad input to tilekiln_fmha_fwd: the literal sentence, and no output touched. Runs on a library with fp32 and every
// feature (flash); also through _find and _why, which check alike.
#include <math.h>
#include <stdint.h>
#include <stdlib.h>

#include <limits>
#include <vector>

#include "check.h"
#include "tensor.h"
#include "tilekiln/tilekiln.h"

namespace {

constexpr int B = 2, Sq = 6, Sk = 10, Hq = 4, Hk = 2, D = 16, Dv = 8, total = 9;
constexpr float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();

// A correct call, that each case spoils in one way.
struct World {
  // Room for anything a case asks for: all arrays are far larger than their shapes.
  std::vector<float> memory[8];
  std::vector<float> out_memory, lse_memory;
  std::vector<unsigned char> randval_memory;
  int32_t indices[6][8] = {};
  tilekiln_tensor q, k, v, out, lse, bias, slopes, sink, descale[3], start[2], length[2], cu[2], scale_start[2],
      randval;
  float softmax_scale = 0.5f;
  tilekiln_executor executor = {sizeof(tilekiln_executor),
                                [](void*, int64_t, int32_t, tilekiln_task, void*) { abort(); }, nullptr, 2};
  tilekiln_fmha_fwd_args args = tilekiln_fmha_fwd_defaults();

  World() {
    for (auto& m : memory) m.assign(4096, 0.25f);
    out_memory.assign(4096, 7);
    lse_memory.assign(4096, 7);
    randval_memory.assign(4096, 7);
    args.q = &q;
    args.k = &k;
    args.v = &v;
    args.out = &out;
    batch();
    lse = tensor(lse_memory.data(), TILEKILN_FP32, {B, Hq, Sq});
    bias = tensor(memory[3].data(), TILEKILN_FP32, {B, Hq, Sq, Sk});
    slopes = tensor(memory[4].data(), TILEKILN_FP32, {Hq});
    sink = tensor(memory[5].data(), TILEKILN_FP32, {Hq});
    for (auto& t : descale) t = tensor(memory[6].data(), TILEKILN_FP32, {1});
    randval = tensor(randval_memory.data(), TILEKILN_UINT8, {B, Hq, Sq, Sk});
    for (int i = 0; i < 2; ++i) {
      length[i] = tensor(indices[i], TILEKILN_INT32, {B});
      cu[i] = tensor(indices[2 + i], TILEKILN_INT32, {B + 1});
      start[i] = tensor(indices[4 + i], TILEKILN_INT32, {B + 1});
      scale_start[i] = tensor(indices[4 + i], TILEKILN_INT32, {B + 1});
    }
  }
  void batch() {
    q = tensor(memory[0].data(), TILEKILN_FP32, {B, Sq, Hq, D});
    k = tensor(memory[1].data(), TILEKILN_FP32, {B, Sk, Hk, D});
    v = tensor(memory[2].data(), TILEKILN_FP32, {B, Sk, Hk, Dv});
    out = tensor(out_memory.data(), TILEKILN_FP32, {B, Sq, Hq, Dv});
  }
  // Sequences of 3 and 6 queries, 4 and 5 keys.
  void group() {
    q = tensor(memory[0].data(), TILEKILN_FP32, {total, Hq, D});
    k = tensor(memory[1].data(), TILEKILN_FP32, {total, Hk, D});
    v = tensor(memory[2].data(), TILEKILN_FP32, {total, Hk, Dv});
    out = tensor(out_memory.data(), TILEKILN_FP32, {total, Hq, Dv});
    lse = tensor(lse_memory.data(), TILEKILN_FP32, {Hq, total});
    for (int i : {2, 4}) set(i, {0, 3, 9});
    for (int i : {3, 5}) set(i, {0, 4, 9});
    set(0, {3, 6});
    set(1, {4, 5});
    args.cu_seqlens_q = &cu[0];
    args.cu_seqlens_k = &cu[1];
  }
  void set(int array, std::vector<int32_t> values) {
    for (size_t i = 0; i < values.size(); ++i) indices[array][i] = values[i];
  }
  bool untouched() const {
    for (float x : out_memory) {
      if (x != 7) return false;
    }
    for (float x : lse_memory) {
      if (x != 7) return false;
    }
    for (unsigned char x : randval_memory) {
      if (x != 7) return false;
    }
    return true;
  }
};

struct Case {
  int line;
  void (*spoil)(World&);
  const char* says;
};
#define CASE(text, ...) {__LINE__, [](World& w) { __VA_ARGS__; }, text}

const Case cases[] = {
    // Arguments that must be given, and their form.
    CASE("args: size was 0, must be 264, sizeof(tilekiln_fmha_fwd_args) of ABI 2: start from tilekiln_fmha_fwd_defaults()", w.args.size = 0),
    CASE("args: size was 265, must be 264, sizeof(tilekiln_fmha_fwd_args) of ABI 2: start from tilekiln_fmha_fwd_defaults()", ++w.args.size),
    CASE("q: was null, must be given", w.args.q = nullptr),
    CASE("k: was null, must be given", w.args.k = nullptr),
    CASE("v: was null, must be given", w.args.v = nullptr),
    CASE("out: was null, must be given", w.args.out = nullptr),
    CASE("q: data was null, must point to the elements", w.q.data = nullptr),
    CASE("out: data was null, must point to the elements", w.out.data = nullptr),
    CASE("q: ndim was 9, must be from 0 to 8", w.q.ndim = 9),
    CASE("k: ndim was -1, must be from 0 to 8", w.k.ndim = -1),
    CASE("q: had 2 dimensions, must have 4, (batch, seqlen, nhead, hdim), or 3, (total, nhead, hdim)", w.q.ndim = 2),
    CASE("q: had 5 dimensions, must have 4, (batch, seqlen, nhead, hdim), or 3, (total, nhead, hdim)", w.q.ndim = 5; w.q.shape[4] = 1),
    CASE("k: had 3 dimensions, must have 4: (batch, seqlen, nhead, hdim) as q", w.k.ndim = 3),
    CASE("v: had 3 dimensions, must have 4: (batch, nhead, seqlen, hdim) as q", w.v.ndim = 3; w.args.layout = TILEKILN_BHSD),
    CASE("out: had 4 dimensions, must have 3: (total, nhead, hdim) as q", w.group(); w.out = tensor(w.out_memory.data(), TILEKILN_FP32, {1, total, Hq, Dv})),
    CASE("v: dimension 1 was -10 long, must be 0 or more", w.v.shape[1] = -10),
    CASE("q: device was cuda:1, must be cpu: this library holds no target of such devices (scons -h lists targets)", w.q.device_type = 2; w.q.device_id = 1),
    CASE("out: device was rocm:0, must be cpu", w.out.device_type = 10),
    CASE("k: device was of DLPack type 99, must be cpu (1)", w.k.device_type = 99),

    // dtypes, by the names people know.
    CASE("q: dtype was fp64, must be fp32, fp16, bf16, fp8, fp8fnuz or bf8fnuz", w.q.dtype = TILEKILN_DTYPE(2, 64)),
    CASE("q: dtype was int64, must be fp32, fp16, bf16, fp8, fp8fnuz or bf8fnuz", w.q.dtype = TILEKILN_DTYPE(0, 64)),
    CASE("q: dtype was bf8, must be fp32, fp16, bf16, fp8, fp8fnuz or bf8fnuz", w.q.dtype = TILEKILN_BF8),
    CASE("q: dtype was float8_e4m3b11fnuz, must be fp32, fp16, bf16, fp8, fp8fnuz or bf8fnuz", w.q.dtype = TILEKILN_DTYPE(9, 8)),
    CASE("q: dtype was complex64, must be fp32, fp16, bf16, fp8, fp8fnuz or bf8fnuz", w.q.dtype = TILEKILN_DTYPE(5, 64)),
    CASE("q: dtype was bool, must be fp32, fp16, bf16, fp8, fp8fnuz or bf8fnuz", w.q.dtype = TILEKILN_DTYPE(6, 8)),
    CASE("q: dtype was code 99 of 8 bits, must be fp32, fp16, bf16, fp8, fp8fnuz or bf8fnuz", w.q.dtype = TILEKILN_DTYPE(99, 8)),
    CASE("q: dtype was float0, must have a size", w.q.dtype = TILEKILN_DTYPE(2, 0)),
    CASE("k: dtype was fp16, must be fp32, the dtype of q", w.k.dtype = TILEKILN_FP16),
    CASE("v: dtype was bf16, must be fp32, the dtype of q", w.v.dtype = TILEKILN_BF16),
    CASE("out: dtype was fp16, must be fp32, the dtype of q", w.out.dtype = TILEKILN_FP16),
    CASE("out: dtype was fp16, must be bf16 or fp32 when q is fp8", w.q.dtype = w.k.dtype = w.v.dtype = TILEKILN_FP8; w.out.dtype = TILEKILN_FP16),
    CASE("lse: dtype was fp64, must be fp32", w.args.lse = &w.lse; w.lse.dtype = TILEKILN_DTYPE(2, 64)),
    CASE("bias: dtype was fp16, must be fp32, the dtype of out", w.args.bias = &w.bias; w.bias.dtype = TILEKILN_FP16),
    CASE("alibi_slopes: dtype was fp64, must be fp32", w.args.alibi_slopes = &w.slopes; w.slopes.dtype = TILEKILN_DTYPE(2, 64)),
    CASE("sink: dtype was bf16, must be fp32", w.args.sink = &w.sink; w.sink.dtype = TILEKILN_BF16),
    CASE("q_descale: dtype was fp16, must be fp32", for (int i = 0; i < 3; ++i) w.descale[i].dtype = TILEKILN_FP16; w.args.q_descale = &w.descale[0];
         w.args.k_descale = &w.descale[1]; w.args.v_descale = &w.descale[2]),
    CASE("randval: dtype was int8, must be uint8", w.args.dropout_p = 0.5f; w.args.randval = &w.randval; w.randval.dtype = TILEKILN_DTYPE(0, 8)),

    // Shapes.
    CASE("q: hdim was 0, must be from 1 to 512", w.q.shape[3] = 0),
    CASE("q: hdim was 513, must be from 1 to 512", w.q.shape[3] = w.k.shape[3] = 513),
    CASE("v: hdim was 600, must be from 1 to 512", w.v.shape[3] = w.out.shape[3] = 600),
    CASE("k: hdim was 8, must be 16, the hdim of q", w.k.shape[3] = 8),
    CASE("out: hdim was 4, must be 8, the hdim of v", w.out.shape[3] = 4),
    CASE("k: nhead was 3, must divide 4, the nhead of q", w.k.shape[2] = w.v.shape[2] = 3),
    CASE("k: nhead was 0, must divide 4, the nhead of q", w.k.shape[2] = w.v.shape[2] = 0),
    CASE("q: nhead was 0, must be from 1 to 2147483647", w.q.shape[2] = 0),
    CASE("v: nhead was 1, must be 2, the nhead of k", w.v.shape[2] = 1),
    CASE("out: nhead was 2, must be 4, the nhead of q", w.out.shape[2] = 2),
    CASE("v: seqlen was 9, must be 10, the seqlen of k", w.v.shape[1] = 9),
    CASE("out: seqlen was 5, must be 6, the seqlen of q", w.out.shape[1] = 5),
    CASE("k: batch was 1, must be 2, the batch of q", w.k.shape[0] = 1),
    CASE("out: batch was 1, must be 2, the batch of q", w.out.shape[0] = 1),
    CASE("q: batch was 3000000000, must be at most 2147483647", w.q.shape[0] = 3000000000; w.q.stride[0] = 0),
    CASE("k: seqlen was 600000000, must be at most 536870912",
         for (auto* t : {&w.k, &w.v}) { t->shape[1] = 600000000; t->stride[1] = 0; }),
    CASE("v: total length was 8, must be 9, the total length of k", w.group(); w.v.shape[0] = 8),
    CASE("lse: had 2 dimensions, must have 3: (batch, nhead_q, seqlen_q)", w.args.lse = &w.lse; w.lse.ndim = 2),
    CASE("lse: nhead_q was 6, must be 4, the nhead of q", w.args.lse = &w.lse; w.lse = tensor(w.lse_memory.data(), TILEKILN_FP32, {B, Sq, Hq})),
    CASE("lse: seqlen_q was 7, must be 6, the seqlen of q", w.args.lse = &w.lse; w.lse.shape[2] = 7),
    CASE("lse: had 3 dimensions, must have 2: (nhead_q, total_q)", w.group(); w.args.lse = &w.lse; w.lse.ndim = 3),
    CASE("bias: had 2 dimensions, must have 4: (batch, nhead_q, seqlen_q, seqlen_k)", w.args.bias = &w.bias; w.bias.ndim = 2),
    CASE("bias: batch was 3, must be 2, the batch of q, or 1", w.args.bias = &w.bias; w.bias.shape[0] = 3),
    CASE("bias: nhead_q was 2, must be 4, the nhead of q, or 1", w.args.bias = &w.bias; w.bias.shape[1] = 2),
    CASE("bias: seqlen_q was 1, must be 6, the seqlen of q", w.args.bias = &w.bias; w.bias.shape[2] = 1),
    CASE("bias: seqlen_k was 11, must be 10, the seqlen of k", w.args.bias = &w.bias; w.bias.shape[3] = 11),
    CASE("bias: max_seqlen_k was 4, must be at least 5, the longest seqlen_k", w.group(); w.args.bias = &w.bias;
         w.bias = tensor(w.memory[3].data(), TILEKILN_FP32, {1, total, 4})),
    CASE("bias: was given with alibi_slopes, must be alone: add the alibi term to the bias", w.args.bias = &w.bias; w.args.alibi_slopes = &w.slopes),
    CASE("alibi_slopes: had 3 dimensions, must have 1, (nhead_q), or 2, (batch, nhead_q)", w.args.alibi_slopes = &w.slopes; w.slopes.ndim = 3),
    CASE("alibi_slopes: nhead_q was 3, must be 4, the nhead of q", w.args.alibi_slopes = &w.slopes; w.slopes.shape[0] = 3),
    CASE("alibi_slopes: batch was 3, must be 2, the batch of q", w.args.alibi_slopes = &w.slopes; w.slopes = tensor(w.memory[4].data(), TILEKILN_FP32, {3, Hq})),
    CASE("sink: had 2 dimensions, must have 1: (nhead_q)", w.args.sink = &w.sink; w.sink = tensor(w.memory[5].data(), TILEKILN_FP32, {1, Hq})),
    CASE("sink: nhead_q was 2, must be 4, the nhead of q", w.args.sink = &w.sink; w.sink.shape[0] = 2),
    CASE("randval: batch was 1, must be 2, the batch of q", w.args.dropout_p = 0.5f; w.args.randval = &w.randval; w.randval.shape[0] = 1),
    CASE("randval: seqlen_k was 8, must be 10, the seqlen of k", w.args.dropout_p = 0.5f; w.args.randval = &w.randval; w.randval.shape[3] = 8),
    CASE("randval: was given without dropout_p, must be null: there are no random bytes without dropout", w.args.randval = &w.randval),

    // Strides and addresses.
    CASE("q: the stride of its last dimension was 2, must be 1: pass a copy whose last dimension is contiguous", w.q.stride[3] = 2),
    CASE("out: the stride of its last dimension was 0, must be 1: pass a copy whose last dimension is contiguous", w.out.stride[3] = 0),
    CASE("v: the stride of its last dimension was -1, must be 1: pass a copy whose last dimension is contiguous", w.v.stride[3] = -1),
    CASE("bias: the stride of its last dimension was 6, must be 1: pass a copy whose last dimension is contiguous", w.args.bias = &w.bias; w.bias.stride[3] = 6),
    CASE("sink: the stride of its last dimension was 3, must be 1: pass a copy whose last dimension is contiguous", w.args.sink = &w.sink; w.sink.stride[0] = 3),
    CASE("k: stride 4611686018427387904 over 10 elements of dimension 1 leaves the address space", w.k.stride[1] = INT64_C(1) << 62),
    CASE("k: stride -9223372036854775808 over 10 elements of dimension 1 leaves the address space", w.k.stride[1] = INT64_MIN),
    CASE("v: stride 1152921504606846976 over 2 elements of dimension 2 leaves the address space", w.v.stride[2] = INT64_C(1) << 60;
         w.v.stride[0] = INT64_C(1) << 60),
    CASE("q: stride -1000000000000000 over 2 elements of dimension 0 leaves the address space", w.q.stride[0] = -1000000000000000),
    CASE("out: strides put two elements at one address, must give each its own: pass an array that is not expanded", w.out.stride[0] = 0),
    CASE("out: strides put two elements at one address, must give each its own: pass an array that is not expanded", w.out.stride[1] = 8),
    CASE("lse: strides put two elements at one address, must give each its own: pass an array that is not expanded", w.args.lse = &w.lse; w.lse.stride[1] = 0),
    CASE("out: shares memory with q, must have its own", w.out.data = w.q.data),
    CASE("out: shares memory with k, must have its own", w.out.data = w.memory[1].data() + 100),
    CASE("out: shares memory with v, must have its own", w.out.data = w.memory[2].data() + 319),
    CASE("out: shares memory with bias, must have its own", w.args.bias = &w.bias; w.bias.data = w.out.data),
    CASE("out: shares memory with lse, must have its own", w.args.lse = &w.lse; w.lse.data = w.out.data),
    CASE("lse: shares memory with sink, must have its own", w.args.lse = &w.lse; w.args.sink = &w.sink; w.sink.data = w.lse.data),
    CASE("lse: shares memory with q, must have its own", w.args.lse = &w.lse; w.lse.data = w.q.data),
    CASE("randval: shares memory with k, must have its own", w.args.dropout_p = 0.5f; w.args.randval = &w.randval; w.randval.data = w.k.data),
    CASE("out: shares memory with cu_seqlens_q, must have its own", w.group();
         w.cu[0].data = memset(w.out_memory.data(), 0, 12)),

    // Numbers.
    CASE("softmax_scale: was nan, must be finite", w.softmax_scale = nan; w.args.softmax_scale = &w.softmax_scale),
    CASE("softmax_scale: was inf, must be finite", w.softmax_scale = inf; w.args.softmax_scale = &w.softmax_scale),
    CASE("softcap: was -1, must be 0 (off) or a finite number above", w.args.softcap = -1),
    CASE("softcap: was nan, must be 0 (off) or a finite number above", w.args.softcap = nan),
    CASE("softcap: was inf, must be 0 (off) or a finite number above", w.args.softcap = inf),
    CASE("dropout_p: was 1, must be at least 0 and below 1", w.args.dropout_p = 1),
    CASE("dropout_p: was -0.1, must be at least 0 and below 1", w.args.dropout_p = -0.1f),
    CASE("dropout_p: was nan, must be at least 0 and below 1", w.args.dropout_p = nan),
    CASE("causal: was 2, must be 0 or 1", w.args.causal = 2),
    CASE("window_left: was -2, must be -1 (unbounded) or more", w.args.window_left = -2),
    CASE("window_right: was -7, must be -1 (unbounded) or more", w.args.window_right = -7),
    CASE("mask_origin: was 2, must be 0 (bottom_right) or 1 (top_left)", w.args.mask_origin = 2),
    CASE("layout: was -1, must be 0 (bshd) or 1 (bhsd)", w.args.layout = -1),
    CASE("sink_size: was -1, must be 0 or more", w.args.sink_size = -1),
    CASE("min_seqlen_q: was -1, must be 0 (off) or more", w.args.min_seqlen_q = -1),
    CASE("num_threads: was -1, must be 0 (the environment decides) or from 1 to 1024", w.args.num_threads = -1),
    CASE("num_threads: was 100000, must be 0 (the environment decides) or from 1 to 1024", w.args.num_threads = 100000),
    CASE("instance: was -5, must be -1 (the dispatcher chooses) or an instance", w.args.instance = -5),

    // Scales.
    CASE("k_descale: was null, must be given: q_descale, k_descale and v_descale go together", w.args.q_descale = &w.descale[0]),
    CASE("q_descale: was null, must be given: q_descale, k_descale and v_descale go together", w.args.v_descale = &w.descale[0]),
    CASE("k_descale: had 1 dimensions, must have one element (pertensor, all three) or be (batch, nhead, blocks of 128)",
         w.args.q_descale = &w.descale[0]; w.args.k_descale = &w.descale[1]; w.args.v_descale = &w.descale[2];
         w.descale[0] = tensor(w.memory[6].data(), TILEKILN_FP32, {B, Hq, 1}); w.descale[1].shape[0] = 2),
    CASE("k_descale: nhead was 4, must be 2, the nhead of k", w.args.q_descale = &w.descale[0]; w.args.k_descale = &w.descale[1];
         w.args.v_descale = &w.descale[2]; for (auto& t : w.descale) t = tensor(w.memory[6].data(), TILEKILN_FP32, {B, Hq, 1})),
    CASE("v_descale: block count was 2, must be 1, one per 128 keys", w.args.q_descale = &w.descale[0]; w.args.k_descale = &w.descale[1];
         w.args.v_descale = &w.descale[2]; for (auto& t : w.descale) t = tensor(w.memory[6].data(), TILEKILN_FP32, {B, Hk, 1});
         w.descale[0].shape[1] = Hq; w.descale[2].shape[2] = 2),
    CASE("v_descale: was nan, must be finite", w.args.q_descale = &w.descale[0]; w.args.k_descale = &w.descale[1]; w.args.v_descale = &w.descale[2];
         w.memory[7][0] = nan; w.descale[2].data = w.memory[7].data()),
    CASE("block_scale_seqstart_q: was given, must be null without block scales in group mode", w.args.block_scale_seqstart_q = &w.scale_start[0]),

    // Index arrays.
    CASE("seqstart_q: was given in batch mode (q of 4 dimensions), must be null: there a sequence starts at its batch index", w.args.seqstart_q = &w.start[0]),
    CASE("cu_seqlens_k: was null, must be given in group mode (q of 3 dimensions) unless seqstart_k is", w.group(); w.args.cu_seqlens_k = nullptr),
    CASE("cu_seqlens_q: was null, must be given in group mode (q of 3 dimensions) unless seqstart_q is", w.group(); w.args.cu_seqlens_q = nullptr;
         w.args.seqlen_q = &w.length[0]),
    CASE("seqlen_q: was given with cu_seqlens_q, must be alone: both say the logical lengths", w.group(); w.args.seqlen_q = &w.length[0]),
    CASE("seqlen_k: was given with cu_seqlens_k, must be alone: both say the logical lengths", w.args.seqlen_k = &w.length[1]; w.args.cu_seqlens_k = &w.cu[1]),
    CASE("cu_seqlens_q: dtype was int64, must be int32", w.group(); w.cu[0].dtype = TILEKILN_DTYPE(0, 64)),
    CASE("seqlen_k: dtype was int64, must be int32", w.args.seqlen_k = &w.length[1]; w.length[1].dtype = TILEKILN_DTYPE(0, 64)),
    CASE("cu_seqlens_q: had 2 dimensions, must have 1: batch + 1", w.group(); w.cu[0].ndim = 2; w.cu[0].shape[1] = 1),
    CASE("cu_seqlens_q: had no entry, must have batch + 1", w.group(); w.cu[0].shape[0] = 0),
    CASE("cu_seqlens_k: had 2 entries, must have 3: batch + 1", w.group(); w.cu[1].shape[0] = 2),
    CASE("seqlen_q: had 3 entries, must have 2: batch", w.args.seqlen_q = &w.length[0]; w.length[0].shape[0] = 3),
    CASE("cu_seqlens_q: must not decrease, but entry 2 is 1 after 3", w.group(); w.set(2, {0, 3, 1})),
    CASE("cu_seqlens_k: entry 0 was -4, must be 0 or more", w.group(); w.set(3, {-4, 4, 9})),
    CASE("cu_seqlens_q: ended at 10, must end at 9 or before, the total length of q", w.group(); w.set(2, {0, 3, 10})),
    CASE("seqstart_k: ended at 2147483647, must end at 9 or before, the total length of k", w.group(); w.args.seqstart_k = &w.start[1];
         w.set(5, {0, 4, INT32_MAX})),
    CASE("cu_seqlens_q: sequence 0 was 4 long, must be at most 3, the space that the seqstart array leaves it", w.group(); w.args.seqstart_q = &w.start[0];
         w.set(2, {0, 4, 9})),
    CASE("seqlen_q: sequence 1 was 7 long, must be at most 6, the space that the seqstart array leaves it", w.group(); w.args.cu_seqlens_q = nullptr;
         w.args.seqstart_q = &w.start[0]; w.args.seqlen_q = &w.length[0]; w.set(0, {3, 7})),
    CASE("seqlen_q: entry 1 was -1, must be 0 or more", w.args.seqlen_q = &w.length[0]; w.set(0, {3, -1})),
    CASE("seqlen_k: sequence 0 was 11 long, must be at most 10, the seqlen of k", w.args.seqlen_k = &w.length[1]; w.set(1, {11, 3})),
    CASE("cu_seqlens_k: sequence 1 was 11 long, must be at most 10, the seqlen of k", w.args.cu_seqlens_k = &w.cu[1]; w.set(3, {0, 5, 16})),
    CASE("alibi_slopes: batch was 3, must be 2, the number of sequences", w.group(); w.args.alibi_slopes = &w.slopes;
         w.slopes = tensor(w.memory[4].data(), TILEKILN_FP32, {3, Hq})),

    // The executor and the stream.
    CASE("executor: size was 0, must be 32, sizeof(tilekiln_executor)", w.args.executor = &w.executor; w.executor.size = 0),
    CASE("executor: parallel_for was null, must be a function", w.args.executor = &w.executor; w.executor.parallel_for = nullptr),
    CASE("executor: max_workers was 0, must be 1 or more", w.args.executor = &w.executor; w.executor.max_workers = 0),
    CASE("stream: was no live stream, must be one that tilekiln_stream_create made and nobody destroyed",
         w.args.stream = reinterpret_cast<tilekiln_stream*>(w.memory[7].data())),
};

void run_cases() {
  for (const Case& bad : cases) {
    World world;
    bad.spoil(world);
    const std::vector<float> out = world.out_memory, lse = world.lse_memory;
    const std::vector<unsigned char> randval = world.randval_memory;
    const bool refused =
        check_that(tilekiln_fmha_fwd(&world.args) == TILEKILN_INVALID_ARGUMENT, "refused", __FILE__, bad.line);
    if (refused) check_text(tilekiln_last_error(), bad.says, __FILE__, bad.line);
    check_that(world.out_memory == out && world.lse_memory == lse && world.randval_memory == randval, "untouched",
               __FILE__, bad.line);
    int64_t instance = -7;
    check_that(tilekiln_fmha_fwd_find(&world.args, &instance) == TILEKILN_INVALID_ARGUMENT && instance == -7,
               "find refuses", __FILE__, bad.line);
    size_t length = 99;
    char text[8] = "before";
    check_that(
        tilekiln_fmha_fwd_why(&world.args, text, sizeof(text), &length) == TILEKILN_INVALID_ARGUMENT && length == 99,
        "why refuses", __FILE__, bad.line);
    CHECK_TEXT(text, "before");
  }
}

// Calls that look strange and are right.
void run_good() {
  World w;
  CHECK(tilekiln_fmha_fwd(&w.args) == TILEKILN_OK);
  CHECK(!w.untouched());
  {  // Packed projections: q, k, v and even out are slices of one buffer, interleaved but apart.
    World packed;
    std::vector<float> buffer(B * Sq * Hq * 4 * D, 0.5f);
    for (auto* t : {&packed.q, &packed.k, &packed.v, &packed.out})
      *t = tensor(buffer.data(), TILEKILN_FP32, {B, Sq, Hq, D});
    int part = 0;
    for (auto* t : {&packed.q, &packed.k, &packed.v, &packed.out}) {
      t->data = buffer.data() + Hq * D * part++;
      t->stride[1] *= 4;
      t->stride[0] *= 4;
    }
    CHECK(tilekiln_fmha_fwd(&packed.args) == TILEKILN_OK);
    packed.out.stride[1] -= D;
    CHECK(tilekiln_fmha_fwd(&packed.args) == TILEKILN_INVALID_ARGUMENT);
  }
  {  // Inputs may be expanded and run backwards.
    World strided;
    strided.k.stride[2] = 0;
    strided.v.stride[0] = 0;
    strided.q.data = strided.memory[0].data() + (Sq - 1) * Hq * D;
    strided.q.stride[1] = -Hq * D;
    CHECK(tilekiln_fmha_fwd(&strided.args) == TILEKILN_OK);
  }
  {  // Nothing to do, with null data.
    World empty;
    for (auto* t : {&empty.q, &empty.out}) t->shape[0] = 0, t->data = nullptr;
    for (auto* t : {&empty.k, &empty.v}) t->shape[0] = 0;
    CHECK(tilekiln_fmha_fwd(&empty.args) == TILEKILN_OK);
    CHECK(empty.untouched());
  }
  {  // No keys: zeros and -inf.
    World keyless;
    for (auto* t : {&keyless.k, &keyless.v}) t->shape[1] = 0, t->data = nullptr;
    keyless.args.lse = &keyless.lse;
    CHECK(tilekiln_fmha_fwd(&keyless.args) == TILEKILN_OK);
    CHECK(keyless.out_memory[0] == 0 && keyless.out_memory[B * Sq * Hq * Dv - 1] == 0 &&
          keyless.out_memory[B * Sq * Hq * Dv] == 7);
    CHECK(keyless.lse_memory[0] == -inf && keyless.lse_memory[B * Sq * Hq - 1] == -inf &&
          keyless.lse_memory[B * Sq * Hq] == 7);
  }
  {  // The largest windows.
    World wide;
    wide.args.window_left = wide.args.window_right = INT32_MAX;
    CHECK(tilekiln_fmha_fwd(&wide.args) == TILEKILN_OK);
    World plain;
    CHECK(tilekiln_fmha_fwd(&plain.args) == TILEKILN_OK);
    CHECK(wide.out_memory == plain.out_memory);
  }
}

void run_instances() {
  World w;
  const int64_t count = tilekiln_instance_count();
  w.args.instance = count;
  CHECK(tilekiln_fmha_fwd(&w.args) == TILEKILN_INVALID_ARGUMENT);
  char text[200];
  snprintf(text, sizeof(text), "instance: was %lld, must be from 0 to %lld, or -1 (the dispatcher chooses)",
           (long long)count, (long long)count - 1);
  CHECK_TEXT(tilekiln_last_error(), text);
  // Exactly the instances of the signature with enough head dim and a usable ISA fit.
  int64_t chosen = -1;
  w.args.instance = -1;
  CHECK(tilekiln_fmha_fwd_find(&w.args, &chosen) == TILEKILN_OK);
  int fitting = 0;
  for (int64_t i = 0; i < count; ++i) {
    w.args.instance = i;
    int64_t found = -1;
    const tilekiln_status status = tilekiln_fmha_fwd_find(&w.args, &found);
    const char* name = tilekiln_instance_name(i);
    const bool fits = strstr(name, "fmha_fwd_fp32_") != nullptr &&
                      strstr(name, "_batch_nmask_nbias_nlse_ndropout_nsoftcap_nskip_nsink_nqscale") != nullptr;
    CHECK((status == TILEKILN_OK) == (fits && tilekiln_instance_usable(i) == 1));
    if (status == TILEKILN_OK) CHECK(found == i);
    fitting += status == TILEKILN_OK;
    if (!fits &&
        strstr(name, "fmha_fwd_fp32_d64x64_batch_window_nbias_nlse_ndropout_nsoftcap_nskip_nsink_nqscale") != nullptr) {
      CHECK_HOLDS(tilekiln_last_error(), "does not fit the problem, it has mask=window (problem: none)");
    }
  }
  CHECK(fitting >= 1 && chosen >= 0);
}

// Structs of random numbers (all but the data of the index arrays, which must be readable): any answer, no crash.
void run_noise() {
  unsigned long long state = 1;
  const auto random = [&] { return (state = state * 6364136223846793005u + 1442695040888963407u) >> 20; };
  const int64_t lengths[] = {
      0, 1, 2, 3, B, Sq, Sk, Hq, D, -1, 127, 129, 1 << 20, INT64_C(1) << 31, INT64_C(1) << 40, INT64_MAX, INT64_MIN};
  const auto length = [&] { return lengths[random() % (sizeof(lengths) / sizeof(*lengths))]; };
  int accepted = 0;
  for (int round = 0; round < 20000; ++round) {
    World w;
    tilekiln_tensor* const tensors[] = {&w.q, &w.k, &w.v, &w.out, &w.lse, &w.bias, &w.slopes, &w.sink, &w.randval};
    if (random() % 2) w.args.lse = &w.lse;
    if (random() % 3 == 0) w.args.bias = &w.bias;
    if (random() % 3 == 0) w.args.alibi_slopes = &w.slopes;
    if (random() % 3 == 0) w.args.sink = &w.sink;
    if (random() % 3 == 0) w.args.dropout_p = 0.5f, w.args.randval = &w.randval;
    for (unsigned long long n = random() % 4; n > 0; --n) {
      tilekiln_tensor& t = *tensors[random() % 9];
      switch (random() % 5) {
        case 0: t.shape[random() % TILEKILN_MAX_NDIM] = length(); break;
        case 1: t.stride[random() % TILEKILN_MAX_NDIM] = length(); break;
        case 2: t.ndim = static_cast<int32_t>(random() % 9) - 1; break;
        case 3:
          t.dtype = static_cast<int32_t>(random() % 5 == 0 ? random() : (random() % 20) << 8 | 8u << random() % 4);
          break;
        default: t.data = reinterpret_cast<void*>(random() % 3 == 0 ? random() << 20 : (random() & ~7ull));
      }
    }
    int32_t* const numbers[] = {&w.args.causal,    &w.args.window_left,  &w.args.window_right, &w.args.mask_origin,
                                &w.args.sink_size, &w.args.min_seqlen_q, &w.args.layout,       &w.args.num_threads};
    if (random() % 2) *numbers[random() % 8] = static_cast<int32_t>(random() % 2 ? random() : random() % 3);
    int64_t instance = -1;
    const tilekiln_status status = tilekiln_fmha_fwd_find(&w.args, &instance);
    CHECK(status == TILEKILN_OK || status == TILEKILN_INVALID_ARGUMENT || status == TILEKILN_NO_KERNEL);
    CHECK((status == TILEKILN_OK) == (instance >= 0));
    accepted += status == TILEKILN_OK;
    CHECK(w.untouched());
  }
  CHECK(accepted > 1000 && accepted < 19000);
}

void run_streams() {
  CHECK(tilekiln_stream_create(nullptr) == TILEKILN_INVALID_ARGUMENT);
  CHECK_TEXT(tilekiln_last_error(), "stream: was null, must point to where the stream is put");
  CHECK(tilekiln_stream_synchronize(nullptr) == TILEKILN_INVALID_ARGUMENT);
  CHECK_TEXT(tilekiln_last_error(), "stream: was null, must be one that tilekiln_stream_create made");
  tilekiln_stream* stream = nullptr;
  CHECK(tilekiln_stream_create(&stream) == TILEKILN_OK);
  CHECK(tilekiln_stream_launch_host(stream, nullptr, nullptr) == TILEKILN_INVALID_ARGUMENT);
  CHECK_TEXT(tilekiln_last_error(), "host: was null, must be a function");
  CHECK(tilekiln_stream_query(stream, nullptr) == TILEKILN_INVALID_ARGUMENT);
  uint64_t mark = 0;
  int32_t passed = 0;
  CHECK(tilekiln_stream_wait(nullptr, 0, &mark, &passed) == TILEKILN_INVALID_ARGUMENT);
  CHECK(tilekiln_stream_wait(stream, -1, &mark, &passed) == TILEKILN_INVALID_ARGUMENT);
  CHECK_TEXT(tilekiln_last_error(), "nanoseconds: was -1, must be 0 or more");
  CHECK(tilekiln_stream_wait(stream, 0, nullptr, &passed) == TILEKILN_INVALID_ARGUMENT);
  CHECK(tilekiln_stream_wait(stream, 0, &mark, nullptr) == TILEKILN_INVALID_ARGUMENT);
  World bad;
  bad.args.stream = stream;
  bad.args.causal = 3;
  CHECK(tilekiln_fmha_fwd(&bad.args) == TILEKILN_INVALID_ARGUMENT);  // at once, not at synchronise
  CHECK(tilekiln_stream_synchronize(stream) == TILEKILN_OK);
  CHECK(tilekiln_stream_destroy(stream) == TILEKILN_OK);
  CHECK(tilekiln_stream_destroy(nullptr) == TILEKILN_OK);
}

void run_nulls() {
  CHECK(tilekiln_fmha_fwd(nullptr) == TILEKILN_INVALID_ARGUMENT);
  CHECK_TEXT(tilekiln_last_error(), "args: was null, must point to a tilekiln_fmha_fwd_args");
  World w;
  CHECK(tilekiln_fmha_fwd_find(&w.args, nullptr) == TILEKILN_INVALID_ARGUMENT);
  CHECK(tilekiln_fmha_fwd_why(&w.args, nullptr, 5, nullptr) == TILEKILN_INVALID_ARGUMENT);
  size_t length = 0;
  CHECK(tilekiln_describe("fmha_fwd", nullptr, nullptr, 0, &length) == TILEKILN_INVALID_ARGUMENT);
  CHECK_TEXT(tilekiln_last_error(), "args: was null, must point to a tilekiln_fmha_fwd_args");
  CHECK(tilekiln_describe(nullptr, &w.args, nullptr, 0, &length) == TILEKILN_INVALID_ARGUMENT);
  CHECK_TEXT(tilekiln_last_error(), "operator_name: was null, must be a name of tilekiln_operators");
  CHECK(tilekiln_describe("fmha", &w.args, nullptr, 0, &length) == TILEKILN_INVALID_ARGUMENT);
  CHECK_TEXT(tilekiln_last_error(),
             "operator_name: was fmha, must be an operator of this library (tilekiln_operators lists them)");
  CHECK(tilekiln_describe("fmha_fwd", &w.args, nullptr, 0, &length) == TILEKILN_OK && length > 100);
  // Explanations go on being explanations.
  char text[16] = "";
  CHECK(tilekiln_fmha_fwd_why(&w.args, text, sizeof(text), &length) == TILEKILN_OK && length > 200);
}

}  // namespace

int main() {
  run_nulls();
  run_cases();
  run_good();
  run_instances();
  run_noise();
  run_streams();
  return check_result();
}
