// SPDX-License-Identifier: MIT
// Patches of images: neighbours among threads write neighbours in a group's matrix, some moves each at once. Pixels
// that several patches hold come from the caches.
// -D: THREADS.
#include "kernels/backends/words.h"
#include "kernels/tensor/img2col/cuda/params.h"

namespace tilekiln::cuda::img2col {

// a / d, and the rest.
template <bool kFew> TILEKILN_DEVICE long long divided(long long a, const Divisor& d, long long by, int& rest) {
  long long quotient = a;
  if (by != 1) quotient = kFew ? __umulhi(uint32_t(a), d.multiplier) >> d.shift : a / by;
  rest = int(a - quotient * by);
  return quotient;
}

template <class E, bool kFew> TILEKILN_DEVICE void patches(const Params& p) {
  constexpr int kMoves = kFew ? kAtOnce : 1;  // of very many the code is what counts
  const tensor::Img2col& a = p.images;
  const int vectors = p.vectors.by, along = p.along.by, all = p.all.by;
  const long long moves = a.patches * a.groups * all, many = (long long)gridDim.x * THREADS * kMoves;
  for (long long first = (long long)blockIdx.x * THREADS * kMoves + threadIdx.x; first < moves; first += many) {
    E value[kMoves];
    E* to[kMoves];
#pragma unroll
    for (int n = 0; n < kMoves; ++n) {
      const long long move = first + n * THREADS;
      if (move >= moves) continue;
      int e, rest, c, at, i, j;
      const long long row = divided<kFew>(move, p.all, all, e);
      long long group = 0, patch = row;
      if (a.groups != 1) {
        if constexpr (kFew) {
          group = divided<true>(row, p.patches, a.patches, at), patch = at;
        } else {
          group = row / a.patches, patch = row - group * a.patches;
        }
      }
      const long long image = divided<kFew>(patch, p.of_image, (long long)a.out_height * a.out_width, at);
      i = int(divided<true>(at, p.out_width, a.out_width, j));
      const int fy = int(divided<true>(e, p.along, along, rest)), fx = int(divided<true>(rest, p.vectors, vectors, c));
      const long long y = i * (long long)a.stride[0] - a.padding[0] + fy * (long long)a.dilation[0],
                      x = j * (long long)a.stride[1] - a.padding[1] + fx * (long long)a.dilation[1];
      value[n] = {};
      to[n] = reinterpret_cast<E*>(a.y + group * a.y_group + patch * a.y_row) + e;
      if (y >= 0 && y < a.height && x >= 0 && x < a.width)
        value[n] =
            reinterpret_cast<const E*>(a.x + image * a.x_image + group * a.bytes + y * a.x_row + x * a.x_pixel)[c];
    }
#pragma unroll
    for (int n = 0; n < kMoves; ++n) {
      if (first + n * THREADS < moves) *to[n] = value[n];
    }
  }
}
template <class E> TILEKILN_DEVICE void patches(const Params& p) {
  if (p.few) return patches<E, true>(p);
  patches<E, false>(p);
}

}  // namespace tilekiln::cuda::img2col

using namespace tilekiln::cuda;

extern "C" __constant__ img2col::Build img2col_build = {THREADS};

extern "C" __global__ void __launch_bounds__(THREADS) img2col_patches(const __grid_constant__ img2col::Params p) {
  switch (p.width) {
    case 1: return img2col::patches<uint8_t>(p);
    case 2: return img2col::patches<uint16_t>(p);
    case 4: return img2col::patches<uint32_t>(p);
    case 8: return img2col::patches<uint2>(p);
    default: return img2col::patches<uint4>(p);
  }
}
