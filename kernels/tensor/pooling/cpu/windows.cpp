// SPDX-License-Identifier: MIT
// The engine of pooling for one target. A window is a loop over what of it lies inside x, around vectors of outputs that share it: channels,
// or outputs of a row whose windows lie wholly inside along it.
#include "kernels/backends/cpu/lanes.h"
#include "kernels/backends/cpu/load.h"
#include "kernels/tensor/pooling/cpu/inside.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {
namespace {

// Outputs that share a window: how many, where they lie, and what their steps are.
template <class T> struct Lanes {
  const T* x;  // of the first, at the window's beginning
  T* y;
  int* indices;
  long long step, y_step, index_step;
  int count, index, index_lane;  // the place of the window's beginning, and from one to the next
};

template <class T> TILEKILN_INLINE vfloat values(const T* x, long long step, int left) {
  if (step == 1) return same_bits<vfloat>(widen_some(x, left));
  T row[kLanes] = {};
  for (int i = 0; i < kLanes && i < left; ++i) row[i] = x[i * step];
  return same_bits<vfloat>(widen(row));
}

enum class Do { max, places, mean };
template <Do kDo, int kVectors, class T>
TILEKILN_INLINE void vectors(const Pooling& a, const Inside (&in)[kSides], const Lanes<T>& to, int j, float factor) {
  constexpr bool kMean = kDo == Do::mean;
  vfloat best[kVectors];
  vint at[kVectors];
  for (int i = 0; i < kVectors; ++i) best[i] = lanes(kMean ? 0.f : -__builtin_inff()), at[i] = lanes(-1);
  bool begun = false;
  for (int d = in[0].first; d < in[0].last; ++d)
    for (int h = in[1].first; h < in[1].last; ++h)
      for (int w = in[2].first; w < in[2].last; ++w) {
        const long long z = (long long)d * a.dilation[0], y = (long long)h * a.dilation[1],
                        x = (long long)w * a.dilation[2];
        const T* from = to.x + z * a.x_step[1] + y * a.x_step[2] + x * a.x_step[3] + j * to.step;
        const vint place = plus(lanes(int(to.index + (z * a.length[1] + y) * a.length[2] + x)),
                                times(numbered(j), lanes(to.index_lane)));
        TILEKILN_UNROLL(4) for (int i = 0; i < kVectors; ++i) {
          const vfloat v = values(from + i * kLanes * to.step, to.step, to.count - j - i * kLanes);
          if constexpr (kMean) {
            best[i] += v;
          } else {
            const vint takes = (v > best[i]) | (v != v) | lanes(kDo == Do::places && !begun);
            best[i] = choose(takes, v, best[i]);
            if constexpr (kDo == Do::places)
              at[i] = choose(takes, plus(place, lanes(i * kLanes * to.index_lane)), at[i]);
          }
        }
        begun = true;
      }
  for (int i = 0; i < kVectors; ++i) {
    const int first = j + i * kLanes, left = to.count - first < kLanes ? to.count - first : kLanes;
    T row[kLanes];
    T* const y = to.y + first * to.y_step;
    narrow_some(to.y_step == 1 ? y : row, same_bits<vf>(kMean ? best[i] * factor : best[i]),
                to.y_step == 1 ? left : kLanes);
    for (int k = 0; to.y_step != 1 && k < left; ++k) y[k * to.y_step] = row[k];
    if constexpr (kDo == Do::places)
      for (int k = 0; k < left; ++k) to.indices[(first + k) * to.index_step] = at[i][k];
  }
}

template <Do kDo, class T>
void outputs(const Pooling& a, const long long (&begin)[kSides], const Inside (&in)[kSides], const Lanes<T>& to) {
  float factor = 1;
  for (int side = 0; side < kSides && kDo == Do::mean; ++side)
    factor *= float(a.count_padding ? counted(a, side, begin[side]) : in[side].last - in[side].first);
  factor = 1 / factor;
  int j = 0;
  for (; j <= to.count - 4 * kLanes; j += 4 * kLanes) vectors<kDo, 4>(a, in, to, j, factor);
  for (; j < to.count; j += kLanes) vectors<kDo, 1>(a, in, to, j, factor);
}

template <Do kDo, class T> void rows(const Pooling& a, long long first, long long last) {
  const long long channels = a.along_channels ? 1 : a.channels;
  for (long long row = first; row < last; ++row) {
    const long long c = row % channels, i = row / channels % a.out[1], z = row / channels / a.out[1] % a.out[0];
    const long long n = row / channels / a.out[1] / a.out[0];
    const auto place = [&](const long long* step) { return n * step[0] + z * step[1] + i * step[2] + c * step[4]; };
    long long begin[kSides] = {z * a.stride[0] - a.padding[0], i * a.stride[1] - a.padding[1], 0};
    Inside in[kSides] = {inside(a, 0, begin[0]), inside(a, 1, begin[1]), {}};
    const T* x = (const T*)a.x + n * a.x_step[0] + begin[0] * a.x_step[1] + begin[1] * a.x_step[2] + c * a.x_step[4];
    for (long long j = 0; j < a.out[2];) {
      begin[2] = j * a.stride[2] - a.padding[2];
      in[2] = inside(a, 2, begin[2]);
      Lanes<T> to = {x + begin[2] * a.x_step[3],
                     (T*)a.y + place(a.y_step) + j * a.y_step[3],
                     a.indices ? a.indices + place(a.index_step) + j * a.index_step[3] : nullptr,
                     1,
                     a.y_step[4],
                     a.index_step[4],
                     int(a.channels),
                     int((begin[0] * a.length[1] + begin[1]) * a.length[2] + begin[2]),
                     0};
      if (!a.along_channels) {
        // Outputs whose windows lie inside share one.
        const long long reach = (long long)a.dilation[2] * (a.window[2] - 1) + 1, free = a.length[2] - reach - begin[2];
        const long long whole = begin[2] < 0 || free < 0 ? 1 : free / a.stride[2] + 1;
        to.count = int(whole < a.out[2] - j ? whole : a.out[2] - j);
        to.step = a.stride[2] * a.x_step[3], to.y_step = a.y_step[3], to.index_step = a.index_step[3],
        to.index_lane = a.stride[2];
      }
      outputs<kDo>(a, begin, in, to);
      j += a.along_channels ? 1 : to.count;
    }
  }
}

template <class T> void pooling(const Pooling& a, long long first, long long last) {
  if (a.operation == int(tensor::Pool::mean)) return rows<Do::mean, T>(a, first, last);
  a.indices ? rows<Do::places, T>(a, first, last) : rows<Do::max, T>(a, first, last);
}

}  // namespace
}  // namespace tilekiln::cpu::inline TILEKILN_TARGET

#define TILEKILN_JOIN(a, b, c) a##b##c
#define TILEKILN_ENGINE(target) TILEKILN_JOIN(tilekiln_, target, _pooling_windows)

// Functions by dtype: fp32, fp16, bf16.
extern "C" const tilekiln::tensor::PoolingEngine TILEKILN_ENGINE(TILEKILN_TARGET) = {
    {tilekiln::cpu::pooling<float>, tilekiln::cpu::pooling<tilekiln::cpu::fp16>,
     tilekiln::cpu::pooling<tilekiln::cpu::bf16>}};
