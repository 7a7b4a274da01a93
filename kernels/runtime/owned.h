// SPDX-License-Identifier: MIT
// One value on the heap, or none. A std::unique_ptr in the type of a call would bring <memory> into every host unit, which
// costs the compiler 0.3 s each.
#pragma once

namespace tilekiln {

template <class T>
class Owned {
 public:
  Owned() = default;
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  Owned(Owned&& other) noexcept : value_(other.value_) { other.value_ = nullptr; }
  Owned& operator=(Owned&& other) noexcept {
    T* const taken = other.value_;
    other.value_ = nullptr;
    reset(taken);
    return *this;
  }
  ~Owned() { delete value_; }
  // Takes over what `new` made; what was held goes.
  void reset(T* value) {
    T* const old = value_;
    value_ = value;
    delete old;
  }
  T& operator*() const { return *value_; }
  T* operator->() const { return value_; }

 private:
  T* value_ = nullptr;
};

}  // namespace tilekiln
