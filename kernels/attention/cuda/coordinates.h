// SPDX-License-Identifier: MIT
// Coordinates of a row of q, k, v or dout in its tensor map, for host and kernels.
#pragma once

namespace tilekiln::cuda {

// Coordinates: (head dim, row, sequence, batch, head).
//   alike: (hdim, seqlen, 1, batch, nhead), a row at (row, 0, b).
//   packed: (hdim, kFar, 2 kFar, 2 kFar, nhead) with byte strides (s, s, 2^34 - s, head). A row of the sequence
//   [start, start + n) lies at (kFar - n + row, start + n, kFar): kFar 2^34 is 2^64, so the address is that of
//   start + row, and rows past n are outside of the map. TMA reads them as zero: a neighbour's NaN stays there.
constexpr int kFar = 1 << 30;

}  // namespace tilekiln::cuda
