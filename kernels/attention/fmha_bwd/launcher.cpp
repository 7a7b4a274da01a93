// SPDX-License-Identifier: MIT
// A launcher's plan of its problem, and its runs.
#include <stddef.h>
#include <string.h>

#include <algorithm>

#include "kernels/attention/fmha_bwd/launcher.h"
#include "kernels/generated/fmha_bwd_dq_dk_dv.h"
#include "kernels/runtime/backend.h"
#include "kernels/runtime/stream.h"

namespace tilekiln::fmha {
namespace {

using ll = long long;

tilekiln_status check_problem(const tilekiln_fmha_bwd_problem& p) {
  TILEKILN_TRY(check_fields(p));
  const bool group = p.group != 0;
  const struct {
    const char* name;
    i64 value, most;
  } fields[] = {
      {"seqlen_q", p.seqlen_q, group ? INT32_MAX : max_seqlen},
      {"seqlen_k", p.seqlen_k, max_seqlen},
      {"workers", p.workers, p.deterministic != 0 ? max_workers : 0},
      {"max_seqlen_q", p.max_seqlen_q, group ? p.seqlen_q : 0},
  };
  for (const auto& field : fields) TILEKILN_TRY(check_range(field.name, field.value, 0, field.most));
  const Backend* const backend = backend_of(p.device_type);
  if (backend == nullptr || (backend->takes_units && !backend->host_memory)) {
    char was[48];
    const Device device = {p.device_type, p.device_id};
    return fail(TILEKILN_NO_KERNEL, "device_type: was %d (%s), must be one for which this library prepares workspaces",
                p.device_type, device_text(device, was, sizeof(was)));
  }
  if (p.nhead_q % p.nhead_k == 0) return TILEKILN_OK;
  return fail_argument("nhead_k", "was %d, must divide %d, nhead_q", p.nhead_k, p.nhead_q);
}

BwdTraits traits_of(const tilekiln_fmha_bwd_problem& p) {
  BwdTraits traits = {};
  BwdFeatures& features = traits.features;
  features.dtype = dtype_of(p.dtype);
  features.bias = static_cast<Bias>(p.bias);
  features.group = p.group != 0;
  features.mask = p.mask != 0;
  features.dbias = p.dbias != 0;
  features.dropout = p.dropout != TILEKILN_DROPOUT_NONE;
  features.store_randval = p.dropout == TILEKILN_DROPOUT_STORE;
  features.softcap = p.softcap != 0;
  features.sink = p.sink != 0;
  features.deterministic = p.deterministic != 0;
  traits.hdim_q = p.hdim_q;
  traits.hdim_v = p.hdim_v;
  return traits;
}

bool same(const BwdFeatures& a, const BwdFeatures& b) {
  return a.dtype == b.dtype && a.bias == b.bias && a.group == b.group && a.mask == b.mask && a.dbias == b.dbias &&
         a.dropout == b.dropout && a.store_randval == b.store_randval && a.softcap == b.softcap && a.sink == b.sink &&
         a.deterministic == b.deterministic;
}

// Checks that a checked call is of the problem. `lengths`: whether its sequences are known.
tilekiln_status check_same(const BwdLauncher::Plan& plan, const tilekiln_fmha_bwd_args& args, const BwdCall& call,
                           BwdLengths lengths) {
  const BwdProblem& p = call.problem;
  if (!same(p.features, plan.traits.features)) {
    return fail_argument(
        "args",
        "asked for other features than the launcher's problem (dtype, mode, mask, bias, dbias, dropout, softcap, "
        "sink, deterministic), must be of that problem");
  }
  const struct {
    const char* name;
    i64 value, wanted;
  } fields[] = {{"hdim_q", p.hdim_q, plan.traits.hdim_q},
                {"hdim_v", p.hdim_v, plan.traits.hdim_v},
                {"nhead_q", p.nhead_q, plan.shape.nhead_q},
                {"nhead_k", p.nhead_k, plan.nhead_k},
                {"batch", call.batch, plan.shape.batch}};
  for (const auto& field : fields) {
    if (field.value == field.wanted) continue;
    return fail_argument(field.name, "was %lld, must be %lld, that of the launcher's problem",
                         static_cast<ll>(field.value), static_cast<ll>(field.wanted));
  }
  if (args.workers != 0 && args.workers != plan.shape.workers) {
    return fail_argument("workers", "was %d, must be 0 or %d, those of the launcher's problem", args.workers,
                         plan.shape.workers);
  }
  if (args.instance != -1 && args.instance != plan.stages[TILEKILN_BWD_DQ_DK_DV].instance) {
    return fail_argument("instance", "was %lld, must be -1 or %lld, that of the launcher",
                         static_cast<ll>(args.instance), static_cast<ll>(plan.stages[TILEKILN_BWD_DQ_DK_DV].instance));
  }
  if (!p.features.group) {
    if (call.physical_q != plan.total_q / std::max(1, plan.shape.batch)) {
      return fail_argument("q", "seqlen was %lld, must be that of the launcher's problem",
                           static_cast<ll>(call.physical_q));
    }
    if (call.physical_k == plan.max_seqlen_k) return TILEKILN_OK;
    return fail_argument("k", "seqlen was %lld, must be %lld, that of the launcher's problem",
                         static_cast<ll>(call.physical_k), static_cast<ll>(plan.max_seqlen_k));
  }
  if (lengths == BwdLengths::later || call.batch == 0 || call.unread) return TILEKILN_OK;
  const Sequence& last = *(call.sequences.end() - 1);
  if (last.place_q + last.room_q > plan.total_q) {
    return fail_argument("seqstart_q",
                         "ended at %lld, must end at %lld or before, the seqlen_q of the launcher's problem",
                         static_cast<ll>(last.place_q + last.room_q), static_cast<ll>(plan.total_q));
  }
  if (call.longest_k <= plan.max_seqlen_k) return TILEKILN_OK;
  return fail_argument("seqstart_k",
                       "had a sequence of %lld, must have none above %lld, the seqlen_k of the launcher's problem",
                       static_cast<ll>(call.longest_k), static_cast<ll>(plan.max_seqlen_k));
}

tilekiln_status check(const BwdLauncher::Plan& plan, const tilekiln_fmha_bwd_args& args, BwdCall* call,
                      BwdLengths lengths) {
  TILEKILN_TRY(check_bwd(args, call, lengths));
  if (call->device != plan.run.device) {
    char was[48], must[48];
    return fail_argument("q", "device was %s, must be %s, that of the launcher's problem",
                         device_text(call->device, was, sizeof(was)), device_text(plan.run.device, must, sizeof(must)));
  }
  TILEKILN_TRY(check_same(plan, args, *call, lengths));
  for (int stage = 0; stage < TILEKILN_BWD_STAGES; ++stage) call->stages[stage] = plan.stages[stage];
  call->workers = plan.shape.workers;
  call->memory = BwdMemory::prepared;
  return TILEKILN_OK;
}

// Arguments that outlive the caller's structs: the index arrays are read when the stream has come to the call.
class ArgsTask : public StreamTask {
 public:
  ArgsTask(std::shared_ptr<const BwdLauncher::Plan> plan, const tilekiln_fmha_bwd_args& args)
      : plan_(std::move(plan)), args_(args) {
    const tilekiln_tensor** const first = &args_.dout;
    for (int i = 0; i < tensor_count; ++i) {
      if (first[i] == nullptr) continue;
      tensors_[i] = *first[i];
      first[i] = &tensors_[i];
    }
    if (args.softmax_scale != nullptr) {
      softmax_scale_ = *args.softmax_scale;
      args_.softmax_scale = &softmax_scale_;
    }
    if (args.executor != nullptr) {
      executor_ = *args.executor;
      args_.executor = &executor_;
    }
    args_.stream = nullptr;
  }
  tilekiln_status run() override {
    BwdCall call;
    TILEKILN_TRY(check(*plan_, args_, &call, BwdLengths::now));
    return run_bwd(call);
  }

