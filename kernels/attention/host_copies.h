// SPDX-License-Identifier: MIT
// Index arrays of an unread call, on the host when its turn has come.
#pragma once
#include <memory>
#include <vector>

#include "kernels/attention/call.h"
#include "kernels/runtime/backend.h"

namespace tilekiln::fmha {

// The arrays of a call whose turn has come, copied from its device; the copies live as long as this.
class HostCopies {
 public:
  [[nodiscard]] tilekiln_status take(const Run& run, Array* array) {
    if (!array->given() || array->empty()) return TILEKILN_OK;
    const size_t bytes = array->last - array->first;
    char* const copy = copies_.emplace_back(new char[bytes]).get();
    const auto* const first = reinterpret_cast<const char*>(array->first);
    TILEKILN_TRY(run.backend->copy(run.device, run.native, copy, first, bytes, Direction::to_host));
    array->data = copy + (array->data - first);
    return TILEKILN_OK;
  }

 private:
  std::vector<std::unique_ptr<char[]>> copies_;
};

}  // namespace tilekiln::fmha
