// Memory that a backward call makes for itself.
#pragma once
#include <stdint.h>
#include <stdlib.h>

#include "tilekiln/fmha/fwd_engine.h"
#include "tilekiln/runtime/kept.h"
#include "tilekiln/runtime/status.h"

namespace tilekiln::fmha {

// Memory of one call, aligned to 64.
class Memory {
 public:
  ~Memory() {
    free(small_);
    give_back(large_);
  }
  Memory() = default;
  Memory(const Memory&) = delete;
  // Without `zero` it holds whatever it held.
  [[nodiscard]] tilekiln_status get(u64 bytes, bool zero) {
    if (bytes == 0) return TILEKILN_OK;
    if (bytes >= large && !zero) {
      large_ = take_block(bytes);
      data_ = large_.data;
    } else {
      data_ = small_ = zero ? calloc(bytes + 64, 1) : malloc(bytes + 64);
    }
    if (data_ != nullptr) return TILEKILN_OK;
    return fail(TILEKILN_OUT_OF_MEMORY, "no memory for %llu bytes of workspace; nothing was written", bytes);
  }
  explicit operator bool() const { return data_ != nullptr; }
  template <class T> T* as() const { return reinterpret_cast<T*>((reinterpret_cast<uintptr_t>(data_) + 63) / 64 * 64); }

 private:
  static constexpr u64 large = 4 << 20;  // the C library keeps smaller ones itself
  void *data_ = nullptr, *small_ = nullptr;
  KeptBlock large_;
};

}  // namespace tilekiln::fmha
