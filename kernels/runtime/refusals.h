// SPDX-License-Identifier: MIT
// Reasons of a refusal as data (tilekiln_refusal), from which its sentence is made.
#pragma once
#include "kernels/runtime/text.h"
#include "tilekiln/tilekiln.h"

namespace tilekiln {

// A list that allocates nothing: reasons beyond `most` and text beyond `capacity` are left out, so that an error can always be told.
class Refusals {
 public:
  static constexpr int most = 64;
  static constexpr size_t capacity = 8192;

  void clear() { count_ = 0, used_ = 0; }
  // A new reason, without any text.
  tilekiln_refusal& add(tilekiln_reason reason) noexcept;
  // The reason that was added last; there is one.
  tilekiln_refusal& last() { return list_[count_ == 0 ? 0 : count_ - 1]; }
  void set_problem(const char* problem) {
    for (int i = 0; i < count(); ++i) list_[i].problem = problem;
  }
  // Text that lasts as long as the list.
  __attribute__((format(printf, 2, 3))) const char* keep(const char* format, ...) noexcept;
  // Text that `write(Text&)` makes.
  template <class Write>
  const char* keep_written(const Write& write) {
    if (used_ == capacity) return "";
    char* const at = pool_ + used_;
    Text text(at, capacity - used_);
    write(text);
    const size_t whole = text.length() + 1;
    used_ += whole < capacity - used_ ? whole : capacity - used_;
    return at;
  }

  int count() const { return count_ < most ? count_ : most; }
  const tilekiln_refusal* begin() const { return list_; }
  const tilekiln_refusal* end() const { return list_ + count(); }

 private:
  int count_ = 0;
  size_t used_ = 0;
  tilekiln_refusal list_[most + 1] = {};  // the last takes what has no room
  char pool_[capacity] = {};
};

}  // namespace tilekiln
