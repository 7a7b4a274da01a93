// SPDX-License-Identifier: MIT
// Code objects: trial load, kernels by name, launches.
#include <elf.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <set>

#include "executor.h"
#include "hipsim.h"

extern char** environ;

namespace hipsim {

namespace {

struct Architecture {
  const char* name;
  int number;
  uint32_t machine;  // EF_AMDGPU_MACH of an ELF file's flags
};
constexpr Architecture kArchitectures[] = {
    {"gfx90a", 0x90a, 0x3f},   {"gfx942", 0x942, 0x4c},   {"gfx950", 0x950, 0x4f},
    {"gfx1100", 0x1100, 0x41}, {"gfx1201", 0x1201, 0x4e},
};

/// The architecture of this device: TILEKILN_HIPSIM_ARCH, gfx942 without it; nullptr for a name that is none.
const Architecture* architecture() {
  const char* wanted = std::getenv("TILEKILN_HIPSIM_ARCH");
  for (const Architecture& one : kArchitectures)
    if (!std::strcmp(one.name, wanted && *wanted ? wanted : "gfx942")) return &one;
  std::fprintf(stderr, "hipsim: TILEKILN_HIPSIM_ARCH: was %s, must be gfx90a, gfx942, gfx950, gfx1100 or gfx1201\n",
               wanted);
  return nullptr;
}

/// FNV-1a of a code object, as 16 hexadecimal digits.
std::string digest(const std::string& elf) {
  uint64_t hash = 14695981039346656037ull;
  for (const char byte : elf) hash = (hash ^ uint8_t(byte)) * 1099511628211ull;
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(hash));
  return text;
}

struct Module {
  std::string elf;
  amdgcn_machine* machine = nullptr;
  ~Module() {
    const char* path = std::getenv("TILEKILN_HIPSIM_COVERAGE");
    if (path && *path && machine) note(path);
    amdgcn_unload(machine);
  }
  /// Adds to a file "architecture digest:", "mnemonic executions places" lines, "waits:" and "address executions
  /// operations" lines.
  void note(const char* path) const {
    const auto told = [this](size_t (*tell)(const amdgcn_machine*, char*, size_t)) {
      std::string text(tell(machine, nullptr, 0) + 1, '\0');
      tell(machine, text.data(), text.size());
      return text;
    };
    FILE* file = std::fopen(path, "ab");
    if (!file) return std::perror("hipsim: TILEKILN_HIPSIM_COVERAGE");
    std::fprintf(file, "%s %s:\n%swaits:\n%s", tilekiln_hipsim_architecture(), digest(elf).c_str(),
                 told(amdgcn_coverage).c_str(), told(amdgcn_waits).c_str());
    std::fclose(file);
  }
};
struct Function {
  Module* module;
  amdgcn_dispatch dispatch;
  uint32_t kernarg_bytes;
};
/// Destroyed when the process ends, and with them what they have executed is written down.
std::set<std::unique_ptr<Module>>& modules() {
  static std::set<std::unique_ptr<Module>> all;
  return all;
}
Module* known(void* handle) {
  for (const auto& one : modules())
    if (one.get() == handle) return one.get();
  return nullptr;
}
std::set<Function*>& functions() {
  static std::set<Function*> all;
  return all;
}

template <class T> T at(const std::string& elf, uint64_t offset) {
  T value = {};
  if (offset <= elf.size() && sizeof value <= elf.size() - offset)
    std::memcpy(&value, elf.data() + offset, sizeof value);
  return value;
}

/// The bytes of a file; "" where there is none.
std::string contents(const std::string& path) {
  std::string all;
  FILE* file = std::fopen(path.c_str(), "rb");
  if (!file) return all;
  char part[65536];
  for (size_t n; (n = std::fread(part, 1, sizeof part, file)) > 0;) all.append(part, n);
  std::fclose(file);
  return all;
}

/// The output of llvm-objdump 22 for a code object; "" with a sentence on stderr where it cannot be run.
std::string disassembled(const std::string& elf, const char* name) {
  char path[] = "/tmp/hipsim-XXXXXX";
  const int file = mkstemp(path);
  if (file < 0) return std::perror("hipsim: a temporary file"), "";
  const bool written = write(file, elf.data(), elf.size()) == ssize_t(elf.size());
  close(file);
  int ends[2];
  std::string text;
  if (written && !pipe(ends)) {
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], 1);
    posix_spawn_file_actions_addclose(&actions, ends[0]);
    const std::string mcpu = std::string("--mcpu=") + name;
    char* const command[] = {const_cast<char*>("llvm-objdump-22"), const_cast<char*>("-d"),
                             const_cast<char*>(mcpu.c_str()), path, nullptr};
    pid_t child;
    const int error = posix_spawnp(&child, command[0], &actions, nullptr, command, environ);
    close(ends[1]);
    char part[65536];
    for (ssize_t n; (n = read(ends[0], part, sizeof part)) > 0;) text.append(part, size_t(n));
    close(ends[0]);
    posix_spawn_file_actions_destroy(&actions);
    if (error)
      std::fprintf(stderr, "hipsim: llvm-objdump-22: %s (Debian: apt install llvm-22)\n", std::strerror(error));
    else
      waitpid(child, nullptr, 0);
  }
  unlink(path);
  return text;
}

