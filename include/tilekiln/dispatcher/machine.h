/* Name of a machine in tables of measured choices: one text for libraries and for the C++ dispatcher. */
#ifndef TILEKILN_DISPATCHER_MACHINE_H
#define TILEKILN_DISPATCHER_MACHINE_H

#include <stdio.h>
#include <string.h>
#if defined(__linux__)
#include <sched.h>
#endif

/* Writes at most `capacity` bytes, the 0 included: "AMD EPYC 9B14, 2 cores", the processor and how many cores this process may use. */
static inline void tilekiln_machine(char* to, size_t capacity) {
  char line[512], name[256] = "unknown processor";
  FILE* const file = fopen("/proc/cpuinfo", "r");
  while (file != NULL && fgets(line, sizeof(line), file) != NULL) {
    const char* text = strncmp(line, "model name", 10) == 0 ? strchr(line, ':') : NULL;
    if (text == NULL) continue;
    text += 1 + strspn(text + 1, " ");
    snprintf(name, sizeof(name), "%.*s", (int)strcspn(text, "\n"), text);
    for (size_t end = strlen(name); end != 0 && name[end - 1] == ' ';) name[--end] = 0;
    break;
  }
  if (file != NULL) fclose(file);
  int cores = 0;
#if defined(__linux__)
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) cores = CPU_COUNT(&set);
#endif
  snprintf(to, capacity, "%s, %d cores", name, cores);
}

#endif
