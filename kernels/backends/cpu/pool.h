// SPDX-License-Identifier: MIT
// The threads of the library: one pool, started when first needed, shared by streams and parallel loops.
//
// Threads are detached and sleep when there is nothing to do; the library is never unloaded (it is linked with -z nodelete), so
// nothing has to be joined at exit. A forked child starts afresh: it has no pool thread until it needs one.
//
// Helpers use the cores that their caller may use (sched_setaffinity, taskset), as that was within the last millisecond. Where another
// process wants a helper's core too, the helper gives it up between calls rather than have it taken within one, while the
// caller waits.
#pragma once
#include <stdint.h>

namespace tilekiln {

// Calls work(context) in this thread and, as they come free, in up to `helpers` pool threads; returns when this thread's call
// and every helper's call that began have ended. Helpers are a hope: work must be complete when this thread's call ends even
// if none comes (claim from a shared counter). So it cannot deadlock, however deep it is nested.
void run_with_helpers(int helpers, void (*work)(void* context), void* context) noexcept;

// Tells whether this thread may use one core only: a helper would take turns with it.
bool has_one_core() noexcept;

}  // namespace tilekiln
