// Problem -> signature.
#include "tilekiln/generated/fmha_fwd.h"

#include "tilekiln/runtime/fmha_fwd.h"

namespace tilekiln::fmha {

using fmha_fwd::Signature;
using SignatureDtype = decltype(Signature::dtype);
using SignatureMode = decltype(Signature::mode);
using SignatureMask = decltype(Signature::mask);
using SignatureBias = decltype(Signature::bias);
using SignatureQscale = decltype(Signature::qscale);

// The engine's enums are written by hand, because engines include nothing generated.
#define TILEKILN_SAME(type, value) static_assert(static_cast<int>(type::value) == static_cast<int>(Signature##type::value), \
                                                 "fmha/fwd_engine.h and kernels/fmha_fwd/family.yaml must number " #type "::" #value " alike")
TILEKILN_SAME(Dtype, fp32);
TILEKILN_SAME(Dtype, fp16);
TILEKILN_SAME(Dtype, bf16);
TILEKILN_SAME(Dtype, fp8bf16);
TILEKILN_SAME(Dtype, fp8fp32);
TILEKILN_SAME(Bias, none);
TILEKILN_SAME(Bias, elementwise);
TILEKILN_SAME(Bias, alibi);
TILEKILN_SAME(Qscale, none);
TILEKILN_SAME(Qscale, pertensor);
TILEKILN_SAME(Qscale, blockscale);
#undef TILEKILN_SAME

namespace {

Dtype dtype_of(int32_t q, int32_t out) {
  switch (q) {
    case TILEKILN_FP32: return Dtype::fp32;
    case TILEKILN_FP16: return Dtype::fp16;
    case TILEKILN_BF16: return Dtype::bf16;
    default: return out == TILEKILN_BF16 ? Dtype::fp8bf16 : Dtype::fp8fp32;
  }
}

}  // namespace

void set_fwd_signature(const tilekiln_fmha_fwd_args& args, Qscale qscale, int32_t dtype_q, int32_t dtype_out,
                       FwdCall* call) {
  FwdFeatures& features = call->problem.features;
  features.dtype = dtype_of(dtype_q, dtype_out);
  features.bias = args.bias != nullptr ? Bias::elementwise : args.alibi_slopes != nullptr ? Bias::alibi : Bias::none;
  features.qscale = qscale;
  features.mask = args.causal != 0 || args.window_left >= 0 || args.window_right >= 0;
  features.lse = args.lse != nullptr;
  features.dropout = args.dropout_p > 0;
  features.softcap = args.softcap > 0;
  features.skip_min_seqlen_q = args.min_seqlen_q > 0;
  // Sink columns change nothing when every key to the left is visible anyway.
  features.sink = args.sink != nullptr || (args.sink_size > 0 && args.window_left >= 0);

  Signature signature = {};
  signature.dtype = static_cast<SignatureDtype>(features.dtype);
  signature.mode = features.group ? SignatureMode::group : SignatureMode::batch;
  signature.mask = features.mask ? SignatureMask::window : SignatureMask::none;
  signature.bias = static_cast<SignatureBias>(features.bias);
  signature.lse = features.lse;
  signature.dropout = features.dropout;
  signature.softcap = features.softcap;
  signature.skip_min_seqlen_q = features.skip_min_seqlen_q;
  signature.sink = features.sink;
  signature.qscale = static_cast<SignatureQscale>(qscale);
  call->query.features = fmha_fwd::pack(signature);
}

}  // namespace tilekiln::fmha
