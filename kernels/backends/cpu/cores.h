// SPDX-License-Identifier: MIT
// Cores of the host: where a thread runs, where it may, and who else wants to. Systems that tell nothing of it have one answer.
#pragma once
#if defined(__linux__)
#include <sched.h>
#include <sys/resource.h>
#endif

namespace tilekiln {

// The core on which this thread runs; -1 where the system does not tell.
inline int this_core() {
#if defined(__linux__)
  return sched_getcpu();
#else
  return -1;
#endif
}

// Count of the times that the system took this thread's core for another that wanted it; a core given up counts too.
inline long times_taken() {
#if defined(__linux__)
  rusage usage;
  if (getrusage(RUSAGE_THREAD, &usage) == 0) return usage.ru_nivcsw;
#endif
  return 0;
}

#if defined(__linux__)
// The cores that a thread may use.
class Cores {
 public:
  // Reads the cores of this thread. Unknown on systems of more cores than the C library's type counts.
  void read() { known_ = sched_getaffinity(0, sizeof(set_), &set_) == 0; }
  bool known() const { return known_; }
  bool single() const { return known_ && CPU_COUNT(&set_) == 1; }
  // Makes them this thread's. Whether the system did.
  bool use() const { return known_ && sched_setaffinity(0, sizeof(set_), &set_) == 0; }
  // Leaves one of them out. Returns whether any is left.
  bool leave_out(int core) {
    CPU_CLR(core, &set_);
    return CPU_COUNT(&set_) > 0;
  }
  friend bool operator==(const Cores& a, const Cores& b) {
    return a.known_ == b.known_ && (!a.known_ || CPU_EQUAL(&a.set_, &b.set_));
  }

 private:
  cpu_set_t set_;
  bool known_ = false;
};
#else
class Cores {
 public:
  void read() {}
  bool known() const { return false; }
  bool single() const { return false; }
  bool use() const { return false; }
  bool leave_out(int) { return false; }
  friend bool operator==(const Cores&, const Cores&) { return true; }
};
#endif

// Moves this thread from `core` to another of those it may run on, and leaves it that choice as it was. The system places a
// thread that wakes on the core of its waker more often than one would wish: two threads of a call then take turns.
inline void leave_core(int core) {
  Cores allowed, others, now;
  allowed.read();
  others = allowed;
  if (!allowed.known() || !others.leave_out(core) || !others.use()) return;
  // An affinity that somebody else has set meanwhile stays.
  now.read();
  if (now == others) allowed.use();
}

}  // namespace tilekiln
