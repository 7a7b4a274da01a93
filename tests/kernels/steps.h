// How much of its cases an engine test visits: PROGRAM TARGET DTYPE [quick|few].
#pragma once

#include <cstring>

namespace tilekiln::test {

// Every step-th; quick: what that word means to the program. few: a 29th, for sanitizers.
inline int step_of(int argc, char** argv, int quick) {
  if (argc <= 3) return 1;
  return std::strcmp(argv[3], "few") == 0 ? 29 : std::strcmp(argv[3], "quick") == 0 ? quick : 1;
}

}  // namespace tilekiln::test
