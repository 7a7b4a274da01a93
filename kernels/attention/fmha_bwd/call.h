// SPDX-License-Identifier: MIT
// One call of fmha_bwd on its way from arguments to stages: check, choose, run.
#pragma once
#include "kernels/attention/bwd_engine.h"
#include "kernels/attention/call.h"
#include "kernels/attention/fmha_bwd/workspace.h"
#include "kernels/runtime/choose.h"

namespace tilekiln::fmha {

// The most logical workers: no schedule can use more. operator.yaml sets this bound for calls.
constexpr int max_workers = 1 << 16;

constexpr Dtype dtype_of(int32_t dtype) {
  return dtype == TILEKILN_FP32 ? Dtype::fp32 : dtype == TILEKILN_FP16 ? Dtype::fp16 : Dtype::bf16;
}

// The origin of a call's workspace.
enum class BwdMemory : unsigned char {
  own,       // made for the call
  given,     // the caller's, prepared by the call
  prepared,  // the caller's, prepared by a launcher
};

// When the index arrays (seqstart, seqlen, cu_seqlens) are read.
enum class BwdLengths : unsigned char {
  now,
  later,  // only their shapes are checked: `call` is not fit to be run
};

struct BwdCall : AttentionCall {
  BwdLengths lengths = BwdLengths::now;
  BwdProblem problem = {};
  BwdSteps steps = {};
  Query queries[TILEKILN_BWD_STAGES] = {};
  Choice stages[TILEKILN_BWD_STAGES];
  Array lse;
  float* d_sink = nullptr;
  i64 physical_q = 0, physical_k = 0;  // batch mode: rows of a sequence; group mode: of all, as the arrays have them
  i64 longest_k = 0;                   // group mode: the longest physical length; of an unread call, at least that
  int workers = 0;                     // 0: chosen from the sizes
  BwdMemory memory = BwdMemory::own;
  Array workspace;
};

// Checks every argument and fills all of `call` but the stages. Reads the structs and the index arrays; writes nothing
// that belongs to the caller.
[[nodiscard]] tilekiln_status check_bwd(const tilekiln_fmha_bwd_args& args, BwdCall* call,
                                        BwdLengths lengths = BwdLengths::now);
// Checks that an array can be a workspace: not its size.
[[nodiscard]] tilekiln_status check_workspace(const Array& workspace);

// Traits that a launcher and a call both have: everything the signatures of the stages follow from.
struct BwdTraits {
  BwdFeatures features;
  int hdim_q, hdim_v;
};
void set_bwd_queries(const BwdTraits& traits, Query queries[TILEKILN_BWD_STAGES]);

// The instances of the stages: `instance` is that of the main one.
[[nodiscard]] tilekiln_status choose_bwd(int64_t instance, const Query queries[TILEKILN_BWD_STAGES],
                                         Choice stages[TILEKILN_BWD_STAGES]);

// The shape of the workspace of a call that has its stages.
BwdWorkspaceShape shape_of(const BwdCall& call);
// The starts of the sequences as the schedule reads them, batch + 1 each; empty in batch mode.
struct BwdStarts { SmallArray<int32_t, 17> q, k; };
void set_starts(const BwdCall& call, BwdStarts* starts);
// The bytes of workspace of a call that has its stages; of an unread call, enough for all that its lengths can be.
[[nodiscard]] tilekiln_status workspace_size(const BwdCall& call, uint64_t* bytes);
// Size of the workspace for kernels of a device, which lay it out themselves.
[[nodiscard]] tilekiln_status kernels_workspace_size(const BwdCall& call, uint64_t* bytes);
// Checks that the schedule of a shape can count the work of `keys` keys together.
[[nodiscard]] tilekiln_status check_schedule(const BwdWorkspaceShape& shape, i64 keys);
[[nodiscard]] tilekiln_status check_workspace_size(const Array& workspace, u64 needed);

// The instances (see runtime/entry.h): the schedule of the call can be counted, too.
[[nodiscard]] tilekiln_status choose_instances(const Stages& stages, int64_t instance, BwdCall& call);
void list_instances(const Stages& stages, const BwdCall& call, int64_t* instances);
[[nodiscard]] tilekiln_status explain_call(Text& text, const Stages& stages, int64_t instance, const BwdCall& call);

// Runs the call, now or in its stream (which takes the call over). Its workspace must be as large as it needs.
[[nodiscard]] tilekiln_status launch(BwdCall& call);
// Runs it now, in this thread and its helpers.
[[nodiscard]] tilekiln_status run_bwd(BwdCall& call);
// The stages of a call on a backend with kernels of its own.
[[nodiscard]] tilekiln_status run_kernels(BwdCall& call);
// The most bytes of workspace that kernels need for a problem of which only `of` is known: no mask's sides, no lengths but the longest.
[[nodiscard]] tilekiln_status kernels_workspace_bound(const Run& run, const Choice& main, BwdKernelProblem of,
                                                      uint64_t* bytes);
// The head of a workspace that a launcher prepares for kernels: the starts of q, then of k, batch + 1 each. Its bytes; 0 in batch mode.
u64 kernels_host_segment(bool group, int batch);

}  // namespace tilekiln::fmha
