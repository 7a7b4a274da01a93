// SPDX-License-Identifier: MIT
// y[o][r][c] = x[o][r][c] by bits: rows copied in vectors, tiles turned in shared memory, or elements one by one.
// -D: THREADS.
#include "kernels/backends/words.h"
#include "kernels/tensor/cuda/params.h"

namespace tilekiln::cuda::move {

struct Place { long long x, y; };

// The places in x and y at which plane `number` begins.
TILEKILN_DEVICE Place plane_at(const tensor::Move& a, unsigned long long number) {
  Place at = {0, 0};
#pragma unroll 1
  for (int i = tensor::kOuter - 1; i >= 0 && number > 0; --i) {
    const unsigned long long length = a.outer[i];
    if (length == 1) continue;
    unsigned long long next;
    if (number >> 32 == 0 && length >> 32 == 0)
      next = uint32_t(number) / uint32_t(length);
    else
      next = number / length;
    const long long place = number - next * length;
    number = next;
    at.x += place * a.outer_x[i];
    at.y += place * a.outer_y[i];
  }
  return at;
}

TILEKILN_DEVICE unsigned long long divided(unsigned long long a, unsigned long long b) {
  return (a | b) >> 32 == 0 ? uint32_t(a) / uint32_t(b) : a / b;
}

constexpr int kTogether = 4;  // vectors of a thread in flight

// Copies rows, both contiguous along columns. A block takes THREADS / lanes rows, of kTogether vectors a thread at a
// time.
template <class Vector> TILEKILN_DEVICE void copy_rows(const Params& p) {
  const tensor::Move& a = p.move;
  const int lane = threadIdx.x & (p.lanes - 1), at = threadIdx.x / p.lanes, per_block = THREADS / p.lanes;
  const long long piece = (long long)p.lanes * kTogether, pieces = (a.columns + piece - 1) / piece;
  const long long lines = a.all_planes * a.rows, work = (lines + per_block - 1) / per_block * pieces;
  for (long long number = blockIdx.x; number < work; number += gridDim.x) {
    const long long group = divided(number, pieces), line = group * per_block + at;
    if (line >= lines) continue;
    const long long plane = divided(line, a.rows), r = line - plane * a.rows;
    const Place start = plane_at(a, plane);
    const long long first = (number - group * pieces) * piece + lane;
    const Vector* const x = static_cast<const Vector*>(a.x) + start.x + r * a.row_x + first;
    Vector* const y = static_cast<Vector*>(a.y) + start.y + r * a.row_y + first;
    Vector v[kTogether];
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      if (first + i * p.lanes < a.columns) v[i] = __ldcs(x + i * p.lanes);
    }
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      if (first + i * p.lanes < a.columns) __stcs(y + i * p.lanes, v[i]);
    }
  }
}

// Words of four lines, each of elements of `size` bytes, as words of elements of one row each.
TILEKILN_DEVICE void turn_words(const uint32_t (&line)[4], uint32_t (&row)[4]) {
  const uint32_t low0 = __byte_perm(line[0], line[1], 0x5140), high0 = __byte_perm(line[0], line[1], 0x7362);
  const uint32_t low1 = __byte_perm(line[2], line[3], 0x5140), high1 = __byte_perm(line[2], line[3], 0x7362);
  row[0] = __byte_perm(low0, low1, 0x5410), row[1] = __byte_perm(low0, low1, 0x7632);
  row[2] = __byte_perm(high0, high1, 0x5410), row[3] = __byte_perm(high0, high1, 0x7632);
}

// kRows vectors of y, of 16 bytes along columns, of the words that `line(e)` has of as many lines as a vector has
// elements.
template <class E, int kRows, class Line> TILEKILN_DEVICE void gather_rows(uint4 (&row)[kRows], Line&& line) {
  if constexpr (sizeof(E) == 8) {
    const uint2 first = line(0), second = line(1);
    row[0] = make_uint4(first.x, first.y, second.x, second.y);
  } else if constexpr (sizeof(E) == 4) {
    row[0] = make_uint4(line(0), line(1), line(2), line(3));
  } else if constexpr (sizeof(E) == 2) {
    uint32_t word[8];
#pragma unroll
    for (int e = 0; e < 8; ++e) word[e] = line(e);
    const auto pairs = [&](uint32_t select) {
      return make_uint4(__byte_perm(word[0], word[1], select), __byte_perm(word[2], word[3], select),
                        __byte_perm(word[4], word[5], select), __byte_perm(word[6], word[7], select));
    };
    row[0] = pairs(0x5410), row[1] = pairs(0x7632);
  } else {
    uint32_t turned[4][4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t four[4] = {line(4 * i), line(4 * i + 1), line(4 * i + 2), line(4 * i + 3)};
      turn_words(four, turned[i]);
    }
#pragma unroll
    for (int r = 0; r < 4; ++r) row[r] = make_uint4(turned[0][r], turned[1][r], turned[2][r], turned[3][r]);
  }
}

