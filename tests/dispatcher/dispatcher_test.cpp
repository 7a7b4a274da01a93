// SPDX-License-Identifier: MIT
// Tests of the dispatcher in one program, PART ARGUMENT...: its headers take longer to compile than any of the parts.
#include "made.h"

using namespace made;

#include "dispatch_test.cpp"
#include "library_test.cpp"
#include "problem_test.cpp"
#include "registry_test.cpp"
#include "twin_test.cpp"

int main(int, char** words) {
  const std::string part = words[1];
  if (part == "dispatch") return dispatch_test::run();
  if (part == "problem") return problem_test::run();
  return (part == "library" ? library_test::run : part == "twin" ? twin_test::run : registry_test::run)(words + 1);
}
