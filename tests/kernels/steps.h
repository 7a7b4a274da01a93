// SPDX-License-Identifier: MIT
// Share of its cases that an engine test visits: PROGRAM TARGET DTYPE [quick|few [FIRST]].
#pragma once

#include <cstdlib>
#include <cstring>

namespace tilekiln::test {

// Every every-th case from number `first` on.
struct Steps {
  int every = 1, first = 0;
  bool visits(int number) const { return number % every == first % every; }
};

// quick: what that word means to the program. few: a 29th, for sanitizers.
inline Steps steps_of(int argc, char** argv, int quick) {
  if (argc <= 3) return {};
  const int every = std::strcmp(argv[3], "few") == 0 ? 29 : std::strcmp(argv[3], "quick") == 0 ? quick : 1;
  return {every, argc > 4 ? std::atoi(argv[4]) : 0};
}

}  // namespace tilekiln::test
