// New keys and values into a KV cache in place, rotated on the way; queries rotated in place. A CTA is a token of a sequence.
//
// A rotation is in fp32, every product and sum rounded, and the result once: the bytes are those of the CPU.
// -D: THREADS; TILEKILN_FP16 for fp16.
#include "kernels/attention/cuda/places.h"
#include "kernels/attention/fmha_fwd_appendkv/cuda/params.h"

namespace tilekiln::cuda::fmha_append {

TILEKILN_DEVICE uint16_t narrow(float x) { return uint16_t(pack(x, 0.f)); }

TILEKILN_DEVICE float entry(const Params& p, const void* table, int64_t at) {
  return p.rotary_fp32 ? static_cast<const float*>(table)[at] : element(static_cast<const uint16_t*>(table)[at]);
}

// Pair i of a head's row.
TILEKILN_DEVICE void rotate(const Params& p, const uint16_t* from, uint16_t* to, int i, int64_t position) {
  const int first = p.interleaved ? 2 * i : i, second = p.interleaved ? 2 * i + 1 : i + p.rotary_dim / 2;
  const float cos = entry(p, p.rotary_cos, position * p.cos_row + i),
              sin = entry(p, p.rotary_sin, position * p.sin_row + i);
  const float x0 = element(from[first]), x1 = element(from[second]);
  to[first] = narrow(__fsub_rn(__fmul_rn(x0, cos), __fmul_rn(x1, sin)));
  to[second] = narrow(__fadd_rn(__fmul_rn(x1, cos), __fmul_rn(x0, sin)));
}

TILEKILN_DEVICE void append(const Params& p) {
  const int tokens = max(p.seqlen_q_most, p.seqlen_new), b = blockIdx.x / tokens, token = blockIdx.x % tokens;
  const Keys keys = find_keys(p, b);
  const int pairs = p.rotary_dim / 2;
  const auto position = [&](int64_t at) { return int64_t(max(min(at, p.positions - 1), int64_t(0))); };
  if (p.q && token < p.seqlen_q_most) {
    uint16_t* const row = p.q + b * p.q_batch + token * p.q_row;
    const int64_t at = position(int64_t(keys.count) + (p.q_advances ? token : 0));
    for (int e = threadIdx.x; e < p.nhead_q * pairs; e += THREADS) {
      uint16_t* const head = row + e / pairs * p.q_head;
      rotate(p, head, head, e % pairs, at);
    }
  }
  const int64_t place = int64_t(keys.count) + token;
  if (token >= p.seqlen_new || place >= p.room_k) return;
  const Page page = find_page(p, keys, int(place));
  const uint16_t* from = p.knew + b * p.knew_batch + token * p.knew_row;
  uint16_t* to = p.k + page.number * p.k_page + page.key * p.k_key;
  const int items = pairs + p.hdim_q - p.rotary_dim;  // of a head: pairs, then elements that are copied
  const int64_t at = position(place);
  for (int e = threadIdx.x; e < p.nhead_k * items; e += THREADS) {
    const int h = e / items, i = e % items, copied = i - pairs + p.rotary_dim;
    if (i < pairs)
      rotate(p, from + h * p.knew_head, to + h * p.k_head, i, at);
    else
      to[h * p.k_head + copied] = from[h * p.knew_head + copied];
  }
  from = p.vnew + b * p.vnew_batch + token * p.vnew_row;
  to = p.v + page.number * p.v_page + page.key * p.v_key;
  for (int e = threadIdx.x; e < p.nhead_k * p.hdim_v; e += THREADS) {
    const int h = e / p.hdim_v, i = e % p.hdim_v;
    to[h * p.v_head + i] = from[h * p.vnew_head + i];
  }
}

}  // namespace tilekiln::cuda::fmha_append

using namespace tilekiln::cuda;

extern "C" __constant__ fmha_append::Build fmha_append_build = {THREADS,
#ifdef TILEKILN_FP16
                                                                1
#else
                                                                0
#endif
};

extern "C" __global__ void __launch_bounds__(THREADS) fmha_append(const __grid_constant__ fmha_append::Params p) {
  fmha_append::append(p);
}
