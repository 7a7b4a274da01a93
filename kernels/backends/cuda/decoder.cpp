// SPDX-License-Identifier: MIT
// tilekiln_cuda_decoder_step: a decode step through the layers of a decoder as one launch (decoder/step.cu), for
// `optimize` of tilekiln.torch.
#include <algorithm>

#include "kernels/backends/cuda/decoder/params.h"
#include "kernels/backends/cuda/kernel.h"

#define TILEKILN_STEPS(X) \
  X(tilekiln_cuda_sm90a_decoder_step_d64_bf16) X(tilekiln_cuda_sm90a_decoder_step_d64_fp16) \
  X(tilekiln_cuda_sm90a_decoder_step_d128_bf16) X(tilekiln_cuda_sm90a_decoder_step_d128_fp16)

#define TILEKILN_STEP(name) extern "C" __attribute__((weak, visibility("hidden"))) const tilekiln::cuda::Kernel name;
TILEKILN_STEPS(TILEKILN_STEP)
#undef TILEKILN_STEP

namespace tilekiln::cuda::decoder {
namespace {

const Kernel* find_step(const Call& call) {
#define TILEKILN_STEP(name) &name,
  for (const Kernel* kernel : {TILEKILN_STEPS(TILEKILN_STEP)}) {
#undef TILEKILN_STEP
    if (kernel == nullptr) continue;
    const auto& build = *static_cast<const Build*>(kernel->build);
    if (build.hdim == call.hdim && (build.fp16 != 0) == (call.dtype == TILEKILN_FP16)) return kernel;
  }
  return nullptr;
}

tilekiln_status check_columns(const char* name, int columns) {
  constexpr int of_piece = 32, most = 1 << 16;
  TILEKILN_TRY(check_range(name, columns, of_piece, most));
  return columns % of_piece == 0 ? TILEKILN_OK
                                 : fail_argument(name, "was %d, must be a multiple of %d", columns, of_piece);
}

tilekiln_status check_call(const Call& call) {
  TILEKILN_TRY(check_range("rows", call.rows, 1, kRows));
  TILEKILN_TRY(check_range("layers", call.count, 1, 1 << 12));
  TILEKILN_TRY(check_range("kv_heads", call.kv_heads, 1, 1 << 10));
  TILEKILN_TRY(check_range("heads", call.heads, call.kv_heads, 1 << 10));
  if (call.heads % call.kv_heads != 0)
    return fail_argument("heads", "were %d, must be a multiple of those of keys (%d)", call.heads, call.kv_heads);
  TILEKILN_TRY(check_columns("hidden", call.hidden));
  TILEKILN_TRY(check_columns("inner", call.inner));
  for (const int64_t stride : {call.cos_row, call.sin_row, call.cache_row, call.cache_head})
    if (stride % 8 != 0)
      return fail_argument("cache", "or angles had a stride of %lld numbers, must be a multiple of 8",
                           static_cast<long long>(stride));
  for (const void* at : {static_cast<const void*>(call.x), static_cast<const void*>(call.y),
                         static_cast<const void*>(call.cos), static_cast<const void*>(call.sin)})
    if (at == nullptr || reinterpret_cast<uintptr_t>(at) % 16 != 0)
      return fail_argument("x", "y, cos or sin was at %p, must be aligned to 16 bytes", at);
  if (call.head != nullptr) {
    TILEKILN_TRY(check_range("vocabulary", call.vocabulary, 8, 1 << 24));
    if (call.vocabulary % 8 != 0)
      return fail_argument("vocabulary", "was %d, must be a multiple of 8", call.vocabulary);
    if (call.last_norm == nullptr || call.logits == nullptr)
      return fail_argument(call.logits == nullptr ? "logits" : "last_norm", "was null, must be there with a head");
  }
  if (call.layers == nullptr || call.lengths == nullptr)
    return fail_argument(call.layers == nullptr ? "layers" : "lengths", "was null, must be on the device");
  return TILEKILN_OK;
}

// Takes pieces of the workspace; null: counts their bytes.
struct Pieces {
  char* at;
  size_t taken = 0;
  template <class T> T* take(int64_t count) {
    T* const piece = at == nullptr ? nullptr : reinterpret_cast<T*>(at + taken);
    taken += (static_cast<size_t>(count) * sizeof(T) + 127) / 128 * 128;
    return piece;
  }
};

tilekiln_status step(Call& call) {
  TILEKILN_TRY(check_call(call));
  const Kernel* const kernel = find_step(call);
  if (kernel == nullptr)
    return fail(TILEKILN_NO_KERNEL, "the library has no decode step of head dim %d and this dtype", call.hdim);
  const DeviceFacts* const fact = facts(call.device);
  if (fact == nullptr || fact->major != 9)
    return fail(TILEKILN_NO_KERNEL, "cuda:%d is no Hopper, which this decode step is for", call.device);
  Params p = {};
  p.layers = call.layers, p.count = call.count, p.x = call.x, p.y = call.y;
  p.cos = call.cos, p.sin = call.sin, p.cos_row = call.cos_row, p.sin_row = call.sin_row;
  p.lengths = call.lengths, p.rows = call.rows, p.hidden = call.hidden, p.inner = call.inner;
  p.heads = call.heads, p.kv_heads = call.kv_heads, p.cache_row = call.cache_row, p.cache_head = call.cache_head;
  constexpr float log2_e = 1.4426950408889634f;
  p.scale = call.scale * log2_e, p.epsilon = call.epsilon, p.rounds = call.rounds;
  // Two processors stay free for what the host launches meanwhile: its small kernels would wait for the whole step.
  constexpr int many = 32, free_ones = 2;
  const int grid = fact->multiprocessors > many ? fact->multiprocessors - free_ones : fact->multiprocessors;
  const int pairs = p.rows * p.kv_heads * ((p.heads / p.kv_heads + kHeads - 1) / kHeads),
            of_heads = p.heads * call.hdim;
  p.splits = std::max(1, grid / pairs);
  const int rows_bytes = p.rows * (std::max({p.hidden, p.inner, of_heads}) * 2 + 64);
  p.stages = std::min(kMostStages, (fact->shared_bytes - kHeadBytes - kSumBytes - rows_bytes) / kStageBytes);
  if (constexpr int least = 4; p.stages < least)
    return fail_argument("rows", "were %d of up to %d numbers, which leave no room for weights", p.rows,
                         std::max({p.hidden, p.inner, of_heads}));
  p.flight = kFlight;
  p.head = call.head, p.last_norm = call.last_norm, p.logits = call.logits, p.tokens = call.tokens;
  p.vocabulary = call.head != nullptr ? call.vocabulary : 0;
  Pieces from = {static_cast<char*>(call.workspace)};
  p.met = from.take<unsigned>(1), p.left = from.take<unsigned>(1), p.arrived = from.take<unsigned>(pairs);
  p.qkv = from.take<uint16_t>(int64_t{p.rows} * (of_heads + 2 * p.kv_heads * call.hdim));
  p.attended = from.take<uint16_t>(int64_t{p.rows} * of_heads);
  p.middle = from.take<uint16_t>(int64_t{p.rows} * p.hidden);
  p.gated = from.take<uint16_t>(int64_t{p.rows} * p.inner);
  p.best = from.take<Best>(int64_t{p.rows} * grid);
  p.parts = from.take<float>(int64_t{p.rows} * p.heads * p.splits * (call.hdim + 2));
  if (call.workspace == nullptr) {
    call.workspace_bytes = static_cast<int64_t>(from.taken);
    return TILEKILN_OK;
  }
  if (static_cast<size_t>(call.workspace_bytes) < from.taken)
    return fail_argument("workspace", "had %lld bytes, must have %zu, zeros at first",
                         static_cast<long long>(call.workspace_bytes), from.taken);
  const Entered entered(call.device);
  TILEKILN_TRY(entered.status());
  const auto shared = static_cast<unsigned>(kHeadBytes + kSumBytes + p.stages * kStageBytes + rows_bytes);
  const Site site = {{2, call.device}, call.stream, nullptr};
  const auto blocks = static_cast<unsigned>(grid);
  return launch(site, {kernel,
                       "decoder_step",
                       {blocks, 1, 1},
                       kThreads,
                       shared,
                       &p,
                       true,
                       false,
                       1,
                       static_cast<unsigned>(fact->shared_bytes)});
}

}  // namespace
}  // namespace tilekiln::cuda::decoder

// Enqueues it, and returns a status; without a workspace it says how many bytes that must have. Its end is not waited
// for.
extern "C" TILEKILN_API tilekiln_status tilekiln_cuda_decoder_step(tilekiln::cuda::decoder::Call* call) {
  if (call == nullptr || call->size != sizeof(*call))
    return tilekiln::fail_argument("call", "had another size, must be as large as the library says");
  return tilekiln::cuda::decoder::step(*call);
}
