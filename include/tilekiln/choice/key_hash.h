/* SPDX-License-Identifier: MIT */
/* The hash in the id of a key: one for C++ and for the Python binding. */
#ifndef TILEKILN_CHOICE_KEY_HASH_H
#define TILEKILN_CHOICE_KEY_HASH_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum { TILEKILN_KEY_DIGITS = 24 };

/* Writes 24 hexadecimal digits and a 0. text: every field of the key, each with 0x1f after it. */
static inline void tilekiln_key_digits(const char* text, size_t length, char digits[TILEKILN_KEY_DIGITS + 1]) {
  uint64_t first = 1469598103934665603u, second = 0x9e3779b97f4a7c15u;
  for (size_t i = 0; i < length; ++i) {
    first = (first ^ (unsigned char)text[i]) * 1099511628211u;
    second = (second + (unsigned char)text[i]) * 0xff51afd7ed558ccdu;
    second ^= second >> 32;
  }
  snprintf(digits, TILEKILN_KEY_DIGITS + 1, "%016llx%08llx", (unsigned long long)first,
           (unsigned long long)(second >> 32));
}

#endif
