// SPDX-License-Identifier: MIT
// The words engine of flatmm_quant: a checked call is the parameters of one launch. Compiled with
// -DTILEKILN_TARGET=<the target's name> and -DTILEKILN_KERNELS (held.h).
#include <algorithm>

#include "kernels/backends/cuda/held.h"
#include "kernels/gemm/flatmm_quant/cuda/params.h"

#define TILEKILN_JOIN(a, b, c) a##b##c
#define TILEKILN_ENGINE(target) TILEKILN_JOIN(tilekiln_, target, _flatmm_quant_words)

namespace tilekiln::cuda::words {
namespace {

bool at_16(const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; }

tilekiln_status launch_words(const Site& site, const void* problem) {
  const auto& g = *static_cast<const matrix::Grouped*>(problem);
  const matrix::Problem& p = g.product;
  if (p.m == 0 || p.n == 0) return TILEKILN_OK;
  const bool fp16 = g.a_dtype == matrix::Dtype::fp16;
  const Kernel* const kernel =
      find_held([&](const Kernel& one) { return (static_cast<const Build*>(one.build)->fp16 != 0) == fp16; });
  if (kernel == nullptr) return fail(TILEKILN_INTERNAL, "the library has flatmm_quant for cuda without its kernel");
  if (!at_16(p.a) || (p.m > 1 && p.lda % 8 != 0))
    return fail_argument("a",
                         "rows began at %p and were %lld bytes apart, must be at multiples of 16 bytes on cuda: fill "
                         "them up to multiples of 8 elements",
                         p.a, p.lda * 2);
  for (const auto& [name, data] : {std::pair{"b", p.b}, std::pair<const char*, const void*>{"b_scale", g.b_scale}})
    if (!at_16(data)) return fail_argument(name, "began at %p, must begin at a multiple of 16 bytes on cuda", data);
  const Words words = {g, p.n / matrix::kPanelLanes, p.k / 8, (p.k + g.group - 1) / g.group};
  const auto across = static_cast<unsigned>(p.n / kColumns), down = static_cast<unsigned>((p.m + kRows - 1) / kRows);
  if (down > 65535)
    return fail_argument("a", "had %d rows, must have at most 1048560 on cuda with weights of int4", p.m);
  const bool few = across * down > static_cast<unsigned>(facts(site.device.id)->multiprocessors);
  const char* const functions[2][2] = {{"words_8_many", "words_16_many"}, {"words_8_few", "words_16_few"}};
  return launch(site, {kernel,
                       functions[few ? 1 : 0][p.m <= 8 ? 0 : 1],
                       {across, down, 1},
                       static_cast<unsigned>(32 * (few ? kFewWarps : kManyWarps)),
                       0,
                       &words,
                       false,
                       true});
}

}  // namespace
}  // namespace tilekiln::cuda::words

extern "C" const tilekiln::cuda::Engine TILEKILN_ENGINE(TILEKILN_TARGET) = {tilekiln::cuda::words::launch_words};
