// SPDX-License-Identifier: MIT
/* The library for each look of a call, as Python chose it once. Reading takes no lock; replaced entries are not freed. */
#ifndef TILEKILN_TORCH_SERVED_H
#define TILEKILN_TORCH_SERVED_H

#include "settings.h"

namespace tilekiln::torch {

/* The look of a call: the properties by which its library is chosen. */
struct Look {
  int64_t operator_ = -1, given = 0, dtype = 0, ndim = 0, last = 0, other_last = 0, device_type = TILEKILN_CPU;
  bool operator==(const Look& o) const {
    return operator_ == o.operator_ && given == o.given && dtype == o.dtype && ndim == o.ndim && last == o.last &&
           other_last == o.other_last && device_type == o.device_type;
  }
  size_t hash() const {
    uint64_t sum = 0;
    for (const int64_t one : {operator_, given, dtype, ndim, last, other_last, device_type})
      sum = (sum ^ uint64_t(one)) * 0x9e3779b97f4a7c15u;
    return size_t(sum >> 56);
  }
};

/* The arguments that attention of four dimensions gives, by name. */
enum Place { kQ, kK, kV, kBias, kDout, kOut, kLse, kScale, kReturnLse, kPlaces };
constexpr const char* const kPlaceNames[kPlaces] = {
    "q", "k", "v", "bias", "dout", "out", "lse", "softmax_scale", "return_lse"};

struct Entry {
  Look look;
  Bound bound;
  int places[kPlaces];
  std::vector<std::pair<const Argument*, int>> settings; /* of attention, each with its argument of the table */
  decltype(&tilekiln_last_error) last_error = nullptr;
};

class Served {
 public:
  const Entry* find(const Look& look) const {
    const Entry* const entry = entries_[look.hash()].load(std::memory_order_acquire);
    return entry && entry->look == look ? entry : nullptr;
  }
  void put(Entry* entry) { entries_[entry->look.hash()].store(entry, std::memory_order_release); }
  void forget() {
    for (auto& entry : entries_) entry.store(nullptr, std::memory_order_release);
  }

 private:
  std::atomic<const Entry*> entries_[256] = {};
};

inline Served served;
/* Backward passes come after their forward, when libraries may have been forgotten. */
inline Served served_backward;

/* The look of this thread's last call that no library served; Python may choose one and put it. */
inline thread_local Look missed;

}  // namespace tilekiln::torch

#endif
