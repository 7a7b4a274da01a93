// SPDX-License-Identifier: MIT
// Modules and launches. A library holds cubins; their PTX is looked for as a file named by the cubin's hash.
#include <elf.h>

#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <set>
#include <sstream>
#include <string>

#include "cudasim.h"
#include "executor.h"

namespace cudasim {

namespace {

struct Module {
  ptx_machine* machine = nullptr;
  std::string name;
  ~Module() {
    const char* path = std::getenv("TILEKILN_CUDASIM_COVERAGE");
    if (path) note(path);
    ptx_unload(machine);
  }
  /// Adds "name opcode executions places" lines to a file.
  void note(const char* path) const {
    std::string text(ptx_coverage(machine, nullptr, 0) + 1, '\0');
    ptx_coverage(machine, text.data(), text.size());
    std::ofstream file(path, std::ios::app);
    std::istringstream lines(text.c_str());
    for (std::string line; std::getline(lines, line);) file << name << ' ' << line << '\n';
  }
};
struct Function {
  Module* module;
  std::string name;
  unsigned shared_bytes = 48 << 10;  // dynamic, at most
};
/// Destroyed when the process ends, and with them what they have executed is written down.
std::set<std::unique_ptr<Module>>& modules() {
  static std::set<std::unique_ptr<Module>> all;
  return all;
}
std::set<Function*>& functions() {
  static std::set<Function*> all;
  return all;
}

/// FNV-1a of 64 bits.
uint64_t hash(const unsigned char* bytes, size_t count) {
  uint64_t made = 0xcbf29ce484222325ull;
  for (size_t k = 0; k < count; k++) made = (made ^ bytes[k]) * 0x100000001b3ull;
  return made;
}

/// An ELF image ends with its section headers, or with its program headers or sections behind them.
size_t elf_bytes(const unsigned char* image) {
  Elf64_Ehdr header;
  std::memcpy(&header, image, sizeof header);
  size_t end = header.e_shoff + size_t(header.e_shnum) * header.e_shentsize;
  const size_t segments = header.e_phoff + size_t(header.e_phnum) * header.e_phentsize;
  if (segments > end) end = segments;
  for (unsigned k = 0; k < header.e_shnum; k++) {
    Elf64_Shdr section;
    std::memcpy(&section, image + header.e_shoff + size_t(k) * header.e_shentsize, sizeof section);
    if (section.sh_type != SHT_NOBITS && section.sh_offset + section.sh_size > end)
      end = section.sh_offset + section.sh_size;
  }
  return end;
}

int load(Module*& made, const void* image) {
  const auto* bytes = static_cast<const unsigned char*>(image);
  const bool elf = bytes && std::memcmp(bytes, ELFMAG, SELFMAG) == 0;
  const bool fat = bytes && std::memcmp(bytes, "\x50\xed\x55\xba", 4) == 0;
  std::string text, name = "ptx";
  if (elf || fat) {
    uint64_t payload = 0;
    if (fat) std::memcpy(&payload, bytes + 8, 8);  // of the fatbin's header: version, its own bytes, and what follows
    const size_t count = elf ? elf_bytes(bytes) : 16 + payload;
    char file[64];
    std::snprintf(file, sizeof file, "%016" PRIx64 ".ptx", hash(bytes, count));
    const char* place = std::getenv("TILEKILN_CUDASIM_PTX");
    std::ifstream from(std::string(place ? place : ".") + "/" + file);
    if (!from) {
      std::fprintf(stderr,
                   "cudasim: TILEKILN_CUDASIM_PTX: %s has no %s: python tools/executor/ptx/sources.py LIBRARY --out "
                   "DIR writes it\n",
                   place ? place : "(not set)", file);
      return no_binary_for_gpu;
    }
    std::stringstream all;
    all << from.rdbuf();
    text = all.str();
    if (text.compare(0, 3, "// ") == 0) name = text.substr(3, text.find('\n') - 3);
  } else if (bytes && (bytes[0] == '/' || bytes[0] == '.')) {
    text = static_cast<const char*>(image);  // PTX itself
  } else {
    return invalid_image;
  }
  auto module = std::make_unique<Module>();
  char error[1024];
  module->machine = ptx_load(text.c_str(), error, sizeof error);
  module->name = name;
  if (!module->machine) return std::fprintf(stderr, "cudasim: %s\n", error), invalid_image;
  made = module.get();
  modules().insert(std::move(module));
  return success;
}

Module* known(void* handle) {
  for (const auto& one : modules())
    if (one.get() == handle) return one.get();
  return nullptr;
}

/// CUlaunchAttribute and CUlaunchConfig.
struct LaunchAttribute { unsigned id, padding, value[16]; };
struct LaunchConfig {
  unsigned grid[3], threads[3], shared_bytes;
  void* stream;
  const LaunchAttribute* attributes;
  unsigned count;
};

int launch(void* handle, const unsigned grid[3], const unsigned threads[3], unsigned shared_bytes, void** parameters,
           bool together, unsigned cluster = 0) {
  const std::lock_guard lock(gate());
  auto* function = static_cast<Function*>(handle);
  if (failed_before()) return launch_failed;
  if (!functions().count(function)) return invalid_handle;
  if (!parameters || !grid[0] || !grid[1] || !grid[2] || shared_bytes > function->shared_bytes) return invalid_value;
  ptx_machine* machine = function->module->machine;
  const uint64_t room = uint64_t(processors()) * ptx_least_blocks(machine, function->name.c_str());
  if (together && uint64_t(grid[0]) * grid[1] * grid[2] > room) return cooperative_too_large;
  ptx_launch_of of = {};
  of.kernel = function->name.c_str();
  for (int axis = 0; axis < 3; axis++) of.grid[axis] = grid[axis], of.threads[axis] = threads[axis];
  of.shared_bytes = shared_bytes;
  of.together = together;
  of.cluster = cluster;
  const char* said = std::getenv("TILEKILN_CUDASIM_SEED");
  const ptx_options options = {said ? std::strtoull(said, nullptr, 10) : 1, 1, 0};
  of.resident = options.seed % 3 == 0 ? 2 : 1;
  of.parameters = parameters[0];  // Tilekiln's kernels have one
  of.parameter_bytes = ptx_parameter_bytes(machine, of.kernel);
  char error[8192];
  if (!ptx_launch(machine, &of, &options, error, sizeof error)) return success;
  std::fprintf(stderr, "cudasim: %s\n", error);
  return fail_for_good();
}

}  // namespace

}  // namespace cudasim

