// One call of fmha_fwd on its way from arguments to units: check, choose, run.
#pragma once
#include "tilekiln/fmha/fwd_engine.h"
#include "tilekiln/runtime/array.h"
#include "tilekiln/runtime/dispatch.h"
#include "tilekiln/runtime/small_array.h"

namespace tilekiln::fmha {

// Queries and keys per scale of qscale=blockscale.
constexpr int scale_block = 128;
// Longest sequence: row + seqlen_k + window then stays within an int.
constexpr int max_seqlen = 1 << 29;

// The arguments as arrays; those that are absent have no name.
struct FwdArrays {
  Array q, k, v, out, lse, bias, alibi_slopes, sink, q_descale, k_descale, v_descale, block_scale_seqstart_q,
      block_scale_seqstart_k, seqstart_q, seqstart_k, seqlen_q, seqlen_k, cu_seqlens_q, cu_seqlens_k, randval;
};

// One sequence that has work. A place is what the step of an array is multiplied by to find the sequence in it: the batch index
// in batch mode, the physical start (of scales: the first block) in group mode.
struct FwdSequence {
  int batch, seqlen_q, seqlen_k;
  i64 place_q, place_k, place_scale_q, place_scale_k;
  i64 first_unit;
};

// Elements from one place of a sequence to the next.
struct FwdSteps { i64 q, k, v, out, lse, randval, bias, alibi, q_descale, k_descale, v_descale; };

struct FwdCall {
  FwdProblem problem = {};
  FwdSteps steps = {};
  Query query = {};
  Choice choice;
  int batch = 0;
  int seqlen_q = 0, seqlen_k = 0;  // the longest logical lengths
  int min_seqlen_q = 0;
  bool uniform = false;  // every sequence has these lengths, and `sequences` is empty
  SmallArray<FwdSequence, 16> sequences;
  int threads = 1;
  bool lent = false;  // run on `executor`
  tilekiln_executor executor = {};
  tilekiln_stream* stream = nullptr;
};

// Checks every argument and fills all of `call` but the choice. Reads the structs, the index arrays and, for a call without a
// stream, the per-tensor scales; writes nothing that belongs to the caller.
[[nodiscard]] tilekiln_status check_fwd(const tilekiln_fmha_fwd_args& args, FwdCall* call);

// The parts of it. The numbers: windows, scales, probabilities, layout.
[[nodiscard]] tilekiln_status check_fwd_scalars(const tilekiln_fmha_fwd_args& args, FwdCall* call);
// The logical lengths and places of every sequence, from the index arrays.
[[nodiscard]] tilekiln_status check_fwd_sequences(const FwdArrays& arrays, i64 physical_q, i64 physical_k,
                                                  bool blockscale, FwdCall* call);
// The signature, from what is given and what the scalars say. Sets call->query.features and call->problem.features.
void set_fwd_signature(const tilekiln_fmha_fwd_args& args, Qscale qscale, int32_t dtype_q, int32_t dtype_out,
                       FwdCall* call);
// The per-tensor scales are numbers. At once without a stream, else when the stream has come to the call.
[[nodiscard]] tilekiln_status check_fwd_descales(const FwdProblem& problem);

// The instance: the caller's, or the dispatcher's. An error names why there is none.
[[nodiscard]] tilekiln_status choose_fwd(const Dispatcher& dispatcher, int64_t instance, FwdCall* call);

// Runs the call, now or in its stream (which takes the call over).
[[nodiscard]] tilekiln_status launch_fwd(FwdCall& call);

}  // namespace tilekiln::fmha
