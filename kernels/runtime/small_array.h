// SPDX-License-Identifier: MIT
// A fixed number of plain values, in place when they are few: a call of a few sequences allocates nothing.
#pragma once
#include <stddef.h>

namespace tilekiln {

template <class T, size_t few>
class SmallArray {
 public:
  SmallArray() = default;
  ~SmallArray() { clear(); }
  SmallArray(const SmallArray&) = delete;
  SmallArray& operator=(const SmallArray&) = delete;
  SmallArray(SmallArray&& other) noexcept { take(other); }
  SmallArray& operator=(SmallArray&& other) noexcept {
    clear();
    take(other);
    return *this;
  }
  // `count` values, none initialised; what was there is lost. Throws std::bad_alloc.
  void reset(size_t count) {
    clear();
    if (count > few) data_ = new T[count];
    size_ = count;
  }
  // Forgets values at the end.
  void shrink(size_t count) { size_ = count; }
  T* begin() { return data_; }
  T* end() { return data_ + size_; }
  const T* begin() const { return data_; }
  const T* end() const { return data_ + size_; }
  T& operator[](size_t i) { return data_[i]; }
  const T& operator[](size_t i) const { return data_[i]; }
  size_t size() const { return size_; }

 private:
  void clear() {
    if (data_ != inside_) delete[] data_;
    data_ = inside_;
    size_ = 0;
  }
  void take(SmallArray& other) {
    size_ = other.size_;
    if (other.data_ != other.inside_) {
      data_ = other.data_;
      other.data_ = other.inside_;
    } else {
      for (size_t i = 0; i < size_; ++i) inside_[i] = other.inside_[i];
    }
    other.size_ = 0;
  }
  T inside_[few];
  T* data_ = inside_;
  size_t size_ = 0;
};

}  // namespace tilekiln
