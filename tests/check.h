// SPDX-License-Identifier: MIT
/* Checks for C and C++ test programs: CHECK says what failed, where, and the program goes on; end with `return check_result();`. */
#ifndef TILEKILN_TESTS_CHECK_H
#define TILEKILN_TESTS_CHECK_H
#include <stdio.h>
#include <string.h>

static int check_count, check_failures;

static inline int check_that(int held, const char* what, const char* file, int line) {
  ++check_count;
  if (!held) {
    ++check_failures;
    fprintf(stderr, "%s:%d: failed: %s\n", file, line, what);
  }
  return held;
}
#define CHECK(condition) check_that(!!(condition), #condition, __FILE__, __LINE__)

/* The whole text, literally. */
static inline int check_text(const char* text, const char* expected, const char* file, int line) {
  ++check_count;
  if (strcmp(text, expected) == 0) return 1;
  ++check_failures;
  fprintf(stderr, "%s:%d: text differs\n  was:      %s\n  expected: %s\n", file, line, text, expected);
  return 0;
}
#define CHECK_TEXT(text, expected) check_text(text, expected, __FILE__, __LINE__)

/* A part of the text. */
static inline int check_holds(const char* text, const char* part, const char* file, int line) {
  ++check_count;
  if (strstr(text, part) != NULL) return 1;
  ++check_failures;
  fprintf(stderr, "%s:%d: text holds no: %s\n  was: %s\n", file, line, part, text);
  return 0;
}
#define CHECK_HOLDS(text, part) check_holds(text, part, __FILE__, __LINE__)

static inline int check_result(void) {
  fprintf(stderr, "%d checks, %d failed\n", check_count, check_failures);
  return check_failures != 0 || check_count == 0;
}

#endif
