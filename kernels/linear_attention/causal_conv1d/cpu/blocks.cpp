// SPDX-License-Identifier: MIT
// The blocks engine of causal_conv1d for one target: z[t] = bias + sum_j w[j] x[t - width + 1 + j], oldest tap first, y = z or silu(z).
#include "kernels/backends/cpu/sigmoid.h"
#include "kernels/linear_attention/cpu/channels.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {
namespace {

template <int Width, bool kSilu>
void convolve(const Channels* in, const Channels* weight, const Channels& bias, int tokens, Channels* out) {
  for (int c = 0; c < kGroup; c += kLanes) {
    vf w[Width];
    TILEKILN_UNROLL(4) for (int j = 0; j < Width; ++j) w[j] = load(weight[j].lane + c);
    const vf b = load(bias.lane + c);
    for (int t = 0; t < tokens; ++t) {
      vf sum = b;
      TILEKILN_UNROLL(4) for (int j = 0; j < Width; ++j) sum = fma(w[j], load(in[t + j].lane + c), sum);
      store(out[t].lane + c, kSilu ? silu(sum) : sum);
    }
  }
}

template <class T>
void block(const Conv1d& whole, long long sequence, long long number, int first_channel, int last_channel) {
  constexpr int kMost = linear_attention::kConvBlock;
  constexpr decltype(&convolve<2, false>) kConvolve[2][3] = {
      {convolve<2, false>, convolve<3, false>, convolve<4, false>},
      {convolve<2, true>, convolve<3, true>, convolve<4, true>}};
  const Conv1d a = sequence_of<T>(whole, sequence);
  const long long first = number * kMost;
  if (first >= a.tokens && number > 0) return;  // another sequence is longer
  const int lead = lead_of(a, first);
  const int tokens = a.tokens - first < kMost ? int(a.tokens - first) : kMost;
  Channels in[kMost + kLanes], out[kMost], weight[4], bias;
  groups_of_channels(first_channel, last_channel, [&](int c, int channels) __attribute__((always_inline)) {
    read_taps<T>(a, c, channels, weight, bias);
    read_inputs<T>(a, first - lead, tokens + lead, c, channels, in);
    kConvolve[a.silu][a.width - 2](in + lead - (a.width - 1), weight, bias, tokens, out);
    if (tokens > 0) write_tile<T>(a.y, first, c, tokens, channels, out);
    if (number == 0 && a.last.data) {  // last may be past, which nothing else reads for these channels
      read_inputs<T>(a, a.tokens - (a.width - 1), a.width - 1, c, channels, in);
      write_tile<T>(a.last, 0, c, a.width - 1, channels, in);
    }
  });
}

}  // namespace
}  // namespace tilekiln::cpu::inline TILEKILN_TARGET

#define TILEKILN_JOIN(a, b, c) a##b##c
#define TILEKILN_ENGINE(target) TILEKILN_JOIN(tilekiln_, target, _causal_conv1d_blocks)

// Functions by dtype: fp32, fp16, bf16.
extern "C" const tilekiln::linear_attention::Conv1dEngine TILEKILN_ENGINE(TILEKILN_TARGET) = {
    {tilekiln::cpu::block<float>, tilekiln::cpu::block<tilekiln::cpu::fp16>,
     tilekiln::cpu::block<tilekiln::cpu::bf16>}};
