// SPDX-License-Identifier: MIT
/* Large results in huge pages, where Linux gives them to those that ask. */
#ifndef TILEKILN_BINDING_HUGE_PAGES_H
#define TILEKILN_BINDING_HUGE_PAGES_H

#include <stdint.h>
#ifdef __linux__
#include <sys/mman.h>
#endif

/* Asks for them in the whole ones of a new array of 4 MiB and more, as NumPy does. malloc returns what is large to the system whenever it
 * is freed, and in pages of 4096 bytes a norm of 8192 rows of 4096 waits most of its time for them. Advice: what fails changes nothing. */
static inline void ask_for_huge_pages(void* data, int64_t bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  const uintptr_t huge = (uintptr_t)2 << 20, begin = ((uintptr_t)data + huge - 1) / huge * huge;
  const uintptr_t end = ((uintptr_t)data + (uintptr_t)bytes) / huge * huge;
  if (data && bytes >= (int64_t)4 << 20 && end > begin) madvise((void*)begin, end - begin, MADV_HUGEPAGE);
#else
  (void)data, (void)bytes;
#endif
}

#endif
