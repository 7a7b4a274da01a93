// SPDX-License-Identifier: MIT
// The channels engine of causal_conv1d_bwd for one target. Blocks of tokens go from last to first, so that dz of the tokens
// after a block is there: dx[t] = sum_j w[j] dz[t + width - 1 - j], dw[j] = sum_t dz[t] x[t - width + 1 + j], db = sum_t dz[t].
#include "kernels/linear_attention/cpu/channels.h"

#include "kernels/backends/cpu/sigmoid.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {
namespace {

using linear_attention::Conv1dGradients;

constexpr int kBefore = 4;  // rows of 0 before dz of the first token, the width at most

struct Sums { Channels weight[4], bias; };

// dz over dy, and the sums of a block added to those before.
template <int Width, bool kSilu>
void gradients(const Channels* in, const Channels* weight, const Channels& bias, int tokens, Channels* dz, Sums& sums) {
  for (int c = 0; c < kGroup; c += kLanes) {
    vf w[Width], of_w[Width], of_b = zero();
    TILEKILN_UNROLL(4) for (int j = 0; j < Width; ++j) w[j] = load(weight[j].lane + c), of_w[j] = zero();
    const vf b = load(bias.lane + c);
    for (int t = 0; t < tokens; ++t) {
      vf x[Width], z = b, d = load(dz[t].lane + c);
      TILEKILN_UNROLL(4) for (int j = 0; j < Width; ++j) {
        x[j] = load(in[t + j].lane + c);
        z = fma(w[j], x[j], z);
      }
      if constexpr (kSilu) {
        const vf s = sigmoid(z);
        // z (1 - s) is 0 where s is 1: z may be infinite.
        d = mul(mul(d, s),
                fma(max(broadcast(-126.f), min(broadcast(126.f), z)), sub(broadcast(1.f), s), broadcast(1.f)));
      }
      store(dz[t].lane + c, d);
      of_b = add(of_b, d);
      TILEKILN_UNROLL(4) for (int j = 0; j < Width; ++j) of_w[j] = fma(d, x[j], of_w[j]);
    }
    store(sums.bias.lane + c, add(load(sums.bias.lane + c), of_b));
    TILEKILN_UNROLL(4)
    for (int j = 0; j < Width; ++j) store(sums.weight[j].lane + c, add(load(sums.weight[j].lane + c), of_w[j]));
  }
}

// The share of inputs in dz, whose row t + width - 1 is the last that input t is in.
template <int Width> void spread(const Channels* dz, const Channels* weight, int tokens, Channels* out) {
  for (int c = 0; c < kGroup; c += kLanes) {
    vf w[Width];
    TILEKILN_UNROLL(4) for (int j = 0; j < Width; ++j) w[j] = load(weight[j].lane + c);
    for (int t = 0; t < tokens; ++t) {
      vf sum = zero();
      TILEKILN_UNROLL(4) for (int j = 0; j < Width; ++j) sum = fma(w[j], load(dz[t + Width - 1 - j].lane + c), sum);
      store(out[t].lane + c, sum);
    }
  }
}

// Inputs `first`, counted from the first token, up to their end: those that the final state holds have its gradient, too.
void add_last(const Conv1d& a, const Channels* last, long long first, int tokens, Channels* to) {
  for (int i = 0; i < a.width - 1; ++i) {
    const long long row = a.tokens - (a.width - 1) + i - first;
    if (row < 0 || row >= tokens) continue;
    for (int c = 0; c < kGroup; c += kLanes)
      store(to[row].lane + c, add(load(to[row].lane + c), load(last[i].lane + c)));
  }
}

template <class T>
void sequence(const Conv1dGradients& whole, long long number, int c, int channels, const Channels* weight,
              const Channels& bias, Sums& sums) {
  constexpr int kMost = linear_attention::kConvBlock;
  constexpr decltype(&gradients<2, false>) kGradients[2][3] = {
      {gradients<2, false>, gradients<3, false>, gradients<4, false>},
      {gradients<2, true>, gradients<3, true>, gradients<4, true>}};
  constexpr decltype(&spread<2>) kSpread[3] = {spread<2>, spread<3>, spread<4>};
  const Conv1d a = sequence_of<T>(whole.made, number);
  const long long batch = a.starts ? 0 : number, start = a.starts ? a.starts[number] : 0;
  const Sequences of = moved<T>(whole.of, batch, start), to = moved<T>(whole.x, batch, start);
  const int before = a.width - 1;
  Channels in[kMost + kLanes], own[kBefore + kMost + 4], out[kMost], last[4];
  __builtin_memset(own, 0, kBefore * sizeof *own);
  Channels* const dz = own + kBefore;
  __builtin_memset(dz, 0, before * sizeof *dz);
  if (whole.last_of.data) read_tile<T>(moved<T>(whole.last_of, number, 0), 0, c, before, channels, last);
  for (long long first = (a.tokens - 1) / kMost * kMost; first >= 0 && a.tokens > 0; first -= kMost) {
    const int tokens = a.tokens - first < kMost ? int(a.tokens - first) : kMost, lead = lead_of(a, first);
    __builtin_memmove(dz + tokens, dz, before * sizeof *dz);  // of the block after this one, or 0
    read_inputs<T>(a, first - lead, tokens + lead, c, channels, in);
    read_tile<T>(of, first, c, tokens, channels, dz);
    kGradients[a.silu][a.width - 2](in + lead - before, weight, bias, tokens, dz, sums);
    kSpread[a.width - 2](dz, weight, tokens, out);
    if (whole.last_of.data) add_last(a, last, first, tokens, out);
    write_tile<T>(to, first, c, tokens, channels, out);
  }
  if (!whole.past.data) return;
  kSpread[a.width - 2](dz - before, weight, before, out);
  if (whole.last_of.data) add_last(a, last, -before, before, out);
  write_tile<T>(moved<T>(whole.past, number, 0), 0, c, before, channels, out);
}

template <class T> void all_tokens(const Conv1dGradients& a, int c) {
  const int channels = a.made.channels - c < kGroup ? a.made.channels - c : kGroup;
  Channels weight[4], bias;
  read_taps<T>(a.made, c, channels, weight, bias);
  Sums sums = {};
  for (long long number = 0; number < a.made.batch; ++number) sequence<T>(a, number, c, channels, weight, bias, sums);
  write_tile<T>(a.weight, 0, c, a.made.width, channels, sums.weight);
  if (a.bias) write_tile<T>(Sequences{(char*)a.bias, 0, 0, 1}, 0, c, 1, channels, &sums.bias);
}

}  // namespace
}  // namespace tilekiln::cpu::inline TILEKILN_TARGET

#define TILEKILN_JOIN(a, b, c) a##b##c
#define TILEKILN_ENGINE(target) TILEKILN_JOIN(tilekiln_, target, _causal_conv1d_bwd_channels)

// Functions by dtype: fp32, fp16, bf16.
extern "C" const tilekiln::linear_attention::Conv1dGradientsEngine TILEKILN_ENGINE(TILEKILN_TARGET) = {
    {tilekiln::cpu::all_tokens<float>, tilekiln::cpu::all_tokens<tilekiln::cpu::fp16>,
     tilekiln::cpu::all_tokens<tilekiln::cpu::bf16>}};