/// Program as `disassembled`. In the folder TILEKILN_HIPSIM_OBJECTS, if that is set, it is kept as <digest>.s, and what stands in
/// such a file is taken as it is: tests exchange the instructions of a kernel by it. A code object <digest>.hsaco there
/// stands for the one of that digest.
std::string program_of(std::string& elf, const char* name) {
  const char* folder = std::getenv("TILEKILN_HIPSIM_OBJECTS");
  if (!folder || !*folder) return disassembled(elf, name);
  const auto place = [&](const char* kind) { return std::string(folder) + "/" + digest(elf) + kind; };
  if (std::string other = contents(place(".hsaco")); !other.empty()) elf = std::move(other);
  const std::string known = place(".s");
  std::string text = contents(known);
  if (!text.empty()) return text;
  text = disassembled(elf, name);
  const std::string whole = known + "." + std::to_string(getpid());  // renamed when it is complete
  FILE* file = std::fopen(whole.c_str(), "wb");
  const bool written = file && std::fwrite(text.data(), 1, text.size(), file) == text.size();
  if (file && std::fclose(file) == 0 && written && !text.empty() && !std::rename(whole.c_str(), known.c_str()))
    return text;
  std::fprintf(stderr, "hipsim: TILEKILN_HIPSIM_OBJECTS: %s cannot be written\n", known.c_str());
  unlink(whole.c_str());
  return text;
}

int load(Module*& made, const void* image) {
  const Architecture* here = architecture();
  if (!here) return invalid_device;
  const auto* header = static_cast<const Elf64_Ehdr*>(image);
  if (!image || std::memcmp(header->e_ident, ELFMAG, SELFMAG) || header->e_machine != 224) return invalid_image;
  if ((header->e_flags & 0xff) != here->machine) return no_binary_for_gpu;
  auto module = std::make_unique<Module>();
  module->elf.assign(static_cast<const char*>(image), header->e_shoff + size_t(header->e_shnum) * header->e_shentsize);
  char error[1024];
  module->machine = amdgcn_load(here->number, program_of(module->elf, here->name).c_str(), error, sizeof error);
  if (!module->machine) return std::fprintf(stderr, "hipsim: %s\n", error), invalid_image;
  made = module.get();
  modules().insert(std::move(module));
  return success;
}

/// The kernel descriptor "name.kd" (LLVM, "User Guide for AMDGPU Backend").
int find_kernel(Module& module, const std::string& name, Function& made) {
  const std::string& elf = module.elf;
  const auto header = at<Elf64_Ehdr>(elf, 0);
  const auto section = [&](unsigned k) { return at<Elf64_Shdr>(elf, header.e_shoff + k * sizeof(Elf64_Shdr)); };
  for (unsigned k = 0; k < header.e_shnum; k++) {
    const Elf64_Shdr table = section(k);
    if (table.sh_type != SHT_DYNSYM) continue;
    const Elf64_Shdr strings = section(table.sh_link);
    for (uint64_t s = 0; s + sizeof(Elf64_Sym) <= table.sh_size; s += sizeof(Elf64_Sym)) {
      const auto symbol = at<Elf64_Sym>(elf, table.sh_offset + s);
      const uint64_t text = strings.sh_offset + symbol.st_name;
      if (text >= elf.size() || name + ".kd" != elf.c_str() + text) continue;
      const Elf64_Shdr home = section(symbol.st_shndx);
      const uint64_t d = home.sh_offset + symbol.st_value - home.sh_addr;
      made.module = &module;
      made.dispatch = {};
      made.dispatch.entry = symbol.st_value + at<uint64_t>(elf, d + 16);
      made.dispatch.lds_bytes = at<uint32_t>(elf, d);
      made.dispatch.scratch_bytes = at<uint32_t>(elf, d + 4);
      made.kernarg_bytes = at<uint32_t>(elf, d + 8);
      made.dispatch.resources1 = at<uint32_t>(elf, d + 48);
      made.dispatch.resources2 = at<uint32_t>(elf, d + 52);
      made.dispatch.properties = at<uint16_t>(elf, d + 56);
      made.dispatch.preload = at<uint16_t>(elf, d + 58);
      return success;
    }
  }
  return not_found;
}

/// Bytes behind a kernel's own arguments that the runtime fills, of a kernel that asks for any (LLVM, AMDGPUUsage, code object
/// version 5): blocks of each dimension, then threads of a block.
constexpr size_t kHidden = 256;
size_t own_bytes(size_t bytes) { return (bytes + 7) / 8 * 8; }
std::string packed_arguments(const Function& function, const amdgcn_dispatch& dispatch, const void* arguments,
                             size_t bytes) {
  std::string packed(static_cast<const char*>(arguments), bytes);
  if (bytes < function.kernarg_bytes) {
    packed.resize(own_bytes(bytes) + kHidden);
    char* const hidden = packed.data() + own_bytes(bytes);
    const uint16_t threads[] = {uint16_t(dispatch.threads[0]), uint16_t(dispatch.threads[1]),
                                uint16_t(dispatch.threads[2])};
    std::memcpy(hidden, dispatch.groups, sizeof dispatch.groups);
    std::memcpy(hidden + sizeof dispatch.groups, threads, sizeof threads);
  }
  packed.resize(packed.size() + 64);  // kernels load arguments in pieces
  return packed;
}

