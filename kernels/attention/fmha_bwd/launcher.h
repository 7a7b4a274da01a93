// SPDX-License-Identifier: MIT
// Backward calls of one problem over a workspace that is prepared apart from them, in stream order if wanted.
#pragma once
#include <memory>

#include "kernels/attention/fmha_bwd/call.h"

namespace tilekiln::fmha {

// Checks each field of a problem against what operator.yaml says there can be.
[[nodiscard]] tilekiln_status check_fields(const tilekiln_fmha_bwd_problem& problem);

class BwdLauncher {
 public:
  // Everything that follows from the problem; work in a stream keeps it when the launcher is gone.
  struct Plan {
    BwdTraits traits;
    BwdWorkspaceShape shape;
    int nhead_k;
    i64 total_q, max_seqlen_k;  // of all sequences together, padding included; of the longest
    i64 max_seqlen_q;           // of the longest
    Choice stages[TILEKILN_BWD_STAGES];
    tilekiln::Run run;                     // the device and its backend
    bool has_kernels() const;              // of its own, which find their schedule themselves
    uint64_t host_bytes, workspace_bytes;  // of the host segment; of all, an upper bound
  };

  // Throws std::bad_alloc. NO_KERNEL when a stage has no instance.
  [[nodiscard]] static tilekiln_status create(const tilekiln_fmha_bwd_problem& problem,
                                              std::unique_ptr<BwdLauncher>* launcher);
  BwdLauncher(const BwdLauncher&) = delete;
  BwdLauncher& operator=(const BwdLauncher&) = delete;

  const Plan& plan() const { return *plan_; }
  // The host segment and an upper bound of dq_acc.
  u64 workspace_size() const { return plan_->workspace_bytes; }
  // See tilekiln.h.
  [[nodiscard]] tilekiln_status prepare(const tilekiln_tensor* workspace, const tilekiln_tensor* seqstart_q,
                                        const tilekiln_tensor* seqstart_k) const;
  [[nodiscard]] tilekiln_status prepare_async(const tilekiln_tensor* workspace, const tilekiln_tensor* seqstart_q,
                                              const tilekiln_tensor* seqstart_k, tilekiln_stream* stream,
                                              const tilekiln_staging_allocator* allocator) const;
  [[nodiscard]] tilekiln_status run(const tilekiln_fmha_bwd_args& args) const;

 private:
  explicit BwdLauncher(std::shared_ptr<const Plan> plan) : plan_(std::move(plan)) {}
  std::shared_ptr<const Plan> plan_;
};

}  // namespace tilekiln::fmha
