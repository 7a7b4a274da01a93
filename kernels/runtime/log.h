// SPDX-License-Identifier: MIT
// The library's log of what it does, which TILEKILN_LOG and its relatives ask for.
#pragma once
#include <time.h>

#include "kernels/runtime/names.h"
#include "kernels/runtime/table.h"
#include "tilekiln/operator.h"

namespace tilekiln {

// Number of this thread as the system counts them.
long thread_number();
// Adds the head of a line: the local time of day, the process, a thread.
void add_log_head(Text& text, const timespec& at, long thread);
// Adds lines to TILEKILN_LOG_FILE, or to stderr where it names none. `text` ends with a newline, and is written at once, so
// that lines of several threads and processes do not mix.
void write_log(const char* text, size_t length);
// A line whose newline takes the place of its final 0.
void write_log_line(char* line);

// The instances that a call chooses, noted in its thread while this lives.
class Chosen {
 public:
  Chosen();
  Chosen(const Chosen&) = delete;
  ~Chosen();
  // Nothing where no call of this thread is told.
  static void note(const Table& table, int64_t instance);
  int count() const { return count_; }
  const Table& table() const { return *table_; }
  int64_t operator[](int stage) const { return instances_[stage]; }

 private:
  const Table* table_ = nullptr;
  int64_t instances_[TILEKILN_MAX_STAGES] = {};
  int count_ = 0;
};

}  // namespace tilekiln
