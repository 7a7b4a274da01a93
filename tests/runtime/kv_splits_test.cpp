// SPDX-License-Identifier: MIT
// Splits of a call, the keys of each, and the loads that reach a cache: the numbers of the facts.
#include <initializer_list>

#include "check.h"
#include "kernels/attention/kv/call.h"
#include "kernels/attention/splits.h"

using namespace tilekiln;
using namespace tilekiln::fmha;

namespace {

void heuristic() {
  // 304 compute units count as 608 workers, 256 as 512.
  const struct {
    i64 blocks, workers;
    int splits;
  } known[] = {{8, 608, 65}, {16, 608, 33}, {32, 608, 17}, {1, 608, 109}, {512, 608, 1}, {64, 512, 7}};
  for (const auto& k : known) CHECK(best_splits(k.blocks, k.workers) == k.splits);
  // Few workers, as here.
  CHECK(best_splits(1, 1) == 1 && best_splits(100, 1) == 1 && best_splits(0, 8) == 1);
  CHECK(best_splits(1, 2) == 2 && best_splits(2, 2) == 1 && best_splits(1, 4) == 4 && best_splits(3, 4) == 4);
  // No splits from 0.8 of the workers on: 608 * 0.8 = 486.4.
  CHECK(best_splits(486, 608) > 1 && best_splits(487, 608) == 1);
  for (i64 blocks = 1; blocks < 200; ++blocks) {
    for (i64 workers = 1; workers < 300; workers += 7) {
      const int splits = best_splits(blocks, workers);
      CHECK(splits >= 1 && splits <= max_splits && (splits == 1 || splits <= workers));
    }
  }
  // Rows of 64; a single query of grouped heads counts by its key heads, unless a mask or a bias tells them apart.
  CHECK(blocks_of(2, 32, 32, 1, true) == 64 && blocks_of(2, 32, 8, 1, true) == 16 &&
        blocks_of(2, 32, 8, 1, false) == 64);
  CHECK(blocks_of(1, 32, 8, 65, true) == 64 && blocks_of(1, 128, 1, 1, true) == 2 && blocks_of(0, 32, 8, 1, true) == 0);
}

void ranges() {
  CHECK(keys_of_split(100, 8, 7).begin == 91 && keys_of_split(100, 8, 7).end == 100);
  CHECK(keys_of_split(100, 8, 0).begin == 0 && keys_of_split(100, 8, 0).end == 13);
  for (int split : {5, 6, 7}) CHECK(keys_of_split(5, 8, split).begin == keys_of_split(5, 8, split).end);
  for (int keys : {0, 1, 2, 5, 63, 64, 65, 1000, 1 << 29}) {
    for (int splits = 1; splits <= max_splits; ++splits) {
      int at = 0;
      for (int split = 0; split < splits; ++split) {
        const KeyRange range = keys_of_split(keys, splits, split);
        if (range.begin == range.end) continue;
        CHECK(range.begin == at && range.end > at);
        at = range.end;
      }
      CHECK(at == keys);
    }
  }
}

// The reach of 32-bit offsets is a difference of addresses: only strictly beyond 2^31 - 1 bytes is too far.
void bytes() {
  constexpr int64_t page = 16 * 8 * 128;  // elements
  CHECK(bytes_between(65535, page, 2) == INT32_MAX - 32767 && bytes_between(65536, page, 2) == int64_t(1) << 31);
  CHECK(bytes_between(65536, -page, 2) == int64_t(1) << 31 && bytes_between(0, page, 2) == 0);
  CHECK(bytes_between(INT64_MAX, INT64_MAX, 4) == INT64_MAX && bytes_between(1, INT64_MIN, 1) == INT64_MAX);
}

}  // namespace

int main() {
  heuristic();
  ranges();
  bytes();
  return check_result();
}
