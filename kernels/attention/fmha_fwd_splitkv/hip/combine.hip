// SPDX-License-Identifier: MIT
// One result of the parts that forward.hip left of a query and head, when its keys were split:
//
//     m = max_s lse_s,  w_s = 2^(lse_s - m),  O = sum_s w_s O_s / sum_s w_s
//     LSE = ln 2 (m + log2 sum_s w_s);  m = -inf: O = 0
//
// A workgroup is a query and a head, a wave of it. Source: Dao et al., "Flash-Decoding for long-context inference"
// (2023). Emulated (functional), never run on AMD silicon. -D: TILEKILN_FP16, FP8 (out is e4m3).
#include "kernels/attention/hip/places.h"
#include "kernels/attention/hip/problem.h"

using namespace tilekiln;
using namespace tilekiln::hip;

extern "C" __constant__ const CombineBuild tilekiln_fmha_combine_build = {kLanes, kBf16, kFp8};

TILEKILN_KERNEL(kLanes) void tilekiln_fmha_combine(CombineProblem p) {
  const int row = __builtin_amdgcn_workgroup_id_x(), head = __builtin_amdgcn_workgroup_id_y();
  const int b = __builtin_amdgcn_workgroup_id_z();
  const fmha::Queries queries = fmha::find_queries(p.at, b);
  if (row >= queries.count) return;
  const i64 first = ((i64(b) * p.at.seqlen_q_most + row) * p.nhead_q + head) * p.splits;
  Global<const float> lse = (Global<const float>)p.part_lse + first;
  float most = -kInfinity, sum = 0.f;
  for (int s = 0; s < p.splits; s++) most = max(most, lse[s]);
  const float base = most == -kInfinity ? 0.f : most;
  for (int s = 0; s < p.splits; s++) sum += exp2(lse[s] - base);
  const float inverse = sum > 0.f ? reciprocal(sum) : 0.f;
  const i64 at = i64(queries.start) + row;
  using Out = Choose<kFp8 != 0, unsigned char, T>;
  const float factor = inverse * (kFp8 && p.out_scale ? *(Global<const float>)p.out_scale : 1.f);
  Global<Out> out = (Global<Out>)p.out + (p.at.seqstart_q ? 0 : b * p.out_batch) + head * p.out_head + at * p.out_row;
  for (int column = lane(); column < p.hdim_v; column += kLanes) {
    Global<const float> part = (Global<const float>)p.part_out + first * p.hdim_v + column;
    float o = 0.f;
    for (int s = 0; s < p.splits; s++) o += exp2(lse[s] - base) * part[i64(s) * p.hdim_v];
    if constexpr (kFp8)
      out[column] = static_cast<Out>(as_fp8(o * factor));
    else
      out[column] = Out(o * factor);
  }
  if (p.lse && lane() == 0)
    ((Global<float>)p.lse)[(p.at.seqstart_q ? 0 : b * p.lse_batch) + head * p.lse_head + at] =
        sum > 0.f ? (base + log2(sum)) * kLn2 : -kInfinity;
}