 private:
  // The tensors of the arguments follow each other, from dout to workspace.
  static constexpr int tensor_count = static_cast<int>(
      (offsetof(tilekiln_fmha_bwd_args, workspace) - offsetof(tilekiln_fmha_bwd_args, dout)) / sizeof(void*) + 1);
  static_assert(tensor_count == 23 && offsetof(tilekiln_fmha_bwd_args, softmax_scale) ==
                                          offsetof(tilekiln_fmha_bwd_args, workspace) + sizeof(void*));
  std::shared_ptr<const BwdLauncher::Plan> plan_;
  tilekiln_fmha_bwd_args args_;
  tilekiln_tensor tensors_[tensor_count];
  float softmax_scale_ = 0;
  tilekiln_executor executor_ = {};
};

}  // namespace

tilekiln_status BwdLauncher::create(const tilekiln_fmha_bwd_problem& problem, std::unique_ptr<BwdLauncher>* launcher) {
  TILEKILN_TRY(check_problem(problem));
  auto plan = std::make_shared<Plan>();
  plan->traits = traits_of(problem);
  plan->nhead_k = problem.nhead_k;
  plan->max_seqlen_k = problem.seqlen_k;
  plan->total_q = problem.group != 0 ? problem.seqlen_q : problem.batch * problem.seqlen_q;
  plan->max_seqlen_q = problem.group == 0          ? problem.seqlen_q
                       : problem.max_seqlen_q != 0 ? problem.max_seqlen_q
                                                   : problem.seqlen_q;
  plan->run.backend = backend_of(problem.device_type);
  plan->run.device = {problem.device_type, problem.device_type == TILEKILN_CPU ? 0 : problem.device_id};
  Query queries[TILEKILN_BWD_STAGES];
  set_bwd_queries(plan->traits, queries);
  for (Query& query : queries) query.device = plan->run.device;
  TILEKILN_TRY(choose_bwd(-1, queries, plan->stages));

  BwdWorkspaceShape& shape = plan->shape;
  const uint32_t* const fields = plan->stages[TILEKILN_BWD_DQ_DK_DV].how->fields;
  shape.group = problem.group != 0;
  shape.deterministic = problem.deterministic != 0;
  shape.batch = problem.batch;
  shape.nhead_q = problem.nhead_q;
  shape.hdim_q = problem.hdim_q;
  shape.tile_q = static_cast<int>(fields[fmha_bwd_dq_dk_dv::fields::tile_q]);
  shape.tile_k = static_cast<int>(fields[fmha_bwd_dq_dk_dv::fields::tile_k]);
  if (!shape.group) {
    shape.seqlen_q = problem.seqlen_q;
    shape.seqlen_k = problem.seqlen_k;
  }
  if (plan->has_kernels()) {
    shape.workers = problem.workers;
    plan->host_bytes = kernels_host_segment(shape.group, shape.batch);
    BwdKernelProblem of = {};
    of.problem.features = plan->traits.features;
    of.problem.nhead_q = problem.nhead_q;
    of.problem.nhead_k = problem.nhead_k;
    of.problem.softmax_scale = 1;
    of.alike = !shape.group;
    of.batch = problem.batch;
    of.seqlen_q = static_cast<int>(plan->max_seqlen_q);
    of.seqlen_k = static_cast<int>(plan->max_seqlen_k);
    of.total_q = plan->total_q;
    of.workers = problem.workers;
    TILEKILN_TRY(kernels_workspace_bound(plan->run, plan->stages[TILEKILN_BWD_DQ_DK_DV], of, &plan->workspace_bytes));
    plan->workspace_bytes += plan->host_bytes;
  } else {
    shape.workers = problem.workers != 0 ? problem.workers : default_workers(shape, plan->total_q, plan->max_seqlen_k);
    TILEKILN_TRY(check_schedule(shape, problem.batch * problem.seqlen_k));
    plan->host_bytes = layout_of(shape).host;
    plan->workspace_bytes = plan->host_bytes + dq_acc_upper_bound(shape, plan->total_q, plan->max_seqlen_k);
  }
  launcher->reset(new BwdLauncher(std::move(plan)));
  return TILEKILN_OK;
}

bool BwdLauncher::Plan::has_kernels() const { return !run.backend->takes_units; }

tilekiln_status BwdLauncher::run(const tilekiln_fmha_bwd_args& args) const {
  if (args.size == sizeof(args) && args.workspace == nullptr) {
    return fail_argument("workspace", "was null, must be given: one that this launcher has prepared");
  }
  BwdCall call;
  if (plan_->has_kernels() && args.size == sizeof(args)) {
    // Kernels read the index arrays, in stream order.
    tilekiln_fmha_bwd_args own = args;
    if (plan_->shape.group && own.max_seqlen_q == 0 && own.max_seqlen_k == 0) {
      own.max_seqlen_q = static_cast<int32_t>(plan_->max_seqlen_q > 0 ? plan_->max_seqlen_q : 1);
      own.max_seqlen_k = static_cast<int32_t>(plan_->max_seqlen_k > 0 ? plan_->max_seqlen_k : 1);
    }
    TILEKILN_TRY(check(*plan_, own, &call, BwdLengths::now));
    return run_bwd(call);
  }
  if (args.size != sizeof(args) || args.stream == nullptr) {
    TILEKILN_TRY(check(*plan_, args, &call, BwdLengths::now));
    return run_bwd(call);
  }
  TILEKILN_TRY(check(*plan_, args, &call, BwdLengths::later));
  const auto own = [](void* context) {
    const std::unique_ptr<ArgsTask> task(static_cast<ArgsTask*>(context));
    return task->run();
  };
  auto task = std::make_unique<ArgsTask>(plan_, args);
  TILEKILN_TRY(call.backend->host(call.device, native_of(*args.stream), own, task.get()));
  static_cast<void>(task.release());
  return TILEKILN_OK;
}

}  // namespace tilekiln::fmha

