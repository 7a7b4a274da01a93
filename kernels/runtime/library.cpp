// SPDX-License-Identifier: MIT
// The C ABI's questions about the library itself.
#include "kernels/runtime/library.h"

#if defined(__APPLE__)
#include <dlfcn.h>
#endif
#include <stdlib.h>
#include <string.h>

#include <vector>

#include "kernels/runtime/atomic.h"
#include "kernels/runtime/backend.h"
#include "kernels/runtime/environment.h"
#include "kernels/runtime/inflate.h"

namespace tilekiln {

namespace {

#if defined(__APPLE__)
// Pool threads sleep in the library's code: a dlclose must not take it away. ELF libraries are linked with a flag that says so.
__attribute__((constructor)) void stay_loaded() {
  Dl_info here;
  if (dladdr(reinterpret_cast<const void*>(&stay_loaded), &here) != 0) {
    dlopen(here.dli_fname, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
  }
}
#endif

// A device, and the choice of each family on it.
struct OfDevice {
  Machine machine;
  std::vector<Dispatcher> families;
  OfDevice* next;  // a list that only grows, of those that are not the host

  OfDevice(const Machine& of, OfDevice* behind) : machine(of), next(behind) {
    families.reserve(table.family_count);
    for (uint32_t i = 0; i < table.family_count; ++i) families.emplace_back(table, i, machine);
  }
};
Atomic<OfDevice*> devices;

Machine made_machine(Device device) { return {table, {environment().isa, environment().target}, device}; }

const OfDevice& of_device(Device device) {
  if (__builtin_expect(device.type == Device().type, 1)) {
    static const OfDevice host(made_machine(Device()), nullptr);
    return host;
  }
  OfDevice* head = devices.load();
  for (const OfDevice* one = head; one != nullptr; one = one->next) {
    if (one->machine.device() == device) return *one;
  }
  auto* const made = new OfDevice(made_machine(device), head);
  // Another thread may have been as fast: two of a device are alike, and the first found serves.
  while (!devices.replace(made->next, made)) {
  }
  return *made;
}

// The host, after the system was asked for what it may refuse.
Atomic<const OfDevice*> asked_host;
Atomic<bool> granted_all;
bool refuses_any(const Machine& machine) {
  for (uint32_t i = 0; i < table.target_count; ++i) {
    if (machine.use(table.targets[i]).refused != nullptr) return true;
  }
  return false;
}

const OfDevice& ask_for_host() {
  static const OfDevice host(of_device(Device()).machine.asked(), nullptr);
  asked_host.store(&host);
  granted_all.store(!refuses_any(host.machine));
  return host;
}

// The host as it is known.
const Machine& host_machine() {
  const OfDevice* const asked = asked_host.load();
  return asked != nullptr ? asked->machine : of_device(Device()).machine;
}

}  // namespace

const Dispatcher& dispatcher(uint32_t family, Device device) { return of_device(device).families[family]; }

const Dispatcher& permitted(const Dispatcher& dispatcher, const Target& target) {
  const OfDevice* const asked = asked_host.load();
  const OfDevice& host = asked != nullptr ? *asked : ask_for_host();
  if (host.machine.use(target).refused == nullptr) return dispatcher;
  return host.families[static_cast<size_t>(&dispatcher.family() - table.families)];
}

bool all_permitted() { return granted_all.load(); }

namespace {

// Callers name families by constants: one that was found is known by its address, which spares each call the comparison.
struct Known {
  const char* family;
  const Dispatcher* host;
};
Atomic<const Known*> known[64];  // by address; what stands there stays

Atomic<const Known*>& place_of(const char* family) {
  const auto address = reinterpret_cast<uintptr_t>(family);
  return known[(address ^ address >> 6) % 64];
}

}  // namespace

tilekiln_status find_dispatcher(const char* family, Device device, const Dispatcher** found) {
  const bool on_host = __builtin_expect(device.type == Device().type, 1);
  const Known* const one = place_of(family).load();
  if (one != nullptr && one->family == family && on_host) {
    *found = one->host;
    return TILEKILN_OK;
  }
  for (uint32_t i = 0; i < table.family_count; ++i) {
    if (strcmp(table.families[i].name, family) != 0) continue;
    *found = &dispatcher(i, device);
    if (one != nullptr || !on_host) return TILEKILN_OK;
    const Known* nobody = nullptr;
    const auto* const made = new Known{family, *found};
    if (!place_of(family).replace(nobody, made)) delete made;
    return TILEKILN_OK;
  }
  return fail(TILEKILN_NO_KERNEL, "library %s holds no instance of %s", table.receipt, family);
}

namespace {

// The type of the devices that a row runs on.
int32_t device_type_of(const Row& row) {
  for (uint32_t i = 0; i < table.target_count; ++i) {
    const Target& target = table.targets[i];
    if (target.index == row.target && target.backend != nullptr) return target.backend->device_type;
  }
  return Device().type;
}

// Length of the manifest's stream (0), of its JSON (1).
size_t manifest_length(int which) {
  const unsigned char* const at = table.manifest + manifest_lengths + 8 * which;
  size_t length = 0;
  for (int i = 7; i >= 0; --i) length = length << 8 | at[i];
  return length;
}

}  // namespace
}  // namespace tilekiln

using namespace tilekiln;

int32_t tilekiln_abi_version(void) { return TILEKILN_ABI_VERSION; }

const char* tilekiln_version(void) { return table.version; }

const char* tilekiln_receipt(void) { return table.receipt; }

const void* tilekiln_manifest_deflated(size_t* bytes, size_t* length) {
  if (bytes != nullptr) *bytes = manifest_length(0);
  if (length != nullptr) *length = manifest_length(1);
  return table.manifest + manifest_mark;
}

const char* tilekiln_manifest(size_t* length) {
  static const char* const text = [] {
    const size_t size = manifest_length(1);
    char* const made = static_cast<char*>(malloc(size + 1));
    if (made == nullptr || !inflate(table.manifest + manifest_mark, manifest_length(0), made, size)) {
      free(made);
      return static_cast<char*>(nullptr);
    }
    made[size] = 0;
    return made;
  }();
  if (length != nullptr) *length = text == nullptr ? 0 : manifest_length(1);
  return text == nullptr ? "" : text;
}

int64_t tilekiln_instance_count(void) { return table.instance_count; }

const char* tilekiln_instance_name(int64_t instance) {
  if (instance < 0 || instance >= table.instance_count) return nullptr;
  return lasting_name(table, instance);
}

int32_t tilekiln_instance_usable(int64_t instance) {
  if (instance < 0 || instance >= table.instance_count) return 0;
  try {
    const Row& row = row_of(table, instance);
    const Device device = {device_type_of(row), 0};
    const Machine& machine = device.type == Device().type ? host_machine() : of_device(device).machine;
    return machine.use(row).usable ? 1 : 0;
  } catch (...) {
    return static_cast<void>(fail_exception()), 0;
  }
}

const char* tilekiln_isa(void) {
  try {
    for (uint32_t i = 0; i < table.family_count; ++i) {
      if (dispatcher(i).sound() != TILEKILN_OK) return "";
    }
    const Machine& machine = host_machine();
    if (machine.status() != TILEKILN_OK) return "";
    if (machine.best() != nullptr) return machine.best()->isa;
    Text text(error_buffer(), error_capacity);
    text.add("library %s holds nothing this machine can run (", table.receipt);
    for (uint32_t i = 0; i < table.target_count; ++i)
      text.add("%s%s", i == 0 ? "" : ", ", machine.word(table.targets[i]));
    text.add("): build it here with scons receipt=%s", table.receipt);
    return "";
  } catch (...) {
    return static_cast<void>(fail_exception()), "";
  }
}

const char* tilekiln_isa_refusal(void) {
  try {
    const Machine& machine = ask_for_host().machine;
    for (uint32_t i = 0; i < table.target_count; ++i) {
      const char* const why = machine.use(table.targets[i]).refused;
      if (why == nullptr) continue;
      Text text(error_buffer(), error_capacity);
      text.add("%s: %s", table.targets[i].isa, why);
      return error_text();
    }
    return "";
  } catch (...) {
    return static_cast<void>(fail_exception()), "";
  }
}

const char* tilekiln_bf16_arithmetic(void) {
  try {
    const Machine& machine = host_machine();
    for (uint32_t i = 0; i < table.target_count; ++i) {
      const Target& target = table.targets[i];
      if (!machine.use(target).usable || target.backend == nullptr || target.backend->says_of_bf16 == nullptr) continue;
      const char* const says = target.backend->says_of_bf16(target);
      if (*says != 0) return says;
    }
    return "";
  } catch (...) {
    return static_cast<void>(fail_exception()), "";
  }
}

int32_t tilekiln_num_threads(void) {
  int threads = 0;
  return thread_count(0, &threads) == TILEKILN_OK ? threads : 0;
}

const char* tilekiln_last_error(void) { return error_text(); }

const tilekiln_refusal* tilekiln_last_refusals(int32_t* count) {
  const Refusals& refusals = error_refusals();
  if (count != nullptr) *count = refusals.count();
  return refusals.begin();
}
