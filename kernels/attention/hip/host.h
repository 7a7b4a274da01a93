// SPDX-License-Identifier: MIT
// Common parts of the host functions of attention on HIP: the demands of a lane's loads, and how scores are made.
#pragma once
#include <initializer_list>

#include "kernels/attention/fill_scores.h"
#include "kernels/attention/hip/problem.h"
#include "kernels/backends/hip/held.h"

namespace tilekiln::hip {

using fmha::i64;

namespace {

constexpr float log2_e = 1.4426950408889634f;
constexpr i64 multiple = 8;         // elements: 16 bytes, what a lane loads at once
constexpr i64 most_row = 1 << 22;   // elements from row to row: a tile's rows are counted in bytes of 31 bits
constexpr i64 most_blocks = 65535;  // of the grid's second and third dimension

// Formats as ForwardBuild has them.
struct Format {
  bool bf16;
  int fp8, fnuz;
};

// The smallest forward kernel whose name begins so, of the format, with dropout or without, that holds both head dims.
[[maybe_unused]] const Kernel* find_forward(const char* name, i64 hdim_q, i64 hdim_v, const Format& format,
                                            bool dropout) {
  const Kernel* best = nullptr;
  find_kernel(name, [&](const Kernel& kernel) {
    const auto& build = build_as<ForwardBuild>(kernel);
    if ((build.bf16 != 0) != format.bf16 || build.fp8 != format.fp8 || build.fnuz != format.fnuz) return false;
    if ((build.dropout != 0) != dropout) return false;
    if (build.hdim_q < hdim_q || build.hdim_v < hdim_v) return false;
    const auto area = [](const ForwardBuild& of) { return of.hdim_q * of.hdim_v; };
    if (best == nullptr || area(build) < area(build_as<ForwardBuild>(*best))) best = &kernel;
    return false;
  });
  return best;
}

[[maybe_unused]] tilekiln_status check_steps(const char* name, const void* data, i64 row, i64 head, i64 batch,
                                             int hdim) {
  if (hdim % multiple != 0)
    return fail_argument(name, "had a head dim of %d, must have a multiple of %lld on hip", hdim, multiple);
  if (reinterpret_cast<uintptr_t>(data) % 16 != 0)
    return fail_argument(name, "data was at %p, must be aligned to 16 bytes on hip: pass a copy", data);
  for (const i64 step : {row, head, batch}) {
    if (step % multiple == 0 && step >= 0) continue;
    return fail_argument(name, "a stride was %lld elements, must be a multiple of %lld, 0 or more, on hip: pass a copy",
                         step, multiple);
  }
  if (row <= most_row) return TILEKILN_OK;
  return fail_argument(name, "the stride from row to row was %lld elements, must be at most %lld on hip: pass a copy",
                       row, most_row);
}

// Refuses scores that no kernel of HIP computes.
[[maybe_unused]] tilekiln_status check_scores(const fmha::FwdProblem& p) {
  if (p.features.bias == fmha::Bias::elementwise && (p.bias_row < 0 || p.bias_row > most_row))
    return fail_argument("bias",
                         "the stride from row to row was %lld elements, must be from 0 to %lld on hip: pass a copy",
                         p.bias_row, most_row);
  if (p.randval != nullptr) return fail_argument("randval", "was given, must be null on hip: its bytes are not stored");
  if (p.softmax_scale > 0) return TILEKILN_OK;
  return fail_argument("softmax_scale", "was %g, must be above 0 on hip", static_cast<double>(p.softmax_scale));
}

[[maybe_unused]] tilekiln_status check_blocks(int nhead_q, i64 batch, i64 blocks) {
  if (nhead_q > most_blocks)
    return fail_argument("q", "had %d heads, must have at most %lld on hip", nhead_q, most_blocks);
  if (batch > most_blocks)
    return fail_argument("q", "had a batch of %lld, times splits, must have at most %lld on hip", batch, most_blocks);
  if (blocks <= INT32_MAX / 1024) return TILEKILN_OK;
  return fail_argument("q", "had %lld blocks of queries, must have at most %d on hip", blocks, INT32_MAX / 1024);
}

[[maybe_unused]] void fill_scores(const fmha::FwdProblem& p, ForwardProblem* to) {
  const auto on = [&](bool given, Feature feature) { to->features |= given ? feature : 0; };
  on(fmha::fill_mask(p, to), kWindow);
  on(p.features.bias == fmha::Bias::alibi, kAlibi);
  on(p.features.bias == fmha::Bias::elementwise, kBias);
  on(p.features.softcap, kSoftcap);
  on(p.features.lse, kLse);
  on(p.features.sink && p.sink != nullptr, kSink);
  on(p.top_left, kTopLeft);
  to->scale_log2 = p.softmax_scale * log2_e;
  to->softcap = p.softcap;
  to->scale_over_softcap = p.features.softcap ? p.softmax_scale / p.softcap : 0;
  if (fmha::fill_dropout(p, to)) to->dropout_threshold = core::dropout_threshold(p.dropout_p);
}

}  // namespace
}  // namespace tilekiln::hip