struct tilekiln_fmha_bwd_launcher { std::unique_ptr<tilekiln::fmha::BwdLauncher> launcher; };

using namespace tilekiln;

namespace {

// Calls `use` with the launcher; turns its exceptions into a status.
template <class Use> tilekiln_status with(const tilekiln_fmha_bwd_launcher* handle, Use&& use) {
  if (handle == nullptr)
    return fail_argument("launcher", "was null, must be one that tilekiln_fmha_bwd_launcher_create made");
  try {
    return use(*handle->launcher);
  } catch (...) {
    return fail_exception();
  }
}

}  // namespace

tilekiln_status tilekiln_fmha_bwd_launcher_create(const tilekiln_fmha_bwd_problem* problem,
                                                  tilekiln_fmha_bwd_launcher** launcher) {
  if (launcher == nullptr) return fail_argument("launcher", "was null, must point to where the launcher is put");
  *launcher = nullptr;
  if (problem == nullptr) return fail_argument("problem", "was null, must point to a tilekiln_fmha_bwd_problem");
  try {
    auto made = std::make_unique<tilekiln_fmha_bwd_launcher>();
    TILEKILN_TRY(fmha::BwdLauncher::create(*problem, &made->launcher));
    *launcher = made.release();
    return TILEKILN_OK;
  } catch (...) {
    return fail_exception();
  }
}

