// SPDX-License-Identifier: MIT
#include "kernels/backends/cpu/stage_log.h"

#include <time.h>

#include <mutex>
#include <vector>

#include "kernels/backends/cpu/parallel.h"
#include "kernels/runtime/log.h"

namespace tilekiln {
namespace {

timespec wall_time() {
  timespec time;
  clock_gettime(CLOCK_REALTIME, &time);
  return time;
}

double microseconds(const timespec& from, const timespec& to) {
  return 1e6 * static_cast<double>(to.tv_sec - from.tv_sec) + 1e-3 * static_cast<double>(to.tv_nsec - from.tv_nsec);
}

// The share of one thread in a stage: the units it ran, and the time from its first to its last.
struct Part {
  long thread;
  timespec begin, end;
  int64_t units;
};

class Parts {
 public:
  void add(const timespec& begin, const timespec& end, int64_t units) {
    const long thread = thread_number();
    const std::lock_guard lock(mutex_);
    for (Part& part : parts_) {
      if (part.thread != thread) continue;
      part.end = end;
      part.units += units;
      return;
    }
    parts_.push_back({thread, begin, end, units});
  }
  const std::vector<Part>& all() const { return parts_; }

 private:
  std::mutex mutex_;
  std::vector<Part> parts_;
};

}  // namespace

tilekiln_status run_told(const Launch& launch) {
  Parts parts;
  TILEKILN_TRY(run_ranges(*launch.run, launch.units, launch.work, launch.scratch_bytes, launch.stretches,
                          [&](int64_t first, int64_t last, void* scratch) {
                            const timespec begin = wall_time();
                            launch.unit(launch.context, first, last, scratch);
                            parts.add(begin, wall_time(), last - first);
                          }));
  for (const Part& part : parts.all()) {
    uint32_t index = 0;
    char buffer[name_capacity + 256];
    Text text(buffer, sizeof(buffer));
    add_log_head(text, part.end, part.thread);
    text.add("stage %s: %lld of %lld units in %.1f us by ", family_of(table, launch.choice->instance, &index).name,
             static_cast<long long>(part.units), static_cast<long long>(launch.units),
             microseconds(part.begin, part.end));
    add_name(text, table, launch.choice->instance);
    write_log_line(buffer);
  }
  return TILEKILN_OK;
}

}  // namespace tilekiln
