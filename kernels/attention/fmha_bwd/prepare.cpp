// SPDX-License-Identifier: MIT
// Preparing a workspace: at once, or in stream order.
#include <string.h>

#include <vector>

#include "kernels/attention/fmha_bwd/launcher.h"
#include "kernels/runtime/backend.h"
#include "kernels/runtime/check.h"
#include "kernels/runtime/staging.h"
#include "kernels/runtime/stream.h"

namespace tilekiln::fmha {
namespace {

using ll = long long;
using Plan = BwdLauncher::Plan;

// The starts of a problem: nothing may be packed from wrong ones, because workers would go anywhere.
tilekiln_status check_starts(const Plan& plan, const int32_t* q, const int32_t* k) {
  for (const auto& [name, starts] : {std::pair("seqstart_q", q), {"seqstart_k", k}}) {
    if (starts[0] < 0) return fail_argument(name, "entry 0 was %d, must be 0 or more", starts[0]);
    for (int b = 0; b < plan.shape.batch; ++b) {
      if (starts[b + 1] >= starts[b]) continue;
      return fail_argument(name, "must not decrease, but entry %d is %d after %d", b + 1, starts[b + 1], starts[b]);
    }
  }
  if (q[plan.shape.batch] > plan.total_q) {
    return fail_argument("seqstart_q",
                         "ended at %d, must end at %lld or before, the seqlen_q of the launcher's problem",
                         q[plan.shape.batch], static_cast<ll>(plan.total_q));
  }
  for (int b = 0; b < plan.shape.batch; ++b) {
    if (k[b + 1] - k[b] <= plan.max_seqlen_k) continue;
    return fail_argument("seqstart_k",
                         "sequence %d was %d long, must be at most %lld, the seqlen_k of the launcher's problem", b,
                         k[b + 1] - k[b], static_cast<ll>(plan.max_seqlen_k));
  }
  return TILEKILN_OK;
}

// The arguments of both ways to prepare.
struct Arguments {
  Array workspace, seqstart_q, seqstart_k;
  const int32_t* q() const { return reinterpret_cast<const int32_t*>(seqstart_q.data); }
  const int32_t* k() const { return reinterpret_cast<const int32_t*>(seqstart_k.data); }
};

// Checks that an array is on the device of the problem.
tilekiln_status check_place(const Plan& plan, const char* name, const tilekiln_tensor& tensor, Array* array) {
  if (plan.run.backend->host_memory) return op::check_host_array(name, tensor, array);
  const Device device = {tensor.device_type, tensor.device_id};
  if (device == plan.run.device) return check_array(name, tensor, array);
  char was[48], must[48];
  return fail_argument(name, "device was %s, must be %s, that of the launcher's problem",
                       device_text(device, was, sizeof(was)), device_text(plan.run.device, must, sizeof(must)));
}

tilekiln_status check_start_array(const Plan& plan, const char* name, const tilekiln_tensor* tensor, Array* array) {
  if (!plan.shape.group) {
    if (tensor == nullptr) return TILEKILN_OK;
    return fail_argument(name, "was given in batch mode, must be null: there a sequence starts at its batch index");
  }
  if (tensor == nullptr) return fail_argument(name, "was null, must be given in group mode");
  TILEKILN_TRY(check_place(plan, name, *tensor, array));
  TILEKILN_TRY(check_dtype(*array, TILEKILN_INT32, "int32"));
  TILEKILN_TRY(check_ndim(*array, 1, "batch + 1"));
  TILEKILN_TRY(check_length(*array, 0, "its length", i64(plan.shape.batch) + 1, "batch + 1"));
  return check_last_contiguous(*array);
}

tilekiln_status check_arguments(const Plan& plan, const tilekiln_tensor* workspace, const tilekiln_tensor* seqstart_q,
                                const tilekiln_tensor* seqstart_k, Arguments* arguments) {
  if (workspace == nullptr) return fail_argument("workspace", "was null, must be given");
  TILEKILN_TRY(check_place(plan, "workspace", *workspace, &arguments->workspace));
  TILEKILN_TRY(check_workspace(arguments->workspace));
  TILEKILN_TRY(check_start_array(plan, "seqstart_q", seqstart_q, &arguments->seqstart_q));
  TILEKILN_TRY(check_start_array(plan, "seqstart_k", seqstart_k, &arguments->seqstart_k));
  for (const Array* starts : {&arguments->seqstart_q, &arguments->seqstart_k}) {
    if (starts->given() && overlap(arguments->workspace, *starts)) {
      return fail_argument("workspace", "shares memory with %s, must have its own", starts->name);
    }
  }
  return TILEKILN_OK;
}

template <class Function>
class FunctionTask : public StreamTask {
 public:
  explicit FunctionTask(Function&& function) : function_(std::move(function)) {}
  tilekiln_status run() override { return function_(); }

