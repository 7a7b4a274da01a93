// SPDX-License-Identifier: MIT
#include "kernels/runtime/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#if defined(__linux__)
#include <sys/syscall.h>
#elif defined(__APPLE__)
#include <pthread.h>
#endif

#include "kernels/runtime/environment.h"

namespace tilekiln {
namespace {

thread_local Chosen* chosen_of_call = nullptr;

int open_log() {
  const char* file = environment().log_file;
  if (*file == 0) return STDERR_FILENO;
  const int opened = open(file, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (opened >= 0) return opened;
  fprintf(stderr, "tilekiln: TILEKILN_LOG_FILE: was \"%s\", which cannot be written (%s); the log goes to stderr\n",
          file, strerror(errno));
  return STDERR_FILENO;
}

}  // namespace

long thread_number() {
#if defined(__linux__)
  return syscall(SYS_gettid);
#elif defined(__APPLE__)
  uint64_t number = 0;
  pthread_threadid_np(nullptr, &number);
  return static_cast<long>(number);
#else
  return 0;
#endif
}

void add_log_head(Text& text, const timespec& at, long thread) {
  tm local;
  localtime_r(&at.tv_sec, &local);
  text.add("tilekiln: %02d:%02d:%02d.%06ld %ld/%ld ", local.tm_hour, local.tm_min, local.tm_sec, at.tv_nsec / 1000,
           static_cast<long>(getpid()), thread);
}

void write_log(const char* text, size_t length) {
  static const int log = open_log();
  while (length != 0) {
    const ssize_t written = write(log, text, length);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;  // a log that nobody takes must not stop the calls
    text += written;
    length -= static_cast<size_t>(written);
  }
}

void write_log_line(char* line) {
  const size_t length = strlen(line);
  line[length] = '\n';
  write_log(line, length + 1);
}

Chosen::Chosen() { chosen_of_call = this; }
Chosen::~Chosen() { chosen_of_call = nullptr; }

void Chosen::note(const Table& table, int64_t instance) {
  Chosen* const to = chosen_of_call;
  if (to == nullptr || to->count_ == TILEKILN_MAX_STAGES) return;
  to->table_ = &table;
  to->instances_[to->count_++] = instance;
}

}  // namespace tilekiln