tilekiln_status tilekiln_fmha_bwd_launcher_destroy(tilekiln_fmha_bwd_launcher* launcher) {
  delete launcher;
  return TILEKILN_OK;
}

tilekiln_status tilekiln_fmha_bwd_launcher_workspace_size(const tilekiln_fmha_bwd_launcher* launcher, uint64_t* bytes) {
  if (bytes == nullptr) return fail_argument("bytes", "was null, must point to where the size is put");
  return with(launcher, [&](const fmha::BwdLauncher& own) {
    *bytes = own.workspace_size();
    return TILEKILN_OK;
  });
}

tilekiln_status tilekiln_fmha_bwd_launcher_find(const tilekiln_fmha_bwd_launcher* launcher,
                                                int64_t instances[TILEKILN_BWD_STAGES]) {
  if (instances == nullptr) return fail_argument("instances", "was null, must point to where the numbers are put");
  return with(launcher, [&](const fmha::BwdLauncher& own) {
    for (int stage = 0; stage < TILEKILN_BWD_STAGES; ++stage) instances[stage] = own.plan().stages[stage].instance;
    return TILEKILN_OK;
  });
}

tilekiln_status tilekiln_fmha_bwd_launcher_prepare(tilekiln_fmha_bwd_launcher* launcher,
                                                   const tilekiln_tensor* workspace, const tilekiln_tensor* seqstart_q,
                                                   const tilekiln_tensor* seqstart_k) {
  return with(launcher, [&](const fmha::BwdLauncher& own) { return own.prepare(workspace, seqstart_q, seqstart_k); });
}

tilekiln_status tilekiln_fmha_bwd_launcher_prepare_async(tilekiln_fmha_bwd_launcher* launcher,
                                                         const tilekiln_tensor* workspace,
                                                         const tilekiln_tensor* seqstart_q,
                                                         const tilekiln_tensor* seqstart_k, tilekiln_stream* stream,
                                                         const tilekiln_staging_allocator* allocator) {
  return with(launcher, [&](const fmha::BwdLauncher& own) {
    return own.prepare_async(workspace, seqstart_q, seqstart_k, stream, allocator);
  });
}

tilekiln_status tilekiln_fmha_bwd_launcher_run(tilekiln_fmha_bwd_launcher* launcher,
                                               const tilekiln_fmha_bwd_args* args) {
  if (args == nullptr) return fail_argument("args", "was null, must point to a tilekiln_fmha_bwd_args");
  return with(launcher, [&](const fmha::BwdLauncher& own) { return own.run(*args); });
}
