// SPDX-License-Identifier: MIT
// Holds key_range.h against a count of every key that every row sees: key_range SEED CASES. Exits with 1 and the problem where they differ.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <random>

using std::max, std::min;
#define TILEKILN_DEVICE static
#include "kernels/attention/key_range.h"

namespace {

constexpr int kKeys = 16, kAll = 1 << 29;
using tilekiln::fmha::KeyMask;
using tilekiln::fmha::KeyRange;
using tilekiln::fmha::SeenKeys;

struct Problem {
  KeyMask mask;
  int row, rows, keys;

  bool in_window(int i, int j) const {
    const int at = j - i - mask.shift;
    return j < keys && at >= -mask.left && at <= mask.right;
  }
  bool sees(int i, int j) const {
    return in_window(i, j) || (j < keys && j < mask.sinks && j - i - mask.shift <= mask.right);
  }
  template <class Sees> int count(int tile, const Sees& sees) const {
    int seen = 0;
    for (int i = row; i < row + rows; ++i)
      for (int j = tile * kKeys; j < (tile + 1) * kKeys; ++j) seen += sees(i, j);
    return seen;
  }
};

bool holds(const Problem& p) {
  const auto window = [&](int i, int j) { return p.in_window(i, j); };
  const auto all = [&](int i, int j) { return p.sees(i, j); };
  const KeyRange seen = KeyRange::of<kKeys>(p.mask, p.row, p.rows, p.keys);
  const KeyRange whole = KeyRange::whole<kKeys>(p.mask, p.row, p.rows, p.keys, seen.first);
  if (seen.first < 0 || seen.last < seen.first || seen.sinks > seen.first) return false;
  for (int tile = 0; tile <= p.keys / kKeys + 1; ++tile) {
    const bool in_range = tile >= seen.first && tile < seen.last, in_sinks = tile < seen.sinks;
    if ((in_range || in_sinks) != (p.count(tile, all) > 0)) return false;
    const bool is_whole = in_range && tile >= whole.first && tile < whole.last;
    if (is_whole != (in_range && p.count(tile, window) == p.rows * kKeys)) return false;
  }
  for (int i = p.row; i < p.row + p.rows; ++i)
    for (int j = 0, from = p.row; j < p.keys + kKeys; ++j)
      if (SeenKeys::hide(SeenKeys::of(p.mask, i, p.keys, from), j - from) == p.sees(i, j)) return false;
  return true;
}

}  // namespace

int main(int, char** argv) {
  std::mt19937 bits(std::atoi(argv[1]));
  const auto draw = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(bits); };
  const int cases = std::atoi(argv[2]);
  for (int i = 0; i < cases; ++i) {
    Problem p;
    p.mask.shift = draw(-60, 60);
    p.mask.left = draw(0, 1) ? draw(0, 60) : kAll;
    p.mask.right = draw(0, 1) ? draw(0, 60) : kAll;
    p.mask.sinks = p.mask.left == kAll || draw(0, 1) ? 0 : draw(0, 50);
    p.row = draw(0, 100), p.rows = draw(1, 70), p.keys = draw(0, 130);
    if (holds(p)) continue;
    std::printf("row %d rows %d keys %d shift %d left %d right %d sinks %d\n", p.row, p.rows, p.keys, p.mask.shift,
                p.mask.left, p.mask.right, p.mask.sinks);
    return 1;
  }
  std::printf("%d cases hold\n", cases);
}
