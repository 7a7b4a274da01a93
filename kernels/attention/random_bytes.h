// SPDX-License-Identifier: MIT
// Stored random bytes of dropout (the stream: kernels/backends/philox.h), on devices. The includer defines TILEKILN_DEVICE.
#pragma once

namespace tilekiln::fmha {

/// The bytes of `rows` rows of a head from `row` on, a multiple of 32, to `to`, where that row begins; in `threads` threads.
/// draw(lane, row32, key32, words): what a lane of a patch draws.
template <class Byte, class Draw>
TILEKILN_DEVICE void store_random_bytes(Byte* to, long long row_step, int row, int rows, int keys, int thread,
                                        int threads, Draw draw) {
  const int across = (keys + 31) / 32, patches = (rows + 31) / 32 * across;
  for (int at = thread; at < patches * 64; at += threads) {
    const int lane = at % 64, key32 = at / 64 % across, row32 = at / 64 / across, key = key32 * 32 + lane % 32;
    unsigned words[4];
    draw(lane, row / 32 + row32, key32, words);
#pragma unroll
    for (int j = 0; j < 16; j++) {
      const int of = row32 * 32 + j / 8 * 16 + lane / 32 * 8 + j % 8;
      if (of < rows && key < keys) to[of * row_step + key] = (unsigned char)(words[j / 4] >> j % 4 * 8);
    }
  }
}

}  // namespace tilekiln::fmha
