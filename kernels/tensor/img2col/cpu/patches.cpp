// SPDX-License-Identifier: MIT
// The engine of img2col for one target.
#include "kernels/tensor/cpu/move.h"
#include "kernels/tensor/img2col/engine.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {
namespace {

// Row `a` of a patch: pixels j, j + dilation, .. of a row of the image, those outside of it 0.
void patch_row(const tensor::Img2col& a, const char* from, long long j, char* to) {
  const long long dilation = a.dilation[1], end = a.filter_width;
  long long b = 0, inside = end;  // pixels [b, inside) exist
  if (j < 0) b = (-j + dilation - 1) / dilation < end ? (-j + dilation - 1) / dilation : end;
  if (j + (end - 1) * dilation >= a.width) {
    const long long left = a.width - j;
    inside = left <= 0 ? 0 : (left + dilation - 1) / dilation;
  }
  if (inside < b) inside = b;
  __builtin_memset(to, 0, b * a.bytes);
  __builtin_memset(to + inside * a.bytes, 0, (end - inside) * a.bytes);
  if (inside == b) return;
  from += (j + b * dilation) * a.x_pixel, to += b * a.bytes;
  if (dilation * a.x_pixel == a.bytes) return copy_row(to, from, (inside - b) * a.bytes);
  for (; b < inside; ++b, from += dilation * a.x_pixel, to += a.bytes) copy_row(to, from, a.bytes);
}

void patches(const tensor::Img2col& a, long long first, long long last) {
  const long long row_bytes = (long long)a.filter_width * a.bytes;
  for (long long m = first; m < last; ++m) {
    const long long j = m % a.out_width * a.stride[1] - a.padding[1];
    const long long above = m / a.out_width;
    const long long i = above % a.out_height * a.stride[0] - a.padding[0];
    const char* image = a.x + above / a.out_height * a.x_image;
    for (int g = 0; g < a.groups; ++g, image += a.bytes) {
      char* to = a.y + g * a.y_group + m * a.y_row;
      for (int f = 0; f < a.filter_height; ++f, to += row_bytes) {
        const long long row = i + (long long)f * a.dilation[0];
        if (row < 0 || row >= a.height)
          __builtin_memset(to, 0, row_bytes);
        else
          patch_row(a, image + row * a.x_row, j, to);
      }
    }
  }
}

}  // namespace
}  // namespace tilekiln::cpu::inline TILEKILN_TARGET

#define TILEKILN_JOIN(a, b, c) a##b##c
#define TILEKILN_ENGINE(target) TILEKILN_JOIN(tilekiln_, target, _img2col_patches)

extern "C" const tilekiln::tensor::Img2colEngine TILEKILN_ENGINE(TILEKILN_TARGET) = {tilekiln::cpu::patches};
