// SPDX-License-Identifier: MIT
// A value that threads share. <atomic> would cost each unit that includes it 0.2 s of compile time.
#pragma once

namespace tilekiln {

// Loads acquire, stores release. Plain data of at most 8 bytes.
template <class T>
class Atomic {
 public:
  constexpr Atomic(T value = T()) : value_(value) {}
  Atomic(const Atomic&) = delete;
  T load() const { return __atomic_load_n(&value_, __ATOMIC_ACQUIRE); }
  void store(T value) { __atomic_store_n(&value_, value, __ATOMIC_RELEASE); }
  // Adds `more`; returns the value from before.
  T add(T more) { return __atomic_fetch_add(&value_, more, __ATOMIC_ACQ_REL); }
  // Compare and exchange: true if `expected` stood here and `wanted` now does; else `expected` becomes what stands here.
  bool replace(T& expected, T wanted) {
    return __atomic_compare_exchange_n(&value_, &expected, wanted, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
  }

 private:
  T value_;
};

}  // namespace tilekiln
