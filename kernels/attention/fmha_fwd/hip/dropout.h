// SPDX-License-Identifier: MIT
// Dropout of a tile of probabilities. Problem, Work, Query and Scores are forward.hip's, which includes this.
#pragma once

namespace tilekiln::hip {

/// Probabilities whose random byte is above the threshold become 0. A 32 x 32 patch of bytes is 64 calls of Philox of
/// 16 bytes each; the lanes of a wave share them through `bytes`, 1024 of LDS that are the wave's own. The sum of a row
/// is that before.
TILEKILN_DEVICE void drop(const Problem& p, const Work& w, const Query& query, int n, unsigned char* bytes, Scores& x) {
  const u64 offset = p.dropout_offset + u64(w.batch * p.nhead_q + w.head) * 64;
  const int row = query.row % 32, mine = row / 8 % 2 * 32 * 16 + row / 16 * 8 + row % 8;
#pragma unroll
  for (int group = 0; group < kTileK / 32; group++) {
#pragma unroll 1
    for (int call = 0; call < 64 / kLanes; call++) {
      const int at = call * kLanes + lane();
      *(U4*)(bytes + at * 16) = philox(p.dropout_seed, offset + u64(at), u32(query.row / 32), u32(n / 32 + group));
    }
    publish_to_wave();
#pragma unroll
    for (int block = group * 32 / kRows; block < (group + 1) * 32 / kRows; block++)
#pragma unroll
      for (int r = 0; r < kAccumulator; r++) {
        const int key = (block * kRows + row_of(r, query.half)) % 32;
        x.s[block][r] = bytes[mine + key * 16] <= p.dropout_threshold ? x.s[block][r] : 0.f;
      }
    publish_to_wave();  // before the next calls are written over these
  }
}

}  // namespace tilekiln::hip
