// SPDX-License-Identifier: MIT
#include "executor.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <set>

#include "machine.h"

using namespace amdgcn;

struct amdgcn_machine : Machine {};

namespace {

void tell(char* error, size_t capacity, const char* text) {
  if (capacity) std::snprintf(error, capacity, "%s", text);
}

size_t hand_out(const std::string& whole, char* text, size_t capacity) {
  if (capacity) std::snprintf(text, capacity, "%s", whole.c_str());
  return whole.size();
}

/// Bytes, halves or words: the smallest LDS access of the program, so that neighbours are not taken for one another.
int granule_shift(const Machine& machine) {
  int shift = 2;
  for (const Instruction& in : machine.program) {
    if (in.mnemonic.compare(0, 3, "ds_") != 0) continue;
    const auto has = [&](const char* part) { return in.mnemonic.find(part) != std::string::npos; };
    if (has("_b8") || has("_u8") || has("_i8")) return 0;
    if (has("16")) shift = 1;
  }
  return shift;
}

u64 add_block(Machine* machine, void* memory, u64 bytes, u8* defined, int read_only, const char* name) {
  machine->blocks.push_back({static_cast<u8*>(memory), bytes, defined, {}, read_only != 0, name});
  return u64(machine->blocks.size()) << SLOT_SHIFT;
}

}  // namespace

amdgcn_machine* amdgcn_load(int architecture, const char* disassembly, char* error, size_t capacity) {
  auto machine = std::make_unique<amdgcn_machine>();
  machine->architecture = architecture;
  try {
    decode(*machine, disassembly);
  } catch (const std::exception& problem) {
    tell(error, capacity, problem.what());
    return nullptr;
  }
  machine->lds.granule_shift = granule_shift(*machine);
  return machine.release();
}

void amdgcn_unload(amdgcn_machine* machine) { delete machine; }

uint64_t amdgcn_block(amdgcn_machine* machine, void* memory, uint64_t bytes, int defined, int read_only,
                      const char* name) {
  machine->own_defined.emplace_back(bytes, u8(defined != 0));
  machine->names.emplace_back(name);
  return add_block(machine, memory, bytes, machine->own_defined.back().data(), read_only,
                   machine->names.back().c_str());
}

uint64_t amdgcn_known_block(amdgcn_machine* machine, void* memory, uint64_t bytes, uint8_t* defined, const char* name) {
  return add_block(machine, memory, bytes, defined, 0, name);
}

void amdgcn_clear(amdgcn_machine* machine) {
  machine->blocks.clear();
  machine->own_defined.clear();
  machine->names.clear();
}

int amdgcn_launch(amdgcn_machine* machine, const amdgcn_dispatch* d, const amdgcn_options* options, char* error,
                  size_t capacity) {
  machine->options = {options->seed, options->ignore_waits != 0, options->permute_k != 0, options->races != 0};
  Dispatch dispatch = {d->entry,
                       d->kernarg,
                       {d->groups[0], d->groups[1], d->groups[2]},
                       {d->threads[0], d->threads[1], d->threads[2]},
                       d->lds_bytes,
                       d->scratch_bytes,
                       d->resources1,
                       d->resources2,
                       d->properties,
                       d->preload};
  try {
    launch(*machine, dispatch);
    return 0;
  } catch (const std::exception& problem) {
    tell(error, capacity, problem.what());
    return 1;
  }
}

uint64_t amdgcn_executed(const amdgcn_machine* machine) { return machine->executed; }

size_t amdgcn_coverage(const amdgcn_machine* machine, char* text, size_t capacity) {
  std::map<std::string, std::pair<u64, int>> found;
  for (const Instruction& in : machine->program)
    for (const Instruction* one : {&in, in.second})
      if (one) {
        found[one->mnemonic].first += in.executed;
        found[one->mnemonic].second++;
      }
  std::string whole;
  for (const auto& [name, counts] : found)
    whole += name + " " + std::to_string(counts.first) + " " + std::to_string(counts.second) + "\n";
  return hand_out(whole, text, capacity);
}

size_t amdgcn_waits(const amdgcn_machine* machine, char* text, size_t capacity) {
  std::string whole;
  for (const Instruction& in : machine->program)
    if (in.mnemonic.compare(0, 6, "s_wait") == 0) {
      char line[80];
      std::snprintf(line, sizeof line, "%llX %llu %llu\n", (unsigned long long)in.address,
                    (unsigned long long)in.executed, (unsigned long long)in.retired);
      whole += line;
    }
  return hand_out(whole, text, capacity);
}

size_t amdgcn_mnemonics(char* text, size_t capacity) {
  std::set<std::string> names;
  for (const auto& [name, handler] : mnemonics()) names.insert(name);
  std::string whole;
  for (const std::string& name : names) whole += name + "\n";
  return hand_out(whole, text, capacity);
}
