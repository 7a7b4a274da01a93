// SPDX-License-Identifier: MIT
// Tiles of keys that a block of query rows sees under a mask: arithmetic on ints, of devices and hosts.
//
// The includer defines TILEKILN_DEVICE, the words that a function begins with, and has min and max of ints.
// tests/cuda/key_range.cpp holds every number against a count of keys.
#pragma once

namespace tilekiln::fmha {

// Row i sees the keys [i + shift - left, i + shift + right] and, up to i + shift + right, those below sinks.
struct KeyMask { int shift, left, right, sinks; };

// Keys that one row sees: [begin, end), and before them those below sinks, all counted from some key.
struct SeenKeys {
  int begin, end, sinks;

  // The keys of row `row`, of `keys` in all, counted from key `from`.
  TILEKILN_DEVICE SeenKeys of(const KeyMask& mask, int row, int keys, int from) {
    const int centre = row + mask.shift;
    return {centre - mask.left - from, min(keys, centre + mask.right + 1) - from, mask.sinks - from};
  }
  // No branch: ptxas would keep it, and the condition as a byte.
  TILEKILN_DEVICE bool hide(const SeenKeys& seen, int key) {
    return (key >= seen.end) | ((key < seen.begin) & (key >= seen.sinks));
  }
};

// Key tiles [first, last), then [0, sinks): the order of kernels, which go down from each end.
struct KeyRange {
  int first, last, sinks;

  // Tiles of kKeys keys of which rows [row, row + rows) see a key; there are `keys` keys. Where they see none but those
  // below sinks, the tiles of these are [first, last).
  template <int kKeys> TILEKILN_DEVICE KeyRange of(const KeyMask& mask, int row, int rows, int keys) {
    KeyRange r;
    const int top = row + mask.shift, begin = max(top - mask.left, 0), end = min(keys, top + rows + mask.right);
    r.last = tiles<kKeys>(end);
    r.first = begin < end ? begin / kKeys : r.last;
    r.sinks = min(tiles<kKeys>(mask.sinks), r.first);
    if (r.first == r.last) r.first = 0, r.last = r.sinks, r.sinks = 0;
    return r;
  }
  // Tiles from `from` on that all of these rows see whole, so that no mask is needed: none where first >= last.
  template <int kKeys> TILEKILN_DEVICE KeyRange whole(const KeyMask& mask, int row, int rows, int keys, int from) {
    const int top = row + mask.shift;
    return {max(from, tiles<kKeys>(top + rows - 1 - mask.left)),
            max(from, max(min(keys, top + mask.right + 1), 0) / kKeys), 0};
  }
  // Number of its tiles, and the tile that comes i-th.
  TILEKILN_DEVICE int count(const KeyRange& r) { return r.last - r.first + r.sinks; }
  TILEKILN_DEVICE int tile_of(const KeyRange& r, int i) {
    return i < r.last - r.first ? r.last - 1 - i : count(r) - 1 - i;
  }
  // Number of tiles that hold the keys below `end`.
  template <int kKeys> TILEKILN_DEVICE int tiles(int end) { return max(end + kKeys - 1, 0) / kKeys; }
};

}  // namespace tilekiln::fmha
