// SPDX-License-Identifier: MIT
// The instance of a call: the caller's, or the dispatcher's.
#pragma once
#include "kernels/runtime/dispatch.h"

namespace tilekiln {

// `instance`: -1 for the dispatcher's choice; preference + n for n where that fits, else the same. An error names why there is none; with TILEKILN_VERBOSE=dispatch a choice
// is told on stderr.
[[nodiscard]] tilekiln_status choose(const Dispatcher& dispatcher, int64_t instance, const Query& query,
                                     Choice* choice);

constexpr int64_t preference = int64_t{1} << 62;  // more than a plan has

// The dispatcher that `choose` asks in place of one: where that would choose what the system refuses to this process, one without.
const Dispatcher& permitted(const Dispatcher& dispatcher, int64_t instance, const Query& query);

// A stage of a call: what it asks of which family, and the caller's instance of it or -1.
struct Stage {
  const char* family;
  const Query* query;
  int64_t instance = -1;
};

// The families of an operator, in the order they run.
struct Stages {
  const char* const* families;
  int count;
};

// The instances of stages in the order given, choices[i] of stages[i]. NO_KERNEL: the error is of the first that has none.
[[nodiscard]] tilekiln_status choose_stages(const Stage* stages, int count, Choice* const* choices);

// While one lives, explain_stages of its thread tells the problem alone, one line a stage: the family, the axes of its signature,
// the sizes that steer the choice.
struct Describing {
  Describing();
  ~Describing();
};

bool is_describing();

// While one lives no refusal of its thread is put into words or logged: another operator answers then, or says why not.
struct Quiet {
  Quiet();
  ~Quiet();
};
bool is_quiet();

// Adds a paragraph for each stage: its choice and what was refused, or why there is none.
[[nodiscard]] tilekiln_status explain_stages(Text& text, const Stage* stages, int count);

}  // namespace tilekiln
