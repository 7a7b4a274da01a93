// SPDX-License-Identifier: MIT
// The C interface of the executor. Every function that can fail returns 0 on success and writes a text otherwise.
#pragma once
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define AMDGCN_API __attribute__((visibility("default")))

typedef struct amdgcn_machine amdgcn_machine;

/// A kernel's launch. The fields below `kernarg` are those of its kernel descriptor (LLVM, AMDGPUUsage).
typedef struct {
  uint64_t entry;    // address of the first instruction
  uint64_t kernarg;  // address of the packed arguments, from amdgcn_block
  uint32_t groups[3], threads[3];
  uint32_t lds_bytes, scratch_bytes, resources1, resources2, properties, preload;
} amdgcn_dispatch;

typedef struct {
  uint64_t seed;         // of the interleaving of waves; 0: one after the other
  int32_t ignore_waits;  // 1: as if every wait were missing
  int32_t permute_k;     // 1: the order of k inside a matrix product is another
  int32_t races;         // 0: no check for races
} amdgcn_options;

/// architecture: 0x90a, 0x942, 0x950, 0x1100 or 0x1201. disassembly: what llvm-objdump -d --mcpu prints. NULL: see error.
AMDGCN_API amdgcn_machine* amdgcn_load(int architecture, const char* disassembly, char* error, size_t capacity);
AMDGCN_API void amdgcn_unload(amdgcn_machine*);

/// Makes `bytes` at `memory` visible to kernels and returns their address. defined: 0 where they count as never written.
/// The caller keeps memory alive until amdgcn_clear.
AMDGCN_API uint64_t amdgcn_block(amdgcn_machine*, void* memory, uint64_t bytes, int defined, int read_only,
                                 const char* name);
AMDGCN_API void amdgcn_clear(amdgcn_machine*);
/// A block of memory that outlives a launch: `defined` has a byte for each of its bytes, whether it counts as written, and
/// is kept up to date. All three live until amdgcn_clear.
AMDGCN_API uint64_t amdgcn_known_block(amdgcn_machine*, void* memory, uint64_t bytes, uint8_t* defined,
                                       const char* name);

AMDGCN_API int amdgcn_launch(amdgcn_machine*, const amdgcn_dispatch*, const amdgcn_options*, char* error,
                             size_t capacity);

/// Lines "address executions operations" of the waits: how many outstanding operations each has waited for. As
/// amdgcn_coverage, whose size it gives.
AMDGCN_API size_t amdgcn_waits(const amdgcn_machine*, char* text, size_t capacity);

/// Wave instructions executed since the load.
AMDGCN_API uint64_t amdgcn_executed(const amdgcn_machine*);
/// Lines "mnemonic executions places" of the loaded program; returns the length of the whole text.
AMDGCN_API size_t amdgcn_coverage(const amdgcn_machine*, char* text, size_t capacity);
/// Every mnemonic that is known, one a line; returns the length of the whole text.
AMDGCN_API size_t amdgcn_mnemonics(char* text, size_t capacity);

#ifdef __cplusplus
}
#endif
