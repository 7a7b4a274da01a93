// SPDX-License-Identifier: MIT
// Arrays between inaccessible pages: one element too far, on either side, ends the program.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "kernels/backends/numbers.h"

namespace tilekiln::test {

enum class Kind { fp32, fp16, bf16, fp8, bf8, byte };

inline size_t bytes_of(Kind kind) { return kind == Kind::fp32 ? 4 : kind == Kind::fp16 || kind == Kind::bf16 ? 2 : 1; }

enum class Flush { end, start };  // the side on which the array touches the inaccessible page

class Guarded {
 public:
  const Kind kind;
  const size_t size;

  Guarded(Kind kind, size_t size, Flush flush = Flush::end) : kind(kind), size(size) {
    const size_t page = size_t(sysconf(_SC_PAGESIZE)), bytes = size * bytes_of(kind);
    const size_t inner = (bytes + page - 1) / page * page;
    mapped_ = inner + 2 * page;
    base_ = static_cast<char*>(mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (base_ == MAP_FAILED) std::abort();
    if (mprotect(base_, page, PROT_NONE) != 0 || mprotect(base_ + page + inner, page, PROT_NONE) != 0) std::abort();
    data_ = flush == Flush::end ? base_ + page + inner - bytes : base_ + page;
  }
  ~Guarded() { munmap(base_, mapped_); }
  Guarded(const Guarded&) = delete;

  void* data() const { return data_; }

  double get(size_t i) const {
    switch (kind) {
      case Kind::fp32: return at<float>(i);
      case Kind::fp16: return core::widen(at<core::fp16>(i));
      case Kind::bf16: return core::widen(at<core::bf16>(i));
      case Kind::fp8: return core::widen(at<core::fp8>(i));
      case Kind::bf8: return core::widen(at<core::bf8>(i));
      case Kind::byte: return at<uint8_t>(i);
    }
    std::abort();
  }

  void set(size_t i, float x) {
    switch (kind) {
      case Kind::fp32: return put(i, x);
      case Kind::fp16: return put_narrow<core::fp16>(i, x);
      case Kind::bf16: return put_narrow<core::bf16>(i, x);
      case Kind::fp8: return put_narrow<core::fp8>(i, x);
      case Kind::bf8: return put_narrow<core::bf8>(i, x);
      case Kind::byte: return put(i, uint8_t(x));
    }
  }

  std::vector<double> values() const {
    std::vector<double> all(size);
    for (size_t i = 0; i < size; ++i) all[i] = get(i);
    return all;
  }

  // A pattern that is a NaN in every float kind: marks what must be neither read nor written.
  void poison() { std::memset(data_, 0xff, size * bytes_of(kind)); }
  bool poisoned(size_t i) const {
    for (size_t b = 0; b < bytes_of(kind); ++b) {
      if (static_cast<unsigned char>(data_[i * bytes_of(kind) + b]) != 0xff) return false;
    }
    return true;
  }

 private:
  template <class T> T at(size_t i) const {
    T x;
    std::memcpy(&x, data_ + i * sizeof(T), sizeof(T));
    return x;
  }
  template <class T> void put(size_t i, T x) { std::memcpy(data_ + i * sizeof(T), &x, sizeof(T)); }
  template <class T> void put_narrow(size_t i, float x) {
    T y;
    core::narrow(x, y);
    put(i, y);
  }

  char* base_;
  char* data_;
  size_t mapped_;
};

}  // namespace tilekiln::test