using namespace cudasim;

CUDA_API int cuModuleLoadData(void** module, const void* image) {
  const std::lock_guard lock(gate());
  if (!module) return invalid_value;
  Module* made = nullptr;
  const int error = load(made, image);
  *module = made;
  return error;
}
CUDA_API int cuModuleUnload(void* handle) {
  const std::lock_guard lock(gate());
  for (auto it = modules().begin(); it != modules().end(); ++it) {
    if (it->get() != handle) continue;
    for (auto one = functions().begin(); one != functions().end();) {
      const bool own = (*one)->module == handle;
      if (own) delete *one;
      one = own ? functions().erase(one) : std::next(one);
    }
    modules().erase(it);
    return success;
  }
  return invalid_handle;
}
CUDA_API int cuModuleGetFunction(void** function, void* handle, const char* name) {
  const std::lock_guard lock(gate());
  if (!function || !name) return invalid_value;
  *function = nullptr;
  Module* module = known(handle);
  if (!module) return invalid_handle;
  if (ptx_parameter_bytes(module->machine, name) == SIZE_MAX) return not_found;
  auto made = std::make_unique<Function>();
  made->module = module;
  made->name = name;
  functions().insert(made.get());
  *function = made.release();
  return success;
}
CUDA_API int cuFuncSetAttribute(void* handle, int attribute, int value) {
  constexpr int dynamic_shared_bytes = 8;
  const std::lock_guard lock(gate());
  auto* function = static_cast<Function*>(handle);
  if (!functions().count(function)) return invalid_handle;
  if (attribute != dynamic_shared_bytes || value < 0 || value > 232448) return invalid_value;
  function->shared_bytes = unsigned(value) > function->shared_bytes ? unsigned(value) : function->shared_bytes;
  return success;
}
CUDA_API int cuLaunchKernel(void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned x, unsigned y,
                            unsigned z, unsigned shared_bytes, void*, void** parameters, void** extra) {
  if (extra) return invalid_value;
  const unsigned grid[3] = {grid_x, grid_y, grid_z}, threads[3] = {x, y, z};
  return launch(function, grid, threads, shared_bytes, parameters, false);
}
CUDA_API int cuLaunchKernelEx(const LaunchConfig* config, void* function, void** parameters, void** extra) {
  constexpr unsigned cluster_dimension = 4, may_begin_early = 6;
  if (!config || extra) return invalid_value;
  unsigned cluster = 0;
  for (unsigned k = 0; k < config->count; k++) {
    const LaunchAttribute& one = config->attributes[k];
    if (one.id == may_begin_early) continue;  // launches run one behind the other
    if (one.id != cluster_dimension || one.value[1] != 1 || one.value[2] != 1) return invalid_value;
    cluster = one.value[0];
  }
  return launch(function, config->grid, config->threads, config->shared_bytes, parameters, false, cluster);
}
CUDA_API int cuLaunchCooperativeKernel(void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned x,
                                       unsigned y, unsigned z, unsigned shared_bytes, void*, void** parameters) {
  const unsigned grid[3] = {grid_x, grid_y, grid_z}, threads[3] = {x, y, z};
  return launch(function, grid, threads, shared_bytes, parameters, true);
}