int launch(const Function& function, amdgcn_dispatch dispatch, const void* arguments, size_t bytes) {
  amdgcn_machine* machine = function.module->machine;
  auto& all = allocations();
  amdgcn_clear(machine);
  static std::deque<std::string> names;  // of allocations, and of those that are freed
  while (names.size() < 2 * all.size()) {
    const std::string number = std::to_string(names.size() / 2 + 1);
    names.push_back("allocation " + number);
    names.push_back("freed allocation " + number);
  }
  for (size_t k = 0; k < all.size(); k++)
    amdgcn_known_block(machine, all[k].bytes.data(), all[k].bytes.size(), all[k].defined.data(),
                       names[2 * k + !all[k].reserved].c_str());
  std::string packed = packed_arguments(function, dispatch, arguments, bytes);
  dispatch.kernarg = amdgcn_block(machine, packed.data(), packed.size(), 1, 1, "kernarg");
  const char* seed = std::getenv("TILEKILN_HIPSIM_SEED");
  const amdgcn_options options = {seed ? std::strtoull(seed, nullptr, 10) : 1, 0, 0, 1};
  char error[1024];
  const int failed = amdgcn_launch(machine, &dispatch, &options, error, sizeof error);
  amdgcn_clear(machine);
  if (failed) std::fprintf(stderr, "hipsim: %s\n", error);
  return failed ? launch_failure : success;
}

}  // namespace

}  // namespace hipsim

using namespace hipsim;

HIP_API int hipModuleLoadData(void** module, const void* image) {
  const std::lock_guard lock(gate());
  if (!module) return noted(invalid_value);
  Module* made = nullptr;
  const int error = load(made, image);
  *module = made;
  return noted(error);
}
/// The output of a process that ends without destroying anything.
HIP_API void tilekiln_hipsim_note_coverage(const char* path) {
  const std::lock_guard lock(gate());
  for (const auto& one : modules()) one->note(path);
}
HIP_API int hipModuleUnload(void* handle) {
  const std::lock_guard lock(gate());
  Module* const module = known(handle);
  if (!module) return noted(invalid_handle);
  for (auto it = functions().begin(); it != functions().end();) {
    if ((*it)->module != module) {
      ++it;
      continue;
    }
    delete *it;
    it = functions().erase(it);
  }
  for (auto it = modules().begin(); it != modules().end();) it = it->get() == module ? modules().erase(it) : ++it;
  return success;
}
HIP_API int hipModuleGetFunction(void** function, void* handle, const char* name) {
  const std::lock_guard lock(gate());
  if (!function || !name) return noted(invalid_value);
  *function = nullptr;
  Module* const module = known(handle);
  if (!module) return noted(invalid_handle);
  auto made = std::make_unique<Function>();
  const int error = find_kernel(*module, name, *made);
  if (error) return noted(error);
  functions().insert(made.get());
  *function = made.release();
  return success;
}

/// Arguments come as one packed buffer: extra = {1, buffer, 2, &bytes, 3}. Lists of pointers are refused.
HIP_API int hipModuleLaunchKernel(void* handle, unsigned groups_x, unsigned groups_y, unsigned groups_z,
                                  unsigned threads_x, unsigned threads_y, unsigned threads_z, unsigned lds_bytes, void*,
                                  void** parameters, void** extra) {
  const std::lock_guard lock(gate());
  auto* function = static_cast<Function*>(handle);
  if (failed_before()) return launch_failure;
  if (!functions().count(function)) return noted(invalid_handle);
  const uint64_t threads = uint64_t(threads_x) * threads_y * threads_z;
  if (parameters || !extra || !groups_x || !groups_y || !groups_z || !threads || threads > 1024)
    return noted(invalid_value);
  const void* buffer = nullptr;
  size_t bytes = 0;
  for (int k = 0; reinterpret_cast<uintptr_t>(extra[k]) != 3; k += 2) {
    const auto what = reinterpret_cast<uintptr_t>(extra[k]);
    if (what == 1)
      buffer = extra[k + 1];
    else if (what == 2)
      bytes = *static_cast<const size_t*>(extra[k + 1]);
    else
      return noted(invalid_value);
  }
  amdgcn_dispatch dispatch = function->dispatch;
  const bool whole = bytes >= function->kernarg_bytes || own_bytes(bytes) + kHidden == function->kernarg_bytes;
  if (!whole || (bytes && !buffer)) return noted(invalid_value);
  dispatch.lds_bytes += lds_bytes;
  const unsigned groups[3] = {groups_x, groups_y, groups_z}, block[3] = {threads_x, threads_y, threads_z};
  std::memcpy(dispatch.groups, groups, sizeof groups);
  std::memcpy(dispatch.threads, block, sizeof block);
  return noted(launch(*function, dispatch, buffer, bytes));
}
