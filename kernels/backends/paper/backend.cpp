// SPDX-License-Identifier: MIT
// A device on paper. Its memory are the mappings of files named tilekiln-paper (memfd_create) that are protected from every
// access: its own steps open them while they run, and whoever else touches them is killed. Its engines are the host's, and so
// are its streams.
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <mutex>
#include <vector>

#include "kernels/backends/cpu/parallel.h"
#include "kernels/runtime/backend.h"

namespace tilekiln {
namespace {

struct Mapping {
  void* start;
  size_t bytes;
};
std::mutex mutex;
int steps = 0;  // that run now
std::vector<Mapping> opened;

// Every protected mapping of such a file; those that a test itself looks through are readable, and not listed.
std::vector<Mapping> protected_mappings() {
  std::vector<Mapping> found;
  FILE* const maps = fopen("/proc/self/maps", "r");
  if (maps == nullptr) return found;
  char line[512];
  while (fgets(line, sizeof(line), maps) != nullptr) {
    unsigned long long start = 0, end = 0;
    char access[5] = {};
    if (strstr(line, "/memfd:tilekiln-paper") == nullptr) continue;
    if (sscanf(line, "%llx-%llx %4s", &start, &end, access) == 3 && strcmp(access, "---s") == 0)
      found.push_back({reinterpret_cast<void*>(start), static_cast<size_t>(end - start)});
  }
  fclose(maps);
  return found;
}

// Tells whether streams are recorded: while this process has a mapping of a file named tilekiln-paper-captured.
tilekiln_status captured(Device, NativeStream, bool* yes) {
  *yes = false;
  FILE* const maps = fopen("/proc/self/maps", "r");
  if (maps == nullptr) return TILEKILN_OK;
  char line[512];
  while (!*yes && fgets(line, sizeof(line), maps) != nullptr)
    *yes = strstr(line, "/memfd:tilekiln-paper-captured") != nullptr;
  fclose(maps);
  return TILEKILN_OK;
}

// The device's memory, open to this process while it lives.
class Opened {
 public:
  Opened() {
    std::lock_guard lock(mutex);
    ++steps;
    for (const Mapping& mapping : protected_mappings()) {
      if (mprotect(mapping.start, mapping.bytes, PROT_READ | PROT_WRITE) == 0) opened.push_back(mapping);
    }
  }
  Opened(const Opened&) = delete;
  ~Opened() {
    std::lock_guard lock(mutex);
    if (--steps != 0) return;
    for (const Mapping& mapping : opened) mprotect(mapping.start, mapping.bytes, PROT_NONE);
    opened.clear();
  }
};

bool has(Device device, const Target& target) { return device.id == 0 && target.supported(); }

tilekiln_status launch(Device, NativeStream, const Launch& launch) {
  const Opened memory;
  return run_ranges(
      *launch.run, launch.units, launch.work, launch.scratch_bytes, launch.stretches,
      [&](int64_t first, int64_t last, void* scratch) { launch.unit(launch.context, first, last, scratch); });
}

tilekiln_status memory(Device, NativeStream, size_t bytes, DeviceMemory* memory) {
  if (bytes == 0) {
    munmap(memory->base, memory->bytes);
    *memory = {};
    return TILEKILN_OK;
  }
  const int file = memfd_create("tilekiln-paper", 0);
  void* made = MAP_FAILED;
  if (file >= 0 && ftruncate(file, static_cast<off_t>(bytes)) == 0)
    made = mmap(nullptr, bytes, PROT_NONE, MAP_SHARED, file, 0);
  if (file >= 0) close(file);
  if (made == MAP_FAILED) return fail(TILEKILN_OUT_OF_MEMORY, "no memory for %zu bytes on paper", bytes);
  *memory = {made, made, bytes};
  return TILEKILN_OK;
}

tilekiln_status fill(Device, NativeStream, void* to, int byte, size_t bytes) {
  const Opened memory;
  memset(to, byte, bytes);
  return TILEKILN_OK;
}

tilekiln_status copy(Device, NativeStream, void* to, const void* from, size_t bytes, Direction) {
  const Opened memory;
  memcpy(to, from, bytes);
  return TILEKILN_OK;
}

tilekiln_status host(Device, NativeStream stream, tilekiln_status (*function)(void*), void* context) {
  return cpu_backend.host({}, stream, function, context);
}
tilekiln_status wait(Device, NativeStream stream) { return cpu_backend.wait({}, stream); }
tilekiln_status query(Device, NativeStream stream, bool* idle) { return cpu_backend.query({}, stream, idle); }

}  // namespace

extern const Backend paper_backend;
const Backend paper_backend = {"paper", 12,   false, true, true,  nullptr,  has,     launch, memory,
                               fill,    copy, host,  wait, query, captured, nullptr, nullptr};

}  // namespace tilekiln