 private:
  Function function_;
};

tilekiln_status copy(const Plan& plan, void* to, const void* from, size_t bytes, Direction direction) {
  return plan.run.backend->copy(plan.run.device, nullptr, to, from, bytes, direction);
}
tilekiln_status fill(const Plan& plan, void* to, size_t bytes) {
  return plan.run.backend->fill(plan.run.device, nullptr, to, 0, bytes);
}

// The host segment of either kind of device.
void pack_starts(const Plan& plan, const int32_t* q, const int32_t* k, void* host) {
  const size_t bytes = sizeof(int32_t) * (static_cast<size_t>(plan.shape.batch) + 1);
  memset(host, 0, plan.host_bytes);
  memcpy(host, q, bytes);
  memcpy(static_cast<char*>(host) + bytes, k, bytes);
}

// Packs the starts alone, checked by the host: for kernels that prepare nothing themselves, and runs that need no zeroed memory.
struct StartsStep {
  std::shared_ptr<const Plan> plan;
  std::shared_ptr<void> staging;
  const int32_t *q, *k;
  char* host;
};
tilekiln_status pack_in_stream(void* context) {
  const auto& own = *static_cast<StartsStep*>(context);
  const tilekiln_status status = check_starts(*own.plan, own.q, own.k);
  if (status == TILEKILN_OK) {
    pack_starts(*own.plan, own.q, own.k, own.host);
  } else {
    memset(own.host, 0, own.plan->host_bytes);  // every sequence is empty
  }
  return status;
}
// The staging goes to the releaser when the last owner lets go of it, here in a thread of the driver that may not call it.
tilekiln_status end_in_stream(void* context) {
  delete static_cast<StartsStep*>(context);
  return TILEKILN_OK;
}

constexpr size_t up16(size_t bytes) { return (bytes + 15) / 16 * 16; }

}  // namespace

tilekiln_status BwdLauncher::prepare(const tilekiln_tensor* workspace, const tilekiln_tensor* seqstart_q,
                                     const tilekiln_tensor* seqstart_k) const {
  const Plan& plan = *plan_;
  Arguments arguments;
  TILEKILN_TRY(check_arguments(plan, workspace, seqstart_q, seqstart_k, &arguments));
  if (plan.has_kernels()) {
    TILEKILN_TRY(check_workspace_size(arguments.workspace, workspace_size()));
    if (!plan.shape.group) return TILEKILN_OK;
    const size_t count = static_cast<size_t>(plan.shape.batch) + 1;
    std::vector<int32_t> starts(2 * count), host(plan.host_bytes / sizeof(int32_t));
    TILEKILN_TRY(copy(plan, starts.data(), arguments.q(), sizeof(int32_t) * count, Direction::to_host));
    TILEKILN_TRY(copy(plan, starts.data() + count, arguments.k(), sizeof(int32_t) * count, Direction::to_host));
    TILEKILN_TRY(check_starts(plan, starts.data(), starts.data() + count));
    pack_starts(plan, starts.data(), starts.data() + count, host.data());
    return copy(plan, arguments.workspace.data, host.data(), plan.host_bytes, Direction::to_device);
  }
  if (plan.shape.group) TILEKILN_TRY(check_starts(plan, arguments.q(), arguments.k()));
  // Packed aside first: a workspace that is too small is not written to.
  const u64 host_bytes = layout_of(plan.shape).host;
  const std::unique_ptr<CuState[]> host(new CuState[host_bytes / sizeof(CuState)]);
  const u64 device_bytes = pack(plan.shape, arguments.q(), arguments.k(), host.get());
  TILEKILN_TRY(check_workspace_size(arguments.workspace, host_bytes + device_bytes));
  TILEKILN_TRY(copy(plan, arguments.workspace.data, host.get(), host_bytes, Direction::to_device));
  if (!zeroed_by_prepare(plan.shape)) return TILEKILN_OK;
  return fill(plan, arguments.workspace.data + host_bytes, device_bytes);
}

tilekiln_status BwdLauncher::prepare_async(const tilekiln_tensor* workspace, const tilekiln_tensor* seqstart_q,
                                           const tilekiln_tensor* seqstart_k, tilekiln_stream* stream,
                                           const tilekiln_staging_allocator* allocator) const {
  const std::shared_ptr<const Plan> plan = plan_;
  TILEKILN_TRY(check_stream(stream));
  tilekiln::Run run = plan->run;
  TILEKILN_TRY(check_stream_of(*stream, &run));
  Arguments arguments;
  TILEKILN_TRY(check_arguments(*plan, workspace, seqstart_q, seqstart_k, &arguments));
  TILEKILN_TRY(check_workspace_size(arguments.workspace, workspace_size()));

  // One block, before anything is enqueued: seqstart_q, seqstart_k, host segment.
  const size_t host_bytes = plan->host_bytes;
  if (host_bytes == 0) return TILEKILN_OK;
  const size_t starts_bytes = plan->shape.group ? 4 * (static_cast<size_t>(plan->shape.batch) + 1) : 0;
  std::shared_ptr<void> staging;
  const Backend& backend = *run.backend;
  tilekiln_staging_allocator pinned;
  if (backend.staging != nullptr && allocator == tilekiln_staging_default()) {
    pinned = backend.staging(run.device);
    allocator = &pinned;
  }
  TILEKILN_TRY(allocate_staging(allocator, 2 * up16(starts_bytes) + host_bytes, &staging));
  if (backend.is_pinned != nullptr && !backend.is_pinned(run.device, staging.get()))
    return fail_argument(
        "allocator",
        "gave memory that the device cannot copy from by itself, must be pinned (cuMemHostAlloc, hipHostMalloc)");
  char* const staged_q = static_cast<char*>(staging.get());
  char* const staged_k = staged_q + up16(starts_bytes);
  char* const staged_host = staged_k + up16(starts_bytes);
  char* const to = arguments.workspace.data;
  const auto* const q = reinterpret_cast<const int32_t*>(staged_q);
  const auto* const k = reinterpret_cast<const int32_t*>(staged_k);

  if (plan->has_kernels()) {
    auto own = std::make_unique<StartsStep>(StartsStep{plan, staging, q, k, staged_host});
    const auto stage = [&](void* into, const void* from, size_t bytes) {
      return backend.copy(run.device, run.native, into, from, bytes, Direction::staged);
    };
    TILEKILN_TRY(stage(staged_q, arguments.seqstart_q.data, starts_bytes));
    // Stages the starts; the stream then uses the block, which is kept until the stream has run all that was enqueued.
    tilekiln_status status = stage(staged_k, arguments.seqstart_k.data, starts_bytes);
    if (status == TILEKILN_OK) status = backend.host(run.device, run.native, pack_in_stream, own.get());
    if (status == TILEKILN_OK) status = stage(to, staged_host, host_bytes);
    const tilekiln_status ended = backend.host(run.device, run.native, end_in_stream, own.get());
    if (ended == TILEKILN_OK) {
      static_cast<void>(own.release());
    } else {
      static_cast<void>(backend.wait(run.device, run.native));
    }
    return status != TILEKILN_OK ? status : ended;
  }

  // Steps own the block, so it outlives the last of them, whatever becomes of the launcher. What is wrong with the
  // starts leaves a host segment of zeros, which no run takes for prepared.
  std::unique_ptr<StreamTask> tasks[4];
  int count = 0;
  const auto step = [&]<class Function>(Function function) {
    tasks[count++] = std::make_unique<FunctionTask<Function>>(std::move(function));
  };
  if (zeroed_by_prepare(plan->shape)) {
    const u64 bytes = workspace_size() - host_bytes;
    step([plan, to, host_bytes, bytes] { return fill(*plan, to + host_bytes, bytes); });
  }
  if (plan->shape.group) {
    const void *from_q = arguments.seqstart_q.data, *from_k = arguments.seqstart_k.data;
    step([plan, staging, staged_q, staged_k, from_q, from_k, starts_bytes]() -> tilekiln_status {
      TILEKILN_TRY(copy(*plan, staged_q, from_q, starts_bytes, Direction::to_host));
      return copy(*plan, staged_k, from_k, starts_bytes, Direction::to_host);
    });
  }
  step([staging, plan, q, k, staged_host, host_bytes]() -> tilekiln_status {
    const tilekiln_status status = plan->shape.group ? check_starts(*plan, q, k) : TILEKILN_OK;
    if (status != TILEKILN_OK) return memset(staged_host, 0, host_bytes), status;
    pack(plan->shape, q, k, staged_host);
    return TILEKILN_OK;
  });
  step([plan, staging, to, staged_host, host_bytes] {
    return copy(*plan, to, staged_host, host_bytes, Direction::to_device);
  });
  for (int i = 0; i < count; ++i) enqueue(*stream, tasks[i].release());
  return TILEKILN_OK;
}

}  // namespace tilekiln::fmha
