// Patches of images: threads share a row of a group's matrix, whose bytes they write one after the other. Pixels that several patches hold come from
// the caches.
// -D: THREADS.
#include "kernels/backends/cuda/ptx.h"
#include "kernels/tensor/img2col/cuda/row.h"

namespace tilekiln::cuda::img2col {

template <class E> TILEKILN_DEVICE void patches(const Row& p) {
  const tensor::Img2col& a = p.images;
  const int lane = threadIdx.x & (p.lanes - 1), teams = THREADS / p.lanes;
  const uint32_t vectors = p.vectors, along = uint32_t(a.filter_width) * vectors,
                 all = uint32_t(a.filter_height) * along;
  const long long rows = a.patches * a.groups, each = (long long)a.out_height * a.out_width;
  for (long long row = (long long)blockIdx.x * teams + threadIdx.x / p.lanes; row < rows;
       row += (long long)gridDim.x * teams) {
    const long long group = row / a.patches, patch = row - group * a.patches, image = patch / each;
    const int at = int(patch - image * each), i = at / a.out_width, j = at - i * a.out_width;
    const int y0 = i * a.stride[0] - a.padding[0], x0 = j * a.stride[1] - a.padding[1];
    const char* const from = a.x + image * a.x_image + group * a.bytes;
    E* const to = reinterpret_cast<E*>(a.y + group * a.y_group + patch * a.y_row);
    for (uint32_t e = lane; e < all; e += p.lanes) {
      const uint32_t fy = e / along, rest = e - fy * along, fx = rest / vectors, c = rest - fx * vectors;
      const long long y = y0 + (long long)fy * a.dilation[0], x = x0 + (long long)fx * a.dilation[1];
      E value = {};
      if (y >= 0 && y < a.height && x >= 0 && x < a.width)
        value = reinterpret_cast<const E*>(from + y * a.x_row + x * a.x_pixel)[c];
      to[e] = value;
    }
  }
}

}  // namespace tilekiln::cuda::img2col

using namespace tilekiln::cuda;

extern "C" __constant__ img2col::Build img2col_build = {THREADS};

extern "C" __global__ void __launch_bounds__(THREADS) img2col_patches(const __grid_constant__ img2col::Row p) {
  switch (p.width) {
    case 1: return img2col::patches<uint8_t>(p);
    case 2: return img2col::patches<uint16_t>(p);
    case 4: return img2col::patches<uint32_t>(p);
    case 8: return img2col::patches<uint2>(p);
    default: return img2col::patches<uint4>(p);
  }
}
