// SPDX-License-Identifier: MIT
#include "kernels/runtime/environment.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#if defined(__linux__)
#include <sched.h>
#endif

namespace tilekiln {
namespace {

// A number from 1 to max_threads, optionally followed by `end`; 0 when the text is not one.
int parse_threads(const char* text, char end) {
  char* rest = nullptr;
  const long value = strtol(text, &rest, 10);
  if (rest == text || (*rest != 0 && *rest != end)) return 0;
  return value < 1 || value > max_threads ? 0 : static_cast<int>(value);
}

int cores() {
#if defined(__linux__)
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0 && CPU_COUNT(&set) > 0) return CPU_COUNT(&set);
#endif
  const long online = sysconf(_SC_NPROCESSORS_ONLN);
  if (online < 1) return 1;
  return online > max_threads ? max_threads : static_cast<int>(online);
}

bool verbose(const char* topic) {
  const char* text = getenv("TILEKILN_VERBOSE");
  if (text == nullptr || *text == 0) return false;
  bool found = false;
  while (*text != 0) {
    const size_t length = strcspn(text, ",");
    const bool match = length == strlen(topic) && strncmp(text, topic, length) == 0;
    if (!match && length != 0) {
      fprintf(stderr, "tilekiln: TILEKILN_VERBOSE: was \"%.*s\", must be dispatch; ignored\n", static_cast<int>(length),
              text);
    }
    found = found || match;
    text += length + (text[length] == ',' ? 1 : 0);
  }
  return found;
}

// A copy, as a later setenv may move the environment; "" when unset.
const char* copied(const char* text) {
  const char* copy = text == nullptr || *text == 0 ? "" : strdup(text);
  return copy == nullptr ? "" : copy;
}

bool tuned() {
  const char* text = getenv("TILEKILN_TUNED");
  if (text == nullptr || *text == 0 || strcmp(text, "yes") == 0) return true;
  if (strcmp(text, "no") == 0) return false;
  fprintf(stderr, "tilekiln: TILEKILN_TUNED: was \"%s\", must be yes or no; ignored\n", text);
  return true;
}

LogLevel log_level() {
  const char* text = getenv("TILEKILN_LOG");
  if (text == nullptr || *text == 0 || strcmp(text, "off") == 0 || strcmp(text, "0") == 0) return LogLevel::off;
  if (strcmp(text, "calls") == 0 || strcmp(text, "1") == 0) return LogLevel::calls;
  if (strcmp(text, "refusals") == 0 || strcmp(text, "2") == 0) return LogLevel::refusals;
  if (strcmp(text, "stages") == 0 || strcmp(text, "3") == 0) return LogLevel::stages;
  fprintf(stderr,
          "tilekiln: TILEKILN_LOG: was \"%s\", must be off (0), calls (1), refusals (2) or stages (3); ignored\n",
          text);
  return LogLevel::off;
}

// "800 MB", "2 GB", "5000": bytes.
uint64_t dump_size() {
  constexpr uint64_t otherwise = 4'000'000'000;
  const char* text = getenv("TILEKILN_DUMP_SIZE");
  if (text == nullptr || *text == 0) return otherwise;
  char* unit = nullptr;
  const double number = strtod(text, &unit);
  unit += strspn(unit, " ");
  const double factor = *unit == 0 ? 1 : strcmp(unit, "MB") == 0 ? 1e6 : strcmp(unit, "GB") == 0 ? 1e9 : 0;
  if (number >= 0 && number * factor <= 1e18 && factor != 0) return static_cast<uint64_t>(number * factor);
  fprintf(stderr, "tilekiln: TILEKILN_DUMP_SIZE: was \"%s\", must be a size such as \"800 MB\" or \"2 GB\"; ignored\n",
          text);
  return otherwise;
}

Environment read() {
  Environment result = {};
  result.isa = copied(getenv("TILEKILN_ISA"));
  result.target = copied(getenv("TILEKILN_TARGET"));
  result.tuned = tuned();
  result.verbose_dispatch = verbose("dispatch");
  result.log = log_level();
  result.log_file = copied(getenv("TILEKILN_LOG_FILE"));
  result.dump = copied(getenv("TILEKILN_DUMP"));
  result.dump_bytes = dump_size();
  result.logs_calls = result.log != LogLevel::off || *result.dump != 0;
  result.tells_choices = result.verbose_dispatch || result.log != LogLevel::off;
  const char* own = getenv("TILEKILN_NUM_THREADS");
  if (own != nullptr && *own != 0) {
    result.threads = parse_threads(own, 0);
    result.threads_text = strdup(own);
    return result;
  }
  // OpenMP takes a list, one entry per nesting level; the first is ours. A value OpenMP would refuse is not ours to judge.
  const char* openmp = getenv("OMP_NUM_THREADS");
  if (openmp != nullptr) result.threads = parse_threads(openmp, ',');
  if (result.threads == 0) result.threads = cores();
  return result;
}

}  // namespace

const Environment& environment() {
  static const Environment result = read();
  return result;
}

tilekiln_status thread_count(int requested, int* threads) {
  if (requested < 0 || requested > max_threads) {
    return fail_argument("num_threads", "was %d, must be 0 (the environment decides) or from 1 to %d", requested,
                         max_threads);
  }
  *threads = requested != 0 ? requested : environment().threads;
  if (*threads == 0) {
    return fail_argument("TILEKILN_NUM_THREADS", "was \"%s\", must be a number from 1 to %d",
                         environment().threads_text, max_threads);
  }
  return TILEKILN_OK;
}

}  // namespace tilekiln
