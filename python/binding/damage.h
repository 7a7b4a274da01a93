// SPDX-License-Identifier: MIT
/* Faults of a library's file that the loader does not tell, or ends the process at. */
#ifndef TILEKILN_BINDING_DAMAGE_H
#define TILEKILN_BINDING_DAMAGE_H

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#if defined(__ELF__)
#include <link.h>
#endif

#include "arrays.h"

#if defined(__ELF__)

extern const ElfW(Ehdr) __ehdr_start __attribute__((visibility("hidden"))); /* of this extension, by the linker */

static const char* machine_name(int machine) {
  return machine == EM_X86_64 ? "x86-64" : machine == EM_AARCH64 ? "AArch64" : "another kind";
}

/* The loader ends the process at a file that is shorter than its header says, such as half a copy, and finds no file where one is
 * for another kind of machine: says what is wrong, or null. What cannot be opened or is no ELF file is left to it. */
static PyObject* library_damage(const char* path) {
  ElfW(Ehdr) head;
  struct stat status;
  PyObject* damage = NULL;
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return NULL;
  if (fstat(file, &status) == 0 && S_ISREG(status.st_mode) && pread(file, &head, sizeof(head), 0) > SELFMAG &&
      memcmp(head.e_ident, ELFMAG, SELFMAG) == 0) {
    const uint64_t length = (uint64_t)status.st_size;
    uint64_t wanted = sizeof(head);
    if (length >= wanted && head.e_phentsize == sizeof(ElfW(Phdr))) {
      if (head.e_shoff) wanted = head.e_shoff + (uint64_t)head.e_shnum * head.e_shentsize;
      for (int i = 0; i < head.e_phnum; ++i) {
        ElfW(Phdr) part;
        const uint64_t place = head.e_phoff + (uint64_t)i * sizeof(part);
        if (pread(file, &part, sizeof(part), (off_t)place) != (ssize_t)sizeof(part)) {
          wanted = wanted > place + sizeof(part) ? wanted : place + sizeof(part);
          break;
        }
        if (part.p_offset + part.p_filesz > wanted) wanted = part.p_offset + part.p_filesz;
      }
    }
    if (length >= sizeof(head) && head.e_machine != __ehdr_start.e_machine)
      damage = PyUnicode_FromFormat("the file is for machines of %s, and this process is of %s; build it for this one",
                                    machine_name(head.e_machine), machine_name(__ehdr_start.e_machine));
    else if (length < wanted)
      damage = PyUnicode_FromFormat("the file is damaged: it has %llu bytes, must have %llu; build or copy it again",
                                    (unsigned long long)length, (unsigned long long)wanted);
  }
  close(file);
  return damage;
}

#else

/* macOS's loader says itself what is wrong with a file. */
static PyObject* library_damage(const char* path) {
  (void)path;
  return NULL;
}

#endif

#endif
