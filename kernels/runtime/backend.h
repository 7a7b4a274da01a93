// SPDX-License-Identifier: MIT
// The seam: all that differs between processors, as one struct of functions a backend (kernels/backends/<name>/backend.cpp).
// Nothing above it names a processor, or touches memory that the host may not.
//
// A call is a list of steps in stream order: copy, fill, launch, launch. Its problem is plain data. A backend whose engines are
// functions of the host (takes_units) calls `unit` for each unit. One with kernels of its own is handed the problem alone: its
// engines have the type that its backend.yaml names (`engine`), and lead to the kernel and to the host function, in the operator's
// room (kernels/<area>/<operator>/<backend>/<pipeline>.cpp), that turns the problem into what the kernel takes.
#pragma once
#include "kernels/runtime/dispatch.h"
#include "tilekiln/tilekiln.h"

namespace tilekiln {

struct Run;

// A backend's own stream, such as a CUstream. Null: everything has ended when a function of the backend returns.
using NativeStream = void*;

struct Launch {
  const Run* run;        // the threads of the call, for engines on the host
  const Choice* choice;  // row, engine, algorithm
  const void* problem;   // plain data
  uint32_t problem_bytes;
  int64_t units;           // pieces of the call; of a kernel launch (launch_kernel) 0, and so is all that follows
  double work;             // multiply-adds of all together
  uint64_t scratch_bytes;  // of each thread
  // Neighbouring units want what a thread keeps in scratch from unit to unit: each thread begins with a stretch of its own.
  bool stretches;
  // Units [first, last) of `context`, for engines on the host.
  void (*unit)(void* context, int64_t first, int64_t last, void* scratch);
  void* context;
};

// Memory that lives as long as a call. `data` is aligned to 64; a backend keeps the rest for itself.
struct DeviceMemory {
  void* data;
  void* base;
  size_t bytes;
};

// `staged`: between the device and pinned memory of the host, in stream order on both sides.
enum class Direction : uint8_t { to_device, to_host, on_device, staged };

struct Backend {
  const char* name;
  int32_t device_type;  // DLPack's
  bool host_memory;     // the host may read and write the memory of its devices
  bool takes_calls;     // a call with a stream waits as a whole in that stream (host), its steps then run at once; else
                        // its steps are enqueued one by one
  bool takes_units;     // its engines are functions of the host, of the type that a family declares
  NativeStream default_stream;  // what a wrapped null handle stands for; null: such a handle is refused
  // Tells whether a device can run a target. Never fails: without a driver it cannot.
  bool (*has)(Device device, const Target& target);
  tilekiln_status (*launch)(Device device, NativeStream stream, const Launch& launch);
  // Memory for as long as a call needs it: `bytes` > 0, whatever they hold. Memory goes back in stream order, with bytes 0.
  tilekiln_status (*memory)(Device device, NativeStream stream, size_t bytes, DeviceMemory* memory);
  tilekiln_status (*fill)(Device device, NativeStream stream, void* to, int byte, size_t bytes);
  // Memory of the host has been read, or holds what was copied, when it returns; the rest happens in stream order.
  tilekiln_status (*copy)(Device device, NativeStream stream, void* to, const void* from, size_t bytes,
                          Direction direction);
  // A function of the host in stream order. What it returns is the stream's to keep for who waits next.
  tilekiln_status (*host)(Device device, NativeStream stream, tilekiln_status (*function)(void* context),
                          void* context);
  // Waits until all that was enqueued has run; its first error.
  tilekiln_status (*wait)(Device device, NativeStream stream);
  tilekiln_status (*query)(Device device, NativeStream stream, bool* idle);
  // Tells whether what is enqueued is recorded for later in place of being run (a CUDA graph), so that the host can read nothing of the
  // device. Null: never.
  tilekiln_status (*captured)(Device device, NativeStream stream, bool* yes);
  // The reason why `has` says no, for people: "there is no NVIDIA driver". Null: the target's name says it.
  const char* (*absent)(Device device, const Target& target);
  // Number of blocks of a kernel that run side by side. Null: of a backend whose engines are functions of the host.
  int (*processors)(Device device);
  // Allocator of a backend that copies to and from pinned memory only in stream order: where it is from, and whether memory is such.
  // Null: any is.
  tilekiln_staging_allocator (*staging)(Device device);
  bool (*is_pinned)(Device device, const void* memory);
  // A sentence on what it has found out of this machine that changes how a target computes bf16, and so bits; "" for none. Null: nothing.
  const char* (*says_of_bf16)(const Target& target);
};

extern const Backend cpu_backend;

// The backend of the library's targets for devices of this type; null: it has none. The CPU's is always there.
const Backend* backend_of(int32_t device_type);
// "cpu", "cuda:1", "of DLPack type 99". Writes to `buffer`, and returns it.
const char* device_text(Device device, char* buffer, size_t capacity);
bool has_name(Device device);
// Names of the devices of the library's targets: "cpu or paper"; with DLPack's numbers: "cpu (1) or paper (12)".
const char* known_devices(bool numbers, char* buffer, size_t capacity);

}  // namespace tilekiln
