// The threads of the library: one pool, started when first needed, shared by streams and parallel loops.
//
// Threads are detached and sleep when there is nothing to do; the library is never unloaded (it is linked with -z nodelete), so
// nothing has to be joined at exit. A forked child starts afresh: it has no pool thread until it needs one.
#pragma once
#include <stdint.h>

namespace tilekiln {

// Calls work(context) in this thread and, as they come free, in up to `helpers` pool threads; returns when this thread's call
// and every helper's call that began have ended. Helpers are a hope: work must be complete when this thread's call ends even
// if none comes (claim from a shared counter). So it cannot deadlock, however deep it is nested.
void run_with_helpers(int helpers, void (*work)(void* context), void* context) noexcept;

// Waits a moment without sleeping, so that work which follows at once is met without a system call. Tells whether `ready` held.
template <class Ready>
inline bool spin(Ready&& ready) {
  // About 2 to 5 microseconds: what a wake-up costs. Longer would show as processor time of threads that do nothing.
  for (int i = 0; i < 100; ++i) {
    if (ready()) return true;
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
  }
  return ready();
}

}  // namespace tilekiln