// x contiguous along rows, y along columns. Tiles lie in shared memory as in x, a line's words (pairs of words of 8
// bytes) exchanged so that neither those who write a line nor those who read a word of many lines meet in a bank.
template <class E, int kSide> TILEKILN_DEVICE void turn_tiles(const Params& p, uint32_t* shared) {
  constexpr int kWide = 16 / sizeof(E), kVectors = kSide / kWide;  // of a line
  constexpr int kLine = kSide * int(sizeof(E)) / 4;                // words
  constexpr int kRows = sizeof(E) < 4 ? 4 / sizeof(E) : 1;         // of y, that a word of a line holds
  constexpr int kLoads = kSide * kVectors / THREADS, kRounds = kSide / kRows * kVectors / THREADS;
  const auto exchanged = [](int c) { return sizeof(E) == 1 ? c / kWide % 8 * 4 : c / kWide % 16 * 2; };
  const auto element = [&](int c, int r) {
    const int word = r * int(sizeof(E)) / 4 ^ exchanged(c);
    return reinterpret_cast<E*>(shared + c * kLine + word) + (sizeof(E) < 4 ? r % kRows : 0);
  };
  const tensor::Move& a = p.move;
  const long long tiles = p.tiles_r * p.tiles_c, work = tiles * a.all_planes;
  for (long long number = blockIdx.x; number < work; number += gridDim.x) {
    const long long plane = divided(number, tiles), tile = number - plane * tiles;
    const long long down = divided(tile, p.tiles_c), r0 = down * kSide, c0 = (tile - down * p.tiles_c) * kSide;
    const Place start = plane_at(a, plane);
    const E* const x = static_cast<const E*>(a.x) + start.x + r0 + c0 * a.column_x;
    E* const y = static_cast<E*>(a.y) + start.y + r0 * a.row_y + c0;
    const int rows = int(min((long long)kSide, a.rows - r0)), columns = int(min((long long)kSide, a.columns - c0));
    const bool whole = rows == kSide && columns == kSide;
    if (whole && p.wide_x) {
      uint4 words[kLoads];
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        const int at = threadIdx.x + i * THREADS, c = at / kVectors, r = at % kVectors * kWide;
        words[i] = __ldcs(reinterpret_cast<const uint4*>(x + r + c * a.column_x));
      }
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        const int at = threadIdx.x + i * THREADS, c = at / kVectors, word = at % kVectors * 4;
        uint32_t* const line = shared + c * kLine;
        *reinterpret_cast<uint2*>(line + (word ^ exchanged(c))) = make_uint2(words[i].x, words[i].y);
        *reinterpret_cast<uint2*>(line + (word + 2 ^ exchanged(c))) = make_uint2(words[i].z, words[i].w);
      }
    } else {
#pragma unroll 4
      for (int i = threadIdx.x; i < kSide * kSide; i += THREADS) {
        const int c = i / kSide, r = i % kSide;
        if (c < columns && r < rows) *element(c, r) = x[r + c * a.column_x];
      }
    }
    __syncthreads();
    if (whole && p.wide_y) {
#pragma unroll
      for (int i = 0; i < kRounds; ++i) {
        const int at = threadIdx.x + i * THREADS, word = at / kVectors, c = at % kVectors * kWide;
        uint4 row[kRows];
        gather_rows<E>(row, [&](int e) {
          const uint32_t* const line = shared + (c + e) * kLine;
          if constexpr (sizeof(E) == 8)
            return *reinterpret_cast<const uint2*>(line + (word * 2 ^ exchanged(c)));
          else
            return line[word ^ exchanged(c)];
        });
#pragma unroll
        for (int k = 0; k < kRows; ++k) __stcs(reinterpret_cast<uint4*>(y + (word * kRows + k) * a.row_y + c), row[k]);
      }
    } else {
#pragma unroll 4
      for (int i = threadIdx.x; i < kSide * kSide; i += THREADS) {
        const int r = i / kSide, c = i % kSide;
        if (c < columns && r < rows) y[r * a.row_y + c] = *element(c, r);
      }
    }
    __syncthreads();
  }
}

template <class E> TILEKILN_DEVICE void scatter(const Params& p) {
  const tensor::Move& a = p.move;
  const long long each = a.rows * a.columns, all = a.all_planes * each;
  for (long long number = (long long)blockIdx.x * THREADS + threadIdx.x; number < all;
       number += (long long)gridDim.x * THREADS) {
    const long long plane = divided(number, each), rest = number - plane * each;
    const long long r = divided(rest, a.columns), c = rest - r * a.columns;
    const Place start = plane_at(a, plane);
    static_cast<E*>(a.y)[start.y + r * a.row_y + c * a.column_y] =
        static_cast<const E*>(a.x)[start.x + r * a.row_x + c * a.column_x];
  }
}

}  // namespace tilekiln::cuda::move

using namespace tilekiln::cuda;

extern "C" __constant__ move::Build move_build = {THREADS};

#define MOVE(name, blocks) \
  extern "C" __global__ void __launch_bounds__(THREADS, blocks) name(const __grid_constant__ move::Params p)
MOVE(move_rows, 4) {
  switch (p.bytes) {
    case 1: return move::copy_rows<uint8_t>(p);
    case 2: return move::copy_rows<uint16_t>(p);
    case 4: return move::copy_rows<uint32_t>(p);
    case 8: return move::copy_rows<uint2>(p);
    default: return move::copy_rows<uint4>(p);
  }
}
// Kernels by bytes of an element. The more blocks a processor holds, the more loads are in flight.
MOVE(move_tiles_1, 5) {
  __shared__ __align__(16) uint32_t tile[128 * 32];
  move::turn_tiles<uint8_t, 128>(p, tile);
}
MOVE(move_tiles_2, 4) {
  __shared__ __align__(16) uint32_t tile[128 * 64];
  move::turn_tiles<uint16_t, 128>(p, tile);
}
MOVE(move_tiles_4, 5) {
  __shared__ __align__(16) uint32_t tile[64 * 64];
  move::turn_tiles<uint32_t, 64>(p, tile);
}
MOVE(move_tiles_8, 4) {
  __shared__ __align__(16) uint32_t tile[64 * 128];
  move::turn_tiles<uint64_t, 64>(p, tile);
}
MOVE(move_scattered, 4) {
  switch (p.bytes) {
    case 1: return move::scatter<uint8_t>(p);
    case 2: return move::scatter<uint16_t>(p);
    case 4: return move::scatter<uint32_t>(p);
    default: return move::scatter<uint64_t>(p);
  }
}
