// The instance of a call: the caller's, or the dispatcher's.
#pragma once
#include "tilekiln/runtime/dispatch.h"

namespace tilekiln {

// `instance`: -1 for the dispatcher's choice. An error names why there is none; with TILEKILN_VERBOSE=dispatch a choice
// is told on stderr.
[[nodiscard]] tilekiln_status choose(const Dispatcher& dispatcher, int64_t instance, const Query& query,
                                     Choice* choice);

}  // namespace tilekiln
