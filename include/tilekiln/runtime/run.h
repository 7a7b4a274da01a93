// The threads of a call: how many, and whose.
#pragma once
#include "tilekiln/tilekiln.h"

namespace tilekiln {

struct Run {
  int threads = 1;
  bool lent = false;  // run on `executor`, not on the pool
  tilekiln_executor executor = {};
};

}  // namespace tilekiln
