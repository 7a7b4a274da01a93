// SPDX-License-Identifier: MIT
// The forward's stages that do not know where keys come from: blocks, scores, storage. They are compiled once a target, in
// stages.cpp, for the engines of fmha_fwd and of the KV cache alike; half of what either took to compile.
#pragma once

#include "kernels/attention/cpu/qlanes/full_block.h"
#include "kernels/attention/cpu/qlanes/partial_block.h"
#include "kernels/attention/cpu/storage.h"
#include "kernels/backends/cpu/saturate.h"

#ifndef TILEKILN_STAGE  // stages.cpp defines them here
#define TILEKILN_STAGE extern template
#endif

namespace tilekiln::cpu::inline TILEKILN_TARGET {

#define TILEKILN_LOADS(...) TILEKILN_STAGE void __VA_ARGS__(void*, const void*, i64, int, int)
#define TILEKILN_SCORES(...) TILEKILN_STAGE void __VA_ARGS__(float*, int, int, int, int, vf*, const Score&)
#define TILEKILN_FP32_STORAGE(T)                                            \
  TILEKILN_STAGE void load_q_fp32<T>(float*, const void*, i64, int, int);   \
  TILEKILN_LOADS(load_rows_fp32<T, false>);                                 \
  TILEKILN_LOADS(load_rows_fp32<T, true>)
#define TILEKILN_PAIRS_STORAGE(T)                                           \
  TILEKILN_STAGE void load_q_pairs<T>(float*, const void*, i64, int, int);  \
  TILEKILN_LOADS(load_k_pairs<T>);                                          \
  TILEKILN_LOADS(load_v_pairs<T>)
#define TILEKILN_RESULTS(T) \
  TILEKILN_STAGE void store_out<T>(void*, i64, const float*, const float*, int, int)
#define TILEKILN_BLOCKS(Compute)                                            \
  TILEKILN_STAGE void full_block<Compute>(const Block&, int);           \
  TILEKILN_STAGE void partial_block<Compute>(const Block&, int, const Edges&)

TILEKILN_BLOCKS(ComputeFp32);
TILEKILN_FP32_STORAGE(float);
TILEKILN_FP32_STORAGE(fp16);
TILEKILN_FP32_STORAGE(fp8);
TILEKILN_LOADS(load_rows_fp32<bf8, false>);
TILEKILN_LOADS(load_rows_fp32<bf8, true>);
#if TILEKILN_PAIRS
TILEKILN_BLOCKS(ComputeBf16);
TILEKILN_PAIRS_STORAGE(bf16);
TILEKILN_PAIRS_STORAGE(fp8);
TILEKILN_LOADS(load_k_pairs<bf8>);
TILEKILN_LOADS(load_v_pairs<bf8>);
#else
TILEKILN_FP32_STORAGE(bf16);
#endif
TILEKILN_SCORES(score_map<Scaled>);
TILEKILN_SCORES(score_map<SoftCapped>);
TILEKILN_SCORES(score_alibi<Scaled>);
TILEKILN_SCORES(score_alibi<SoftCapped>);
TILEKILN_SCORES(score_bias<float>);
TILEKILN_SCORES(score_bias<fp16>);
TILEKILN_SCORES(score_bias<bf16>);
TILEKILN_RESULTS(float);
TILEKILN_RESULTS(fp16);
TILEKILN_RESULTS(bf16);
TILEKILN_RESULTS(saturated_fp8);

#undef TILEKILN_BLOCKS
#undef TILEKILN_RESULTS
#undef TILEKILN_PAIRS_STORAGE
#undef TILEKILN_FP32_STORAGE
#undef TILEKILN_SCORES
#undef TILEKILN_LOADS

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
