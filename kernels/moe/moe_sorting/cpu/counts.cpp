// SPDX-License-Identifier: MIT
// The engine of moe_sorting for one target: a counting sort, in the order of tokens.
#include "kernels/backends/target.h"
#include "kernels/moe/moe_sorting/engine.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {
namespace {

void sort(const moe::MoeSorting& a, int* at) {
  int tokens = a.tokens;
  if (a.local_tokens && *a.local_tokens < tokens) tokens = *a.local_tokens > 0 ? *a.local_tokens : 0;
  __builtin_memset(at, 0, sizeof(int) * a.experts);
  for (long long m = 0; m < tokens; ++m)
    for (int k = 0; k < a.topk; ++k) {
      const int expert = a.topk_ids[m * a.ids_row + k];
      if (unsigned(expert) < unsigned(a.experts)) ++at[expert];
    }
  const int filler = tokens | a.topk << 24;
  int used = 0, unit = 0, here = 0;
  for (int expert = 0; expert < a.experts; ++expert) {
    const int count = at[expert];
    at[expert] = -1;
    if (a.expert_mask && a.expert_mask[expert] == 0) continue;
    int units = (count + a.unit - 1) / a.unit;
    if (count == 0 && !a.skip_empty) units = 1;
    if (used + units * a.unit > a.room) {
      used += units * a.unit, ++here;
      continue;
    }
    at[expert] = used;
    for (const int end = unit + units; unit < end; ++unit) a.sorted_expert_ids[unit] = here;
    for (int i = used + count; i < used + units * a.unit; ++i) a.sorted_token_ids[i] = filler, a.sorted_weights[i] = 0;
    used += units * a.unit;
    ++here;
  }
  for (long long m = 0; m < tokens; ++m)
    for (int k = 0; k < a.topk; ++k) {
      const int expert = a.topk_ids[m * a.ids_row + k];
      if (unsigned(expert) >= unsigned(a.experts) || at[expert] < 0) continue;
      const int to = at[expert]++;
      a.sorted_token_ids[to] = int(m) | k << 24;
      a.sorted_weights[to] = a.topk_weights[m * a.weights_row + k];
    }
  a.total_tokens_post_pad[0] = used;
  a.total_tokens_post_pad[1] = tokens;
}

void zero(const moe::MoeSorting& a, long long first, long long last) {
  for (long long m = first; m < last; ++m) __builtin_memset(a.out + m * a.out_row, 0, a.out_bytes);
}

}  // namespace
}  // namespace tilekiln::cpu::inline TILEKILN_TARGET

#define TILEKILN_JOIN(a, b, c) a##b##c
#define TILEKILN_ENGINE(target) TILEKILN_JOIN(tilekiln_, target, _moe_sorting_counts)

extern "C" const tilekiln::moe::MoeSortingEngine TILEKILN_ENGINE(TILEKILN_TARGET) = {tilekiln::cpu::sort,
                                                                                     tilekiln::cpu::zero};
