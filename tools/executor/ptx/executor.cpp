// SPDX-License-Identifier: MIT
#include "executor.h"

#include <cstdio>
#include <cstring>
#include <map>

#include "machine.h"
#include "tensor_map.h"

using namespace ptx;

struct ptx_machine : Machine {};

namespace {

void tell(char* error, size_t capacity, const char* text) {
  if (capacity) std::snprintf(error, capacity, "%s", text);
}

}  // namespace

ptx_machine* ptx_load(const char* text, char* error, size_t capacity) {
  auto machine = std::make_unique<ptx_machine>();
  try {
    parse(machine->module, text);
  } catch (const std::exception& problem) {
    tell(error, capacity, problem.what());
    return nullptr;
  }
  return machine.release();
}

void ptx_unload(ptx_machine* machine) { delete machine; }

size_t ptx_parameter_bytes(const ptx_machine* machine, const char* kernel) {
  const auto found = machine->module.kernels.find(kernel);
  return found == machine->module.kernels.end() ? SIZE_MAX : found->second->parameter_bytes;
}

uint32_t ptx_least_blocks(const ptx_machine* machine, const char* kernel) {
  return machine->module.kernels.at(kernel)->least_blocks;
}

int ptx_launch(ptx_machine* machine, const ptx_launch_of* of, const ptx_options* options, char* error,
               size_t capacity) {
  machine->options.seed = options->seed;
  machine->options.races = options->races != 0;
  if (options->most) machine->options.most = options->most;
  const u8* bytes = static_cast<const u8*>(of->parameters);
  machine->parameters.assign(bytes, bytes + of->parameter_bytes);
  try {
    launch(*machine, {of->kernel,
                      {of->grid[0], of->grid[1], of->grid[2]},
                      {of->threads[0], of->threads[1], of->threads[2]},
                      of->shared_bytes,
                      of->together != 0,
                      of->resident,
                      of->cluster});
    return 0;
  } catch (const std::exception& problem) {
    tell(error, capacity, problem.what());
    return 1;
  }
}

uint64_t ptx_executed(const ptx_machine* machine) { return machine->executed; }

size_t ptx_coverage(const ptx_machine* machine, char* text, size_t capacity) {
  std::map<std::string, std::pair<u64, int>> found;
  for (const auto& [name, kernel] : machine->module.kernels)
    for (const Instruction& in : kernel->program) {
      found[in.opcode].first += in.executed;
      found[in.opcode].second++;
    }
  std::string whole;
  for (const auto& [name, counts] : found)
    whole += name + " " + std::to_string(counts.first) + " " + std::to_string(counts.second) + "\n";
  tell(text, capacity, whole.c_str());
  return whole.size();
}

uint64_t ptx_allocate(size_t bytes) { return reinterpret_cast<uint64_t>(allocate(bytes)); }
int ptx_release(uint64_t address) { return release(reinterpret_cast<void*>(address)) ? 0 : 1; }
int ptx_copy(uint64_t to, uint64_t from, size_t bytes) {
  return copy(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes, CopyKind::by_address) ? 0 : 1;
}

// CUDA Driver API, cuTensorMapEncodeTiled.
int ptx_tensor_map(void* to, int type, uint32_t rank, uint64_t address, const uint64_t* lengths,
                   const uint64_t* strides, const uint32_t* box, const uint32_t* element_strides, int interleave,
                   int swizzle, int, int fill) {
  static const int sizes[] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4};  // CUtensorMapDataType
  if (!to || reinterpret_cast<uintptr_t>(to) % 64 || type < 0 || type > 12 || rank < 1 || rank > 5) return 1;
  if (address == 0 || address % 16 || interleave != 0 || fill != 0 || swizzle < 0 || swizzle > 3) return 1;
  TensorMap map = {};
  map.magic = kTensorMap;
  map.address = address;
  map.rank = u8(rank);
  map.bytes = u8(sizes[type]);
  map.swizzle = u8(swizzle);
  for (uint32_t k = 0; k < rank; k++) {
    const uint32_t every = k == 0 ? 1 : element_strides[k];  // that of the first dimension has no effect
    if (lengths[k] == 0 || lengths[k] > 1ull << 32 || box[k] == 0 || box[k] > 256 || every == 0 || every > 8) return 1;
    map.lengths[k] = u32(lengths[k] - 1);
    map.box[k] = u8((box[k] - 1) / every);
    map.every[k] = u8(every);
  }
  for (uint32_t k = 0; k + 1 < rank; k++) {
    if (strides[k] % 16 || strides[k] >= 1ull << 40) return 1;
    map.strides[k] = strides[k];
  }
  const u32 row = box[0] * map.bytes, spans[] = {256 * 8, 32, 64, 128};
  if (row % 16 || row > spans[swizzle] || row > 256) return 1;
  std::memset(to, 0, 128);
  std::memcpy(to, &map, sizeof map);
  return 0;
}
