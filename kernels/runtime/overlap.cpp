// SPDX-License-Identifier: MIT
// Overlap of strided arrays, whether they share memory: an equation of few bounded unknowns, solved exactly.
//
// Element (x0, x1, ...) of an array lies at data + sum of stride_i * x_i, 0 <= x_i < shape_i. Two arrays share a byte when the
// difference of two such sums equals the difference of their starts. With the signs turned so that every coefficient is
// positive, that asks for a way to make a number from bounded multiples of given numbers. Real arrays (slices of one buffer)
// have nested strides, so a depth-first search from the largest coefficient finds one candidate per level.
#include "kernels/runtime/array.h"

namespace tilekiln {
namespace {

struct Term {
  int64_t step, count;  // contributes step * x, 0 <= x <= count, step > 0
};

// Space for the dimensions of two arrays and the bytes of an element of each.
constexpr int max_terms = 2 * TILEKILN_MAX_NDIM + 2;

class Search {
 public:
  // Adds step * x with 0 <= x <= count. A negative step counts from its other end.
  void add(int64_t step, int64_t count) {
    if (step == 0 || count <= 0) return;
    if (step < 0) {
      target_ -= static_cast<__int128>(step) * count;
      step = -step;
    }
    int at = 0;
    while (at < terms_ && term_[at].step > step) ++at;
    if (at < terms_ && term_[at].step == step) {
      term_[at].count += count;
      return;
    }
    for (int i = terms_; i > at; --i) term_[i] = term_[i - 1];
    term_[at] = {step, count};
    ++terms_;
  }
  // Is there a choice whose sum is `target`?
  bool reaches(__int128 target) {
    __int128 sum = 0;
    int64_t divisor = 0;
    for (int i = terms_ - 1; i >= 0; --i) {
      sum += static_cast<__int128>(term_[i].step) * term_[i].count;
      divisor = gcd(divisor, term_[i].step);
      reach_[i] = sum;
      divisor_[i] = divisor;
    }
    work_ = 0;
    return descend(0, target_ + target);
  }

 private:
  static int64_t gcd(int64_t a, int64_t b) {
    while (b != 0) {
      const int64_t rest = a % b;
      a = b;
      b = rest;
    }
    return a;
  }
  bool descend(int level, __int128 target) {
    if (target == 0) return true;
    if (level == terms_ || target < 0 || target > reach_[level] || target % divisor_[level] != 0) return false;
    if (++work_ > 20000) return true;
    const Term& term = term_[level];
    const __int128 below = level + 1 < terms_ ? reach_[level + 1] : 0;
    __int128 most = target / term.step;
    if (most > term.count) most = term.count;
    const __int128 least = target > below ? (target - below + term.step - 1) / term.step : 0;
    for (__int128 x = most; x >= least; --x) {
      if (descend(level + 1, target - x * term.step)) return true;
      if (work_ > 20000) return true;
    }
    return false;
  }

  Term term_[max_terms];
  __int128 reach_[max_terms];
  int64_t divisor_[max_terms];
  __int128 target_ = 0;
  int terms_ = 0, work_ = 0;
};

}  // namespace

bool overlap(const Array& a, const Array& b) {
  if (a.empty() || b.empty() || a.first >= b.last || b.first >= a.last) return false;
  const int64_t bytes_a = dtype_bytes(a.dtype), bytes_b = dtype_bytes(b.dtype);
  Search search;
  for (int i = 0; i < a.ndim; ++i) search.add(a.stride[i] * bytes_a, a.shape[i] - 1);
  for (int i = 0; i < b.ndim; ++i) search.add(-b.stride[i] * bytes_b, b.shape[i] - 1);
  search.add(1, bytes_a - 1);
  search.add(-1, bytes_b - 1);
  return search.reaches(static_cast<__int128>(reinterpret_cast<uint64_t>(b.data)) - reinterpret_cast<uint64_t>(a.data));
}

bool overlaps_itself(const Array& a) {
  if (a.empty()) return false;
  // Nested strides, the common case: each step clears all that the smaller ones reach.
  int64_t step[TILEKILN_MAX_NDIM], length[TILEKILN_MAX_NDIM];
  int count = 0;
  for (int i = 0; i < a.ndim; ++i) {
    if (a.shape[i] <= 1) continue;
    const int64_t size = a.stride[i] < 0 ? -a.stride[i] : a.stride[i];
    int at = count++;
    for (; at > 0 && step[at - 1] > size; --at) {
      step[at] = step[at - 1];
      length[at] = length[at - 1];
    }
    step[at] = size;
    length[at] = a.shape[i];
  }
  int64_t reach = 0;
  bool nested = true;
  for (int i = 0; i < count; ++i) {
    if (step[i] == 0) return true;
    nested = nested && step[i] > reach;
    reach += step[i] * (length[i] - 1);
  }
  if (nested) return false;
  // Two different elements at one address: some dimension i differs by d >= 1, the others by anything.
  for (int i = 0; i < count; ++i) {
    Search search;
    __int128 target = -static_cast<__int128>(step[i]);
    search.add(step[i], length[i] - 2);
    for (int j = 0; j < count; ++j) {
      if (j == i) continue;
      search.add(step[j], 2 * (length[j] - 1));
      target += static_cast<__int128>(step[j]) * (length[j] - 1);
    }
    if (search.reaches(target)) return true;
  }
  return false;
}

}  // namespace tilekiln
