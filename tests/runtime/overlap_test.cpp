// SPDX-License-Identifier: MIT
// overlap() and overlaps_itself() against listing every byte, over random small strided arrays.
#include <set>

#include "check.h"
#include "kernels/runtime/array.h"

using namespace tilekiln;

namespace {

unsigned state = 7;
int pick(int low, int high) {
  state = state * 1664525u + 1013904223u;
  return low + static_cast<int>((state >> 10) % static_cast<unsigned>(high - low + 1));
}

alignas(64) char memory[4096];

Array random_array(bool far) {
  const int dtypes[] = {TILEKILN_UINT8, TILEKILN_BF16, TILEKILN_FP32};
  for (;;) {
    tilekiln_tensor t = {};
    t.dtype = dtypes[pick(0, 2)];
    t.device_type = TILEKILN_CPU;
    t.ndim = pick(0, 4);
    t.data = memory + 2048 + 4 * pick(-20, far ? 60 : 20);
    for (int i = 0; i < t.ndim; ++i) {
      t.shape[i] = pick(0, 19) == 0 ? 0 : pick(1, 4);
      t.stride[i] = pick(-9, 24);
    }
    Array array;
    if (check_array("a", t, &array) == TILEKILN_OK) return array;
  }
}

// The byte addresses; `twice` is set when an element shares one with another element.
std::set<uint64_t> bytes_of(const Array& a, bool* twice) {
  std::set<uint64_t> bytes;
  *twice = false;
  int64_t index[TILEKILN_MAX_NDIM] = {};
  int64_t count = 1;
  for (int i = 0; i < a.ndim; ++i) count *= a.shape[i];
  for (int64_t n = 0; n < count; ++n) {
    int64_t offset = 0, rest = n;
    for (int i = a.ndim - 1; i >= 0; --i) {
      index[i] = rest % a.shape[i];
      rest /= a.shape[i];
      offset += index[i] * a.stride[i];
    }
    const uint64_t first = reinterpret_cast<uint64_t>(a.data) + static_cast<uint64_t>(offset * dtype_bytes(a.dtype));
    *twice = *twice || bytes.count(first) != 0;
    for (int64_t b = 0; b < dtype_bytes(a.dtype); ++b) bytes.insert(first + static_cast<uint64_t>(b));
  }
  return bytes;
}

}  // namespace

int main() {
  int shared = 0, apart = 0, inside = 0, folded = 0;
  for (int round = 0; round < 20000; ++round) {
    const Array a = random_array(false), b = random_array(round % 2 == 0);
    bool twice_a = false, twice_b = false;
    const std::set<uint64_t> bytes_a = bytes_of(a, &twice_a), bytes_b = bytes_of(b, &twice_b);
    bool common = false;
    for (uint64_t byte : bytes_a) common = common || bytes_b.count(byte) != 0;
    CHECK(overlap(a, b) == common);
    CHECK(overlap(b, a) == common);
    CHECK(overlaps_itself(a) == twice_a);
    if (!bytes_a.empty()) {
      CHECK(a.first == *bytes_a.begin() && a.last == *bytes_a.rbegin() + 1);
      inside += !common && a.first < b.last && b.first < a.last;
    }
    shared += common;
    apart += !common;
    folded += twice_a;
  }
  // The rounds held every kind, interleaved arrays that do not touch among them.
  CHECK(shared > 1000 && apart > 1000 && inside > 300 && folded > 1000);
  // Real sizes are answered at once: slices of one packed buffer of 4 GB.
  tilekiln_tensor t = {};
  t.dtype = TILEKILN_BF16;
  t.device_type = TILEKILN_CPU;
  t.ndim = 4;
  t.data = memory;
  const int64_t shape[] = {64, 8192, 32, 128}, stride[] = {8192 * 3 * 4096, 3 * 4096, 128, 1};
  for (int i = 0; i < 4; ++i) t.shape[i] = shape[i], t.stride[i] = stride[i];
  Array q, k;
  CHECK(check_array("q", t, &q) == TILEKILN_OK);
  t.data = memory + 2 * 4096;
  CHECK(check_array("k", t, &k) == TILEKILN_OK);
  CHECK(!overlap(q, k) && !overlaps_itself(q));
  t.data = memory + 2 * 4096 - 2;
  CHECK(check_array("k", t, &k) == TILEKILN_OK);
  CHECK(overlap(q, k));
  return check_result();
}
