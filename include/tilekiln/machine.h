/* SPDX-License-Identifier: MIT */
/* Name of a machine in tables of measured choices: one text for libraries, Python and the C++ dispatcher. */
#ifndef TILEKILN_MACHINE_H
#define TILEKILN_MACHINE_H

#include <stdio.h>
#include <string.h>
#if defined(__linux__)
#include <sched.h>
#include <sys/utsname.h>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#include <unistd.h>
#endif

/* Value of a line of /proc/cpuinfo, without its end; null where its key is another. */
static inline char* tilekiln_cpuinfo_value(char* line, const char* key) {
  const size_t length = strlen(key);
  char* const colon = strncmp(line, key, length) == 0 ? strchr(line, ':') : NULL;
  if (colon == NULL || line + length + strspn(line + length, " \t") != colon) return NULL;
  char* const value = colon + 1 + strspn(colon + 1, " \t");
  size_t end = strcspn(value, "\n");
  while (end != 0 && value[end - 1] == ' ') --end;
  value[end] = 0;
  return value;
}

/* Kind of the first processor that a file in the form of /proc/cpuinfo lists, at most `capacity` bytes, the 0 included:
   "AMD EPYC 9B14 (cpu family 25, model 17, stepping 1)". A hypervisor may call different processors by one name, and
   on Arm there is no name; the numbers tell them apart. */
static inline void tilekiln_processor(const char* path, char* to, size_t capacity) {
  static const char* const keys[] = {"cpu family",   "model", "stepping", "CPU implementer", "CPU variant", "CPU part",
                                     "CPU revision", "cpu",   "uarch",    "mvendorid",       "marchid",     "mimpid"};
  char line[512], name[128] = "unknown processor", numbers[128] = "";
#if defined(__linux__)
  struct utsname system;
  if (uname(&system) == 0) snprintf(name, sizeof(name), "%.100s", system.machine);
#elif defined(__APPLE__)
  size_t bytes = sizeof(name); /* "Apple M2"; macOS has no such file */
  if (sysctlbyname("machdep.cpu.brand_string", name, &bytes, NULL, 0) != 0) snprintf(name, sizeof(name), "Apple");
#endif
  FILE* const file = fopen(path, "r");
  int listed = 0;
  while (file != NULL && fgets(line, sizeof(line), file) != NULL) {
    /* Flags are longer than the buffer: what remains of such a line is passed over. */
    for (int c = strchr(line, '\n') == NULL ? 0 : '\n'; c != '\n' && c != EOF;) c = fgetc(file);
    if (line[0] == '\n' && listed) break;
    char* value = tilekiln_cpuinfo_value(line, "model name");
    if (value != NULL) snprintf(name, sizeof(name), "%.120s", value);
    for (size_t i = 0; value == NULL && i < sizeof(keys) / sizeof(keys[0]); ++i) {
      value = tilekiln_cpuinfo_value(line, keys[i]);
      const size_t used = strlen(numbers);
      if (value != NULL)
        snprintf(numbers + used, sizeof(numbers) - used, "%s%s %.20s", used ? ", " : "", keys[i], value);
    }
    listed |= value != NULL;
  }
  if (file != NULL) fclose(file);
  snprintf(to, capacity, "%s%s%s%s", name, numbers[0] ? " (" : "", numbers, numbers[0] ? ")" : "");
}

/* Writes at most `capacity` bytes, the 0 included: the kind of processor and how many cores this process may use,
   "AMD EPYC 9B14 (cpu family 25, model 17, stepping 1), 2 cores". */
static inline void tilekiln_machine(char* to, size_t capacity) {
  char processor[288];
  tilekiln_processor("/proc/cpuinfo", processor, sizeof(processor));
  int cores = 0;
#if defined(__linux__)
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) cores = CPU_COUNT(&set);
#elif defined(__APPLE__)
  cores = (int)sysconf(_SC_NPROCESSORS_ONLN); /* threads cannot be kept to some of them */
#endif
  snprintf(to, capacity, "%s, %d cores", processor, cores);
}

#endif
