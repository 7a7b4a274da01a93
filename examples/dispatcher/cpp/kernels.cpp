// SPDX-License-Identifier: MIT
// The kernels that the examples call. `scons kernel_set=examples/dispatcher/cpp/kernels.cpp` builds their library.
#include "tilekiln/dispatcher.hpp"

using namespace tilekiln::dispatcher;

TILEKILN_KERNEL_SET(
    examples, .about("What examples/dispatcher calls.")
                  .add(Signature("fwd")
                           .dtype("fp32")
                           .hdim(64)
                           .mode(any)
                           .mask(any)
                           .bias(any)
                           .lse(any)
                           .dropout(any)
                           .logits(any)
                           .sink(any))
                  .add(Signature("fwd").dtype("fp16").hdim(any).mask(any))
                  .add(Signature("fwd").dtype("bf16").hdim(any).mask(any).lse(any))
                  .add(Signature("fwd_splitkv").dtype("fp32").hdim(64).mask(any).lse(true).paged_kv(any))
                  .add(Signature("fwd_pagedkv").dtype("fp32").hdim(64).mode(any).mask(any))
                  .add(Signature("fwd_appendkv").dtype("fp32").hdim(64).rope(any).paged_kv(any))
                  .add(Signature("batch_prefill").dtype("bf16").hdim(128).mask(any).lse(any).kv_cache(any, any, any))
                  .add(Signature("bwd_dq_dk_dv")
                           .dtype("fp32")
                           .hdim(64)
                           .mask(any)
                           .bias(any)
                           .dbias(any)
                           .dropout(any)
                           .deterministic(any)));
