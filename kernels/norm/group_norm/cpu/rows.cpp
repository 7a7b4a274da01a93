// SPDX-License-Identifier: MIT
// The rows engine of group_norm for one target. Of the n elements v of a group, about a number c near them,
//   mean = c + r, variance = sum (v - c)^2 / n - r^2    with r = sum (v - c) / n
//   y = act(((v - c) - r) / sqrt(variance + epsilon) gamma + beta)
// and about the mean again where r^2 is large beside the variance. Sums of some thousand elements are fp32, theirs fp64.
#include "kernels/norm/cpu/rows.h"
#include "kernels/backends/cpu/sigmoid.h"
#include "kernels/norm/group_norm/engine.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {
namespace {

using norm::GroupNorm;
constexpr long long kPiece = 8192;  // elements of a sum in fp32, of several vectors
constexpr int kChannels = 256;      // channels whose sums a walk over positions makes
constexpr int kPositions = 2048;    // terms of such a sum in fp32, of 64 at a time

// Sums about a centre.
struct Sums64 { double sum = 0, squares = 0; };
struct Group { float centre, shift, inverse; };  // y = (v - centre) inverse + shift, before gamma

// True where the sums are to be taken again, about the mean.
TILEKILN_INLINE bool is_far(Sums64 of, double n) {
  const double rest = of.sum / n;
  return !(rest * rest <= 4 * (of.squares / n - rest * rest));
}
TILEKILN_INLINE Group group_of(const GroupNorm& a, long long image, int g, float centre, Sums64 of, double n) {
  const double rest = of.sum / n, variance = of.squares / n - rest * rest;
  const double inverse = 1 / __builtin_sqrt((variance < 0 ? 0 : variance) + a.epsilon);
  if (a.mean) a.mean[image * a.mean_image + g] = float(centre + rest);
  if (a.inverse) a.inverse[image * a.inverse_image + g] = float(inverse);
  return {centre, float(-rest * inverse), float(inverse)};
}

// An element as fp32, and several; null: `none`.
template <class T> TILEKILN_INLINE float widened(const T* p, float none = 0) {
  alignas(64) float wide[kLanes];
  store(wide, p ? widen_some(p, 1) : broadcast(none));
  return wide[0];
}
template <class T> TILEKILN_INLINE void widen_all(float* to, const T* from, int n, float none = 0) {
  for (int i = 0; i < n; i += kLanes) store_unaligned(to + i, from ? widen_some(from + i, n - i) : broadcast(none));
}

template <bool kSilu> TILEKILN_INLINE Two activated(Two v) { return kSilu ? Two{silu(v.a), silu(v.b)} : v; }

// Channels first. f(elements, how many) for pieces of a group, channel behind channel; where these lie apart, pieces of a copy, whose
// sums have the same bits.
template <class T, class F> void each_piece(const T* x, long long row, int rows, long long columns, F&& f) {
  const long long all = rows * columns;
  alignas(64) T copy[kPiece];
  for (long long j = 0; j < all; j += kPiece) {
    const int many = int(all - j < kPiece ? all - j : kPiece);
    if (row == columns || rows == 1) {
      f(x + j, many);
      continue;
    }
    for (long long i = 0; i < many;) {
      const long long r = (j + i) / columns, at = (j + i) % columns;
      const long long some = columns - at < many - i ? columns - at : many - i;
      __builtin_memcpy(copy + i, x + r * row + at, some * sizeof(T));
      i += some;
    }
    f((const T*)copy, many);
  }
}
template <class T> Sums64 sums(const GroupNorm& a, const T* x, int rows, float centre) {
  Sums64 of;
  each_piece(x, a.x_row, rows, a.positions, [&](const T* piece, int columns) __attribute__((always_inline)) {
    const Moments part = moments<T, true, false>(Plain<T>{piece}, columns, centre, (T*)nullptr);
    of.sum += part.sum, of.squares += part.squares;
  });
  return of;
}
#if TILEKILN_PAIRS
// About 0, by pairs; false where numbers lie too far from 1 for that.
bool sums_of_pairs(const GroupNorm& a, const bf16* x, int rows, Sums64& of) {
  bool right = true;
  each_piece(x, a.x_row, rows, a.positions, [&](const bf16* piece, int columns) __attribute__((always_inline)) {
    Moments part = {};
    right = right && moments_of_pairs<true, false>(Plain<bf16>{piece}, columns, (bf16*)nullptr, part);
    of.sum += part.sum, of.squares += part.squares;
  });
  return right;
}
#endif

template <class T, bool kSilu> void group_first(const GroupNorm& a, long long image, int g) {
  const int rows = a.channels / a.groups, first = g * rows;
  const double n = double(rows) * double(a.positions);
  const T* x = (const T*)a.x + image * a.x_image + first * a.x_row;
  T* y = (T*)a.y + image * a.y_image + first * a.y_row;
  Sums64 of;
  float centre = 0;
  bool made = false;
#if TILEKILN_PAIRS
  if constexpr (kEvenOdd<T>) made = sums_of_pairs(a, x, rows, of);
#endif
  if (!made) {
    centre = near_centre<Norm::layer>(Plain<T>{x}, int(a.positions < kTwo * 2 ? a.positions : kTwo * 2));
    of = sums(a, x, rows, centre);
  }
  if (is_far(of, n)) centre = float(centre + of.sum / n), of = sums(a, x, rows, centre);
  const Group by = group_of(a, image, g, centre, of, n);
  const vf c = broadcast(by.centre), inverse = broadcast(by.inverse), shift = broadcast(by.shift);
  const T* gammas = a.gamma ? (const T*)a.gamma + first : nullptr;
  const T* betas = a.beta ? (const T*)a.beta + first : nullptr;
  for (int r = 0; r < rows; ++r, x += a.x_row, y += a.y_row) {
    const vf gamma = broadcast(widened(gammas ? gammas + r : gammas, 1));
    const vf beta = broadcast(widened(betas ? betas + r : betas));
    for (long long j = 0; j < a.positions; j += kPiece) {
      const T* from = x + j;
      T* to = y + j;
      twos(int(a.positions - j < kPiece ? a.positions - j : kPiece),
           [&](int i, int, int left) __attribute__((always_inline)) {
             const Two v = sub(widen_two<T>(from + i, left), c);
             narrow_two<T>(to + i, activated<kSilu>(fma(fma(v, inverse, shift), gamma, beta)), left);
           });
    }
  }
}

// Channels last. Twos of fp32 in the order in which T widens.
TILEKILN_INLINE Two sub_two(Two x, Two y) { return {sub(x.a, y.a), sub(x.b, y.b)}; }
TILEKILN_INLINE Two two_at(const float* p) { return {load(p), load(p + kLanes)}; }
template <class T> void put_in_order_of(float* p, int n) {
  for (int i = 0; i < n; i += kTwo) {
    const Two of = widen_two<T>(p + i);
    store(p + i, of.a), store(p + i + kLanes, of.b);
  }
}
// Elements of a two in the order of memory.
template <class T> TILEKILN_INLINE void put_in_order(float* to, Two x) {
  alignas(64) float a[kLanes], b[kLanes];
  store(a, x.a), store(b, x.b);
  for (int i = 0; i < kLanes; ++i) {
    to[kEvenOdd<T> ? 2 * i : i] = a[i];
    to[kEvenOdd<T> ? 2 * i + 1 : kLanes + i] = b[i];
  }
}
// Sums of some channels at the positions, added to `of`, each about its centre. left: of kTwos == 1, channels that exist.
template <class T, int kTwos>
void add_sums(const T* x, long long row, long long positions, const float* centres, int left, Sums64* of) {
  Two c[kTwos], sums[kTwos], all[kTwos];  // sums of 64 terms, and theirs
  TILEKILN_UNROLL(4) for (int i = 0; i < kTwos; ++i) {
    c[i] = widen_two<T>(centres + i * kTwo), sums[i] = all[i] = both_of(zero());
  }
  while (positions > 0) {
    const int some = positions < 64 ? int(positions) : 64;
    Two sum[kTwos], squares[kTwos];
    TILEKILN_UNROLL(4) for (int i = 0; i < kTwos; ++i) sum[i] = squares[i] = both_of(zero());
    for (int p = 0; p < some; ++p, x += row) {
      TILEKILN_UNROLL(4) for (int i = 0; i < kTwos; ++i) {
        const Two v = kTwos > 1 ? widen_two<T>(x + i * kTwo) : widen_two<T>(x, left);
        const Two d = sub_two(v, c[i]);
        sum[i] = add(sum[i], d), squares[i] = fma(d, d, squares[i]);
      }
    }
    TILEKILN_UNROLL(4) for (int i = 0; i < kTwos; ++i) sums[i] = add(sums[i], sum[i]), all[i] = add(all[i], squares[i]);
    positions -= some;
  }
  const int channels = kTwos > 1 ? kTwos * kTwo : left < kTwo ? left : kTwo;
  alignas(64) float made[2][kTwos * kTwo];
  for (int i = 0; i < kTwos; ++i)
    put_in_order<T>(made[0] + i * kTwo, sums[i]), put_in_order<T>(made[1] + i * kTwo, all[i]);
  for (int i = 0; i < channels; ++i) of[i].sum += double(made[0][i]), of[i].squares += double(made[1][i]);
}

constexpr int kTwos = kLanes >= 16 ? 4 : 2;  // whose sums lie in registers

// Sums of up to kChannels channels at all positions.
template <class T>
void channel_sums(const GroupNorm& a, const T* x, int channels, const float* centres, Sums64* of) {
  for (int i = 0; i < channels; ++i) of[i] = {0, 0};
  for (long long p = 0; p < a.positions; p += kPositions) {
    const long long many = a.positions - p < kPositions ? a.positions - p : kPositions;
    const T* at = x + p * a.x_row;
    int i = 0;
    for (; i <= channels - kTwos * kTwo; i += kTwos * kTwo)
      add_sums<T, kTwos>(at + i, a.x_row, many, centres + i, 0, of + i);
    for (; i < channels; i += kTwo) add_sums<T, 1>(at + i, a.x_row, many, centres + i, channels - i, of + i);
  }
}

// Numbers near the elements of channels: means of some positions, far from each other.
template <class T> void some_means(const GroupNorm& a, const T* x, int channels, float* to) {
  const int some = a.positions < 8 ? int(a.positions) : 8;
  const vf share = broadcast(1 / float(some));
  for (int i = 0; i < channels; i += kLanes) {
    vf sum = zero();
    for (int p = 0; p < some; ++p) sum = add(sum, widen_some(x + i + p * (a.positions / some) * a.x_row, channels - i));
    store_unaligned(to + i, mul(sum, share));
  }
}

// f(first channel, how many) of at most kChannels at a time, of `channels` in all.
template <class F> TILEKILN_INLINE void each_part(int channels, F&& f) {
  for (int i = 0; i < channels; i += kChannels) f(i, channels - i < kChannels ? channels - i : kChannels);
}

// The groups [g, g + groups) of an image.
template <class T, bool kSilu> void groups_last(const GroupNorm& a, long long image, int g, int groups) {
  const int of_a_group = a.channels / a.groups, first = g * of_a_group, channels = groups * of_a_group;
  const double n = double(of_a_group) * double(a.positions), positions = double(a.positions);
  const T* x = (const T*)a.x + image * a.x_image + first;
  T* y = (T*)a.y + image * a.y_image + first;
  alignas(64) float centres[kChannels + kTwo], factors[kChannels + kTwo], offsets[kChannels + kTwo];
  Sums64 of[kChannels], whole[norm::kGroupsTogether];
  float means[norm::kGroupsTogether];
  double most[norm::kGroupsTogether];  // how far, squared, a centre was from its channel's mean
  const auto group_at = [&](int channel) { return channel / of_a_group; };
  for (int i = 0; i < groups; ++i) whole[i] = {0, 0}, most[i] = 0;
  // Sums of each channel about a number of its own, and that about the first of its group:
  //   sum (v - m) = n (mean - m), sum (v - m)^2 = sum (v - mean)^2 + n (mean - m)^2
  each_part(channels, [&](int part, int many) {
    some_means(a, x + part, many, centres);
    channel_sums(a, x + part, many, centres, of);
    for (int i = 0; i < many; ++i) {
      const int at = group_at(part + i);
      if ((part + i) % of_a_group == 0) means[at] = centres[i];
      const double rest = of[i].sum / positions, apart = double(centres[i]) - double(means[at]) + rest;
      whole[at].sum += positions * apart;
      whole[at].squares += of[i].squares - of[i].sum * rest + positions * apart * apart;
      if (!(rest * rest <= most[at])) most[at] = rest * rest;
    }
  });
  bool far[norm::kGroupsTogether], again = false;
  for (int i = 0; i < groups; ++i) {
    const double rest = whole[i].sum / n, squares = whole[i].squares - whole[i].sum * rest, mean = means[i] + rest;
    means[i] = float(mean);
    const double left = mean - double(means[i]);
    whole[i] = {n * left, squares + n * left * left};
    far[i] = !(most[i] <= 4 * squares / n), again = again || far[i];
  }
  if (again) {
    for (int i = 0; i < groups; ++i) {
      if (far[i]) whole[i] = {0, 0};
    }
    each_part(channels, [&](int part, int many) {
      for (int i = 0; i < many; ++i) centres[i] = means[group_at(part + i)];
      channel_sums(a, x + part, many, centres, of);
      for (int i = 0; i < many; ++i) {
        Sums64& to = whole[group_at(part + i)];
        if (!far[group_at(part + i)]) continue;
        to.sum += of[i].sum, to.squares += of[i].squares;
      }
    });
  }
  Group by[norm::kGroupsTogether];
  for (int i = 0; i < groups; ++i) by[i] = group_of(a, image, g + i, means[i], whole[i], n);
  const T* gamma = a.gamma ? (const T*)a.gamma + first : nullptr;
  const T* beta = a.beta ? (const T*)a.beta + first : nullptr;
  each_part(channels, [&](int part, int many) {
    widen_all(factors, gamma ? gamma + part : gamma, many, 1);
    widen_all(offsets, beta ? beta + part : beta, many);
    for (int i = 0; i < many; ++i) {
      const Group& one = by[group_at(part + i)];
      centres[i] = one.centre, offsets[i] = one.shift * factors[i] + offsets[i], factors[i] *= one.inverse;
    }
    put_in_order_of<T>(centres, many), put_in_order_of<T>(factors, many), put_in_order_of<T>(offsets, many);
    const T* from = x + part;
    T* to = y + part;
    for (long long p = 0; p < a.positions; ++p, from += a.x_row, to += a.y_row) {
      twos(many, [&](int j, int, int left) __attribute__((always_inline)) {
        const Two d = sub_two(widen_two<T>(from + j, left), two_at(centres + j));
        const Two v = fma(d, two_at(factors + j), two_at(offsets + j));
        narrow_two<T>(to + j, activated<kSilu>(v), left);
      });
    }
  });
}

template <class T, bool kSilu> void units(const GroupNorm& a, long long first, long long last) {
  for (long long unit = first; unit < last; ++unit) {
    const long long image = unit / a.units;
    const int g = int(unit % a.units) * a.together, left = a.groups - g;
    if (a.channels_last)
      groups_last<T, kSilu>(a, image, g, left < a.together ? left : a.together);
    else
      group_first<T, kSilu>(a, image, g);
  }
}
template <class T> void rows(const GroupNorm& a, long long first, long long last) {
  (a.silu ? units<T, true> : units<T, false>)(a, first, last);
}

}  // namespace
}  // namespace tilekiln::cpu::inline TILEKILN_TARGET

#define TILEKILN_JOIN(a, b, c) a##b##c
#define TILEKILN_ENGINE(target) TILEKILN_JOIN(tilekiln_, target, _group_norm_rows)

// Functions by dtype: fp32, fp16, bf16.
extern "C" const tilekiln::norm::GroupNormEngine TILEKILN_ENGINE(TILEKILN_TARGET) = {
    {tilekiln::cpu::rows<float>, tilekiln::cpu::rows<tilekiln::cpu::fp16>, tilekiln::cpu::rows<tilekiln::cpu::bf16>}};
