// The waves engine of fmha_fwd: a checked call becomes the problem of one launch. Compiled with -DTILEKILN_TARGET=<the target's name> and
// -DTILEKILN_KERNELS=<K(name) for every kernel there is>; a library holds those that its rows need, the others are null here.
#include <initializer_list>

#include "kernels/attention/fmha_fwd/call.h"
#include "kernels/attention/fmha_fwd/hip/problem.h"
#include "kernels/backends/hip/kernel.h"
#include "kernels/backends/philox.h"
#include "kernels/generated/fmha_fwd.h"

#define TILEKILN_JOIN(a, b, c) a##b##c
#define TILEKILN_ENGINE(target) TILEKILN_JOIN(tilekiln_, target, _fmha_fwd_waves)

#define K(name) extern "C" __attribute__((weak, visibility("hidden"))) const tilekiln::hip::Kernel name;
TILEKILN_KERNELS
#undef K

namespace tilekiln::hip {
namespace {

using fmha::Dtype;
using fmha::FwdKernelProblem;
using fmha::FwdProblem;
using fmha::i64;

constexpr float log2_e = 1.4426950408889634f;
constexpr i64 multiple = 8;         // elements: 16 bytes, what a lane loads at once
constexpr i64 most_row = 1 << 22;   // elements from row to row: a tile's rows are counted in bytes of 31 bits
constexpr i64 most_blocks = 65535;  // of the grid's second and third dimension

#define K(name) &name,
const Kernel* const kernels[] = {TILEKILN_KERNELS};
#undef K

const ForwardBuild& build_of(const Kernel& kernel) { return *static_cast<const ForwardBuild*>(kernel.build); }

const Kernel* any() {
  for (const Kernel* kernel : kernels) {
    if (kernel != nullptr) return kernel;
  }
  return nullptr;
}

// The smallest kernel of the dtype, with dropout or without, that holds the instance's head dims; null: the library has none.
const Kernel* find_kernel(const Choice& choice, bool bf16, bool dropout) {
  const auto instance = tilekiln::fmha_fwd::unpack(choice.row->features, choice.row->integers);
  const Kernel* best = nullptr;
  for (const Kernel* kernel : kernels) {
    if (kernel == nullptr) continue;
    const ForwardBuild& build = build_of(*kernel);
    if ((build.bf16 != 0) != bf16 || (build.dropout != 0) != dropout) continue;
    if (build.hdim_q < static_cast<int>(instance.hdim_q) || build.hdim_v < static_cast<int>(instance.hdim_v)) continue;
    const auto area = [](const ForwardBuild& of) { return of.hdim_q * of.hdim_v; };
    if (best == nullptr || area(build) < area(build_of(*best))) best = kernel;
  }
  return best;
}

tilekiln_status check_steps(const char* name, const void* data, i64 row, i64 head, i64 batch, int hdim) {
  if (hdim % multiple != 0)
    return fail_argument(name, "had a head dim of %d, must have a multiple of %lld on hip", hdim, multiple);
  if (reinterpret_cast<uintptr_t>(data) % 16 != 0)
    return fail_argument(name, "data was at %p, must be aligned to 16 bytes on hip", data);
  for (const i64 step : {row, head, batch}) {
    if (step % multiple == 0 && step >= 0) continue;
    return fail_argument(name, "a stride was %lld elements, must be a multiple of %lld, 0 or more, on hip: pass a copy",
                         step, multiple);
  }
  if (row <= most_row) return TILEKILN_OK;
  return fail_argument(name, "the stride from row to row was %lld elements, must be at most %lld on hip: pass a copy",
                       row, most_row);
}

tilekiln_status check_problem(const FwdKernelProblem& of, i64 blocks) {
  const FwdProblem& p = of.problem;
  TILEKILN_TRY(check_steps("q", p.q, p.q_row, p.q_head, of.steps.q, p.hdim_q));
  TILEKILN_TRY(check_steps("k", p.k, p.k_row, p.k_head, of.steps.k, p.hdim_q));
  TILEKILN_TRY(check_steps("v", p.v, p.v_row, p.v_head, of.steps.v, p.hdim_v));
  TILEKILN_TRY(check_steps("out", p.out, p.out_row, p.out_head, of.steps.out, p.hdim_v));
  if (p.features.bias == fmha::Bias::elementwise && (p.bias_row < 0 || p.bias_row > most_row))
    return fail_argument("bias",
                         "the stride from row to row was %lld elements, must be from 0 to %lld on hip: pass a copy",
                         p.bias_row, most_row);
  if (p.randval != nullptr) return fail_argument("randval", "was given, must be null on hip: its bytes are not stored");
  if (!(p.softmax_scale > 0))
    return fail_argument("softmax_scale", "was %g, must be above 0 on hip", static_cast<double>(p.softmax_scale));
  if (p.nhead_q > most_blocks)
    return fail_argument("q", "had %d heads, must have at most %lld on hip", p.nhead_q, most_blocks);
  if (of.batch > most_blocks)
    return fail_argument("q", "had a batch of %d, must have at most %lld on hip", of.batch, most_blocks);
  if (blocks <= INT32_MAX / 1024) return TILEKILN_OK;
  return fail_argument("q", "had %lld blocks of queries, must have at most %d on hip", blocks, INT32_MAX / 1024);
}

void fill_scores(const FwdProblem& p, ForwardProblem* to) {
  const auto on = [&](bool given, Feature feature) { to->features |= given ? feature : 0; };
  on(p.features.mask && (p.window_left >= 0 || p.window_right >= 0), kWindow);
  on(p.features.bias == fmha::Bias::alibi, kAlibi);
  on(p.features.bias == fmha::Bias::elementwise, kBias);
  on(p.features.softcap, kSoftcap);
  on(p.features.lse, kLse);
  on(p.features.sink && p.sink != nullptr, kSink);
  on(p.top_left, kTopLeft);
  to->window_left = p.window_left;
  to->window_right = p.window_right;
  to->sink_size = p.features.mask && p.window_left >= 0 ? p.sink_size : 0;
  to->scale_log2 = p.softmax_scale * log2_e;
  to->softcap = p.softcap;
  to->scale_over_softcap = p.features.softcap ? p.softmax_scale / p.softcap : 0;
  if (!p.features.dropout) return;
  to->dropout_seed = p.rng_seed;
  to->dropout_offset = p.rng_offset;
  to->dropout_threshold = core::dropout_threshold(p.dropout_p);
  to->keep_scale = 1 / (1 - p.dropout_p);
}

void fill_addresses(const FwdKernelProblem& of, ForwardProblem* to) {
  const FwdProblem& p = of.problem;
  const bool group = p.features.group;
  const auto step = [&](i64 batch) { return group ? 0 : batch; };
  to->q = p.q, to->k = p.k, to->v = p.v, to->out = p.out, to->lse = p.lse, to->bias = p.bias;
  to->q_batch = step(of.steps.q), to->q_head = p.q_head, to->q_row = static_cast<int>(p.q_row);
  to->k_batch = step(of.steps.k), to->k_head = p.k_head, to->k_row = static_cast<int>(p.k_row);
  to->v_batch = step(of.steps.v), to->v_head = p.v_head, to->v_row = static_cast<int>(p.v_row);
  to->out_batch = step(of.steps.out), to->out_head = p.out_head, to->out_row = static_cast<int>(p.out_row);
  to->lse_batch = step(of.steps.lse), to->lse_head = p.lse_head;
  to->bias_batch = step(of.steps.bias), to->bias_head = p.bias_head, to->bias_row = static_cast<int>(p.bias_row);
  to->alibi_slopes = p.alibi_slopes, to->alibi_batch = of.steps.alibi;
  to->sink = p.sink;
  const fmha::DeviceLengths& at = of.lengths;
  const auto either = [](const int* first, const int* second) { return first != nullptr ? first : second; };
  if (group) {
    to->seqstart_q = either(at.seqstart_q, at.cu_seqlens_q);
    to->seqstart_k = either(at.seqstart_k, at.cu_seqlens_k);
  }
  to->seqlens_q = at.seqlen_q, to->seqlens_k = at.seqlen_k;
  to->cu_seqlens_q = either(at.cu_seqlens_q, to->seqstart_q);
  to->cu_seqlens_k = either(at.cu_seqlens_k, to->seqstart_k);
}

tilekiln_status launch_waves(const Site& site, const void* problem) {
  const auto& of = *static_cast<const FwdKernelProblem*>(problem);
  const FwdProblem& p = of.problem;
  const Kernel* const kernel = find_kernel(*site.choice, p.features.dtype == Dtype::bf16, p.features.dropout);
  if (kernel == nullptr) return fail(TILEKILN_INTERNAL, "the library has a row of fmha_fwd for hip without its kernel");
  const ForwardBuild& build = build_of(*kernel);
  const i64 blocks = (i64(of.seqlen_q) + build.tile_q - 1) / build.tile_q;
  TILEKILN_TRY(check_problem(of, blocks));
  if (of.batch == 0 || p.nhead_q == 0 || of.seqlen_q == 0 || p.hdim_v == 0) return TILEKILN_OK;
  ForwardProblem row = {};
  fill_scores(p, &row);
  fill_addresses(of, &row);
  row.seqlen_q = of.seqlen_q;
  row.seqlen_k = of.seqlen_k;
  row.hdim_q = p.hdim_q;
  row.hdim_v = p.hdim_v;
  row.nhead_q = p.nhead_q;
  row.heads_per_key_head = p.nhead_k > 0 ? p.nhead_q / p.nhead_k : 1;
  row.min_seqlen_q = p.features.skip_min_seqlen_q ? of.min_seqlen_q : 0;
  return launch(site,
                {kernel,
                 "tilekiln_fmha_fwd",
                 {static_cast<unsigned>(blocks), static_cast<unsigned>(p.nhead_q), static_cast<unsigned>(of.batch)},
                 static_cast<unsigned>(build.threads),
                 &row,
                 sizeof(row)});
}

}  // namespace
}  // namespace tilekiln::hip

extern "C" const tilekiln::hip::Engine TILEKILN_ENGINE(TILEKILN_TARGET) = {tilekiln::hip::launch_waves,
                                                                           tilekiln::hip::any};
