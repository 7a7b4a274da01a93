// SPDX-License-Identifier: MIT
// The C interface of the executor. Every function that can fail returns 0 on success and writes a text otherwise.
#pragma once
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define PTX_API __attribute__((visibility("default")))

typedef struct ptx_machine ptx_machine;

typedef struct {
  const char* kernel;
  uint32_t grid[3], threads[3];
  uint32_t shared_bytes;   // dynamic
  int32_t together;        // 1: all blocks are resident at once, as a cooperative launch's
  uint32_t resident;       // else so many
  uint32_t cluster;        // blocks of a cluster, where the kernel does not say so itself; 0: as it says
  const void* parameters;  // packed, as the kernel declares them
  size_t parameter_bytes;
} ptx_launch_of;

typedef struct {
  uint64_t seed;  // of the interleaving of warps; 0: one after the other
  int32_t races;  // 0: no check for races
  uint64_t most;  // warp instructions of a launch; 0: 400 million
} ptx_options;

/// NULL: see error.
PTX_API ptx_machine* ptx_load(const char* text, char* error, size_t capacity);
PTX_API void ptx_unload(ptx_machine*);
/// Bytes of a kernel's parameters; SIZE_MAX: there is no such kernel.
PTX_API size_t ptx_parameter_bytes(const ptx_machine*, const char* kernel);
/// Blocks of an existing kernel that a processor has room for at once, by its launch bounds.
PTX_API uint32_t ptx_least_blocks(const ptx_machine*, const char* kernel);
PTX_API int ptx_launch(ptx_machine*, const ptx_launch_of*, const ptx_options*, char* error, size_t capacity);
/// Warp instructions executed since the load.
PTX_API uint64_t ptx_executed(const ptx_machine*);
/// Lines "opcode executions places" of the module; returns the length of the whole text.
PTX_API size_t ptx_coverage(const ptx_machine*, char* text, size_t capacity);

/// Memory of the device: the same for all machines of the process. 0: there is no room.
PTX_API uint64_t ptx_allocate(size_t bytes);
PTX_API int ptx_release(uint64_t address);
/// Copies by address, to and from the host; what a copy writes counts as written.
PTX_API int ptx_copy(uint64_t to, uint64_t from, size_t bytes);
/// A CUtensorMap of 128 bytes: the rules of cuTensorMapEncodeTiled. 1: it breaks one.
PTX_API int ptx_tensor_map(void* map, int type, uint32_t rank, uint64_t address, const uint64_t* lengths,
                           const uint64_t* strides, const uint32_t* box, const uint32_t* element_strides,
                           int interleave, int swizzle, int promotion, int fill);

#ifdef __cplusplus
}
#endif
