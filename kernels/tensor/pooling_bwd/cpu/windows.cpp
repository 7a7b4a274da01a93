// SPDX-License-Identifier: MIT
// The engine of the backward of pooling for one target: an element of dx is the sum over the windows that it lies in, in their order.
#include "kernels/backends/cpu/lanes.h"
#include "kernels/backends/cpu/load.h"
#include "kernels/tensor/pooling/cpu/inside.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {
namespace {

// Windows o of a side with an element of theirs, t dilation from their beginning, at `at`.
template <class Each> TILEKILN_INLINE void covering(const Pooling& a, int side, long long at, Each&& each) {
  const long long from = at + a.padding[side];
  for (int t = a.window[side] - 1; t >= 0; --t) {
    const long long begin = from - (long long)t * a.dilation[side];
    if (begin >= 0 && begin % a.stride[side] == 0 && begin / a.stride[side] < a.out[side]) each(begin / a.stride[side]);
  }
}

// Elements along a side that the mean of a window divides by.
float share(const Pooling& a, int side, long long out) {
  const long long at = out * a.stride[side] - a.padding[side];
  const Inside in = inside(a, side, at);
  return float(a.count_padding ? counted(a, side, at) : in.last - in.first);
}

// each(o, factor) for the windows over an element, in their order.
template <bool kMean, class Each>
TILEKILN_INLINE void windows_over(const Pooling& a, long long z, long long y, long long x, Each&& each) {
  covering(a, 0, z, [&](long long d) {
    covering(a, 1, y, [&](long long h) {
      covering(a, 2, x, [&](long long w) {
        each(d, h, w, kMean ? 1 / (share(a, 0, d) * share(a, 1, h) * share(a, 2, w)) : 1.f);
      });
    });
  });
}

template <bool kMean, class T> void rows(const Pooling& a, long long first, long long last) {
  const long long channels = a.along_channels ? 1 : a.channels;
  for (long long row = first; row < last; ++row) {
    const long long c = row % channels, y = row / channels % a.length[1],
                    z = row / channels / a.length[1] % a.length[0];
    const long long n = row / channels / a.length[1] / a.length[0];
    const T* const dy = (const T*)a.y + n * a.y_step[0] + c * a.y_step[4];
    const int* const at = a.indices ? a.indices + n * a.index_step[0] + c * a.index_step[4] : nullptr;
    T* const dx = (T*)a.x + n * a.x_step[0] + z * a.x_step[1] + y * a.x_step[2] + c * a.x_step[4];
    const auto place = [](const long long* step, long long d, long long h, long long w) {
      return d * step[1] + h * step[2] + w * step[3];
    };
    for (long long x = 0; x < a.length[2]; ++x) {
      const int own = int((z * a.length[1] + y) * a.length[2] + x);
      T* const to = dx + x * a.x_step[3];
      if (!a.along_channels) {
        float sum = 0;
        windows_over<kMean>(a, z, y, x, [&](long long d, long long h, long long w, float factor) {
          if (kMean || at[place(a.index_step, d, h, w)] == own)
            sum += factor * core::widen(dy[place(a.y_step, d, h, w)]);
        });
        core::narrow(sum, *to);
        continue;
      }
      for (int j = 0; j < a.channels; j += kLanes) {
        const int left = int(a.channels - j < kLanes ? a.channels - j : kLanes);
        vfloat sum = {};
        windows_over<kMean>(a, z, y, x, [&](long long d, long long h, long long w, float factor) {
          const vfloat more = same_bits<vfloat>(widen_some(dy + place(a.y_step, d, h, w) + j, left));
          if constexpr (kMean) {
            sum += more * factor;
          } else {
            const int* const from = at + place(a.index_step, d, h, w) + j * a.index_step[4];
            vint here = {};
            for (int k = 0; k < left; ++k) here[k] = from[k * a.index_step[4]] == own ? -1 : 0;
            sum += choose(here, more, vfloat{});
          }
        });
        narrow_some(to + j, same_bits<vf>(sum), left);
      }
    }
  }
}

template <class T> void backward(const Pooling& a, long long first, long long last) {
  a.operation == int(tensor::Pool::mean) ? rows<true, T>(a, first, last) : rows<false, T>(a, first, last);
}

}  // namespace
}  // namespace tilekiln::cpu::inline TILEKILN_TARGET

#define TILEKILN_JOIN(a, b, c) a##b##c
#define TILEKILN_ENGINE(target) TILEKILN_JOIN(tilekiln_, target, _pooling_bwd_windows)

// Functions by dtype: fp32, fp16, bf16.
extern "C" const tilekiln::tensor::PoolingEngine TILEKILN_ENGINE(TILEKILN_TARGET) = {
    {tilekiln::cpu::backward<float>, tilekiln::cpu::backward<tilekiln::cpu::fp16>,
     tilekiln::cpu::backward<tilekiln::cpu::bf16>}};
