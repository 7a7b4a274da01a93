// SPDX-License-Identifier: MIT
// The latent engine of fmha_mla_decode on Hopper: a checked call becomes one launch, or two where the keys go in parts.
// Compiled with -DTILEKILN_TARGET=<the target's name> and -DTILEKILN_KERNELS (held.h).
#include <algorithm>
#include <numeric>

#include "kernels/attention/cuda/coordinates.h"
#include "kernels/attention/fmha_mla_decode/call.h"
#include "kernels/attention/fmha_mla_decode/cuda/params.h"
#include "kernels/attention/splits.h"
#include "kernels/backends/cuda/held.h"

#define TILEKILN_JOIN(a, b, c) a##b##c
#define TILEKILN_ENGINE(target) TILEKILN_JOIN(tilekiln_, target, _fmha_mla_decode_latent)

namespace tilekiln::cuda::mla {
namespace {

using i64 = long long;
using tilekiln::mla::Launched;
using tilekiln::mla::Problem;

bool in_sixteens(const void* data, i64 first, i64 second, i64 third, int bytes = 2) {
  return reinterpret_cast<uintptr_t>(data) % 16 == 0 && (first | second | third) * bytes % 16 == 0;
}

bool of_bytes(const Problem& p) { return p.storage == tilekiln::mla::Storage::bf16_fp8; }

tilekiln_status check(const Launched& of) {
  const Problem& p = of.problem;
  if (p.hdim_q % 8 != 0)
    return fail_argument("q", "hdim was %d, must be a multiple of 8 on cuda: pad it with zeros", p.hdim_q);
  if (p.hdim_v > kMostValues)
    return fail_argument("hdim_v", "was %d, must be at most %d on cuda", p.hdim_v, kMostValues);
  constexpr int most = 65535;
  if (p.batch > most) return fail_argument("q", "batch was %d, must be at most %d on cuda", p.batch, most);
  if (in_sixteens(p.cache, p.cache_page, p.cache_row, 0, of_bytes(p) ? 1 : 2)) return TILEKILN_OK;
  return fail_argument("cache",
                       "rows began at %p and were %lld elements apart, pages %lld, must be at multiples of 16 "
                       "bytes on cuda: pass a copy",
                       p.cache, p.cache_row, p.cache_page);
}

// Rows from a page of the cache to the next; 0: its pages are not whole rows, or more than TMA counts.
i64 page_rows(const Launched& of) {
  const Problem& p = of.problem;
  const i64 pages = p.table != nullptr ? of.pages : p.batch;
  if (p.cache_row <= 0 || p.cache_page < 0 || p.cache_row >= i64{1} << 32) return 0;
  if (pages <= 1) return std::max<i64>(p.page_size, of.room) < kFar ? std::max<i64>(of.room, 1) : 0;
  const i64 rows = p.cache_page / p.cache_row;
  return p.cache_page % p.cache_row == 0 && rows < kFar / pages ? rows : 0;
}

// Rows of a tensor copy: no page's end lies in it.
int box_of(const Launched& of) {
  const Problem& p = of.problem;
  return p.table == nullptr ? kKeys : std::gcd(p.page_size, kKeys);
}

// TMA copies tiles: boxes of a swizzle's eight rows and more.
bool by_tma(const Launched& of) { return !of_bytes(of.problem) && box_of(of) >= 8 && page_rows(of) > 0; }

// Parts of the keys by which processors have turns of like length, each of two tiles or more where it is full, less the
// time of writing and reading the parts. A tile takes `tile_us`.
i64 chosen_splits(const Launched& of, i64 units, i64 processors, double tile_us) {
  if (of.num_splits > 0) return of.num_splits;
  constexpr double bytes_us = 4e6;
  const Problem& p = of.problem;
  const i64 most = std::clamp<i64>(of.room / (2 * kKeys), 1, fmha::max_splits);
  const double part_bytes = 8.0 * p.batch * p.seqlen_q * p.nhead * p.hdim_v;
  const double part = part_bytes / bytes_us / (tile_us * (of.room / kKeys + 1));
  const auto turns = [&](i64 splits) {
    return static_cast<double>((units * splits + processors - 1) / processors) / static_cast<double>(splits) +
           part * static_cast<double>(splits);
  };
  i64 best = 1;
  for (i64 splits = 2; splits <= most; ++splits)
    if (turns(splits) < turns(best)) best = splits;
  return best;
}

// A form of the kernel, and the time of a tile of 64 keys (H200).
struct Form {
  const char* function;
  double tile_us;
};

Form form_of(const Launched& of) {
  if (of_bytes(of.problem)) return {"latent_products_of_bytes", 4};
  return by_tma(of) ? Form{"latent_products", 1.5} : Form{"latent_products_moved", 4.5};
}

tilekiln_status fill(const Site& site, const Launched& of, i64 splits, Params* params) {
  const Problem& p = of.problem;
  constexpr float log2_e = 1.4426950408889634F;
  *params = {{},
             p.q,
             p.cache,
             p.out,
             p.lse,
             of.seqlen_k,
             p.table,
             nullptr,
             nullptr,
             p.q_batch,
             p.q_row,
             p.q_head,
             p.cache_page,
             p.cache_row,
             p.out_batch,
             p.out_row,
             p.out_head,
             p.lse_batch,
             p.lse_head,
             p.table_row,
             p.batch,
             p.seqlen_q,
             p.nhead,
             p.hdim_q,
             p.hdim_v,
             p.page_size,
             of.pages,
             of.room,
             p.causal ? 1 : 0,
             static_cast<int>(splits),
             static_cast<int>(page_rows(of)),
             box_of(of),
             (p.hdim_v + 3) / 4 * 4,
             in_sixteens(p.q, p.q_batch, p.q_row, p.q_head) ? 1 : 0,
             splits == 1 && in_sixteens(p.out, p.out_batch | p.hdim_v, p.out_row, p.out_head) ? 1 : 0,
             p.softmax_scale * log2_e};
  if (!by_tma(of)) return TILEKILN_OK;
  const auto step = static_cast<uint64_t>(p.cache_row) * 2;
  const RowArray cache = {"cache",
                          p.cache,
                          TILEKILN_BF16,
                          {static_cast<uint64_t>(p.hdim_q), kFar, 2 * uint64_t{kFar}, 2 * uint64_t{kFar}, 1},
                          {step, step, (uint64_t{1} << 34) - step, 16},
                          true};
  return encode(cache, static_cast<uint32_t>(params->box), site.device.id, &params->map);
}

tilekiln_status launch_latent(const Site& site, const void* problem) {
  const auto& of = *static_cast<const Launched*>(problem);
  const Problem& p = of.problem;
  TILEKILN_TRY(check(of));
  const Kernel* const kernel = find_held([](const Kernel&) { return true; });
  if (kernel == nullptr) return fail(TILEKILN_INTERNAL, "the library has fmha_mla_decode for cuda without its kernel");
  const i64 rows = i64{p.seqlen_q} * p.nhead;
  if (rows > INT32_MAX / 2)
    return fail_argument("q", "had %lld pairs of a query and a head, must have fewer than 2^30 on cuda", rows);
  const Form form = form_of(of);
  const i64 tiles = (rows - 1) / kProductRows + 1;
  const i64 splits = chosen_splits(of, tiles * p.batch, facts(site.device.id)->multiprocessors, form.tile_us);
  Params params;
  TILEKILN_TRY(fill(site, of, splits, &params));
  LaunchMemory memory;
  if (splits > 1) {
    const i64 parts = p.batch * splits * rows;
    TILEKILN_TRY(memory.take(site, static_cast<size_t>(parts * (params.part_row + 1)) * sizeof(float), 0));
    params.part_out = static_cast<float*>(memory.data());
    params.part_lse = params.part_out + parts * params.part_row;
  }
  TILEKILN_TRY(
      launch(site, {kernel,
                    form.function,
                    {static_cast<unsigned>(tiles), static_cast<unsigned>(splits), static_cast<unsigned>(p.batch)},
                    kProductThreads,
                    static_cast<unsigned>(static_cast<const Build*>(kernel->build)->shared_bytes),
                    &params,
                    false,
                    splits == 1}));
  if (splits == 1) return TILEKILN_OK;
  return launch(site, {kernel,
                       "latent_combine",
                       {static_cast<unsigned>(rows), static_cast<unsigned>(p.batch), 1},
                       kCombineThreads,
                       0,
                       &params,
                       false,
                       true});
}

}  // namespace
}  // namespace tilekiln::cuda::mla

extern "C" const tilekiln::cuda::Engine TILEKILN_ENGINE(TILEKILN_TARGET) = {tilekiln::cuda::mla::launch_latent};
