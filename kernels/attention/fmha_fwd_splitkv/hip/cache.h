// SPDX-License-Identifier: MIT
// Problem of forward.hip with CACHE, from a checked call over a KV cache, for both pipelines.
#pragma once
#include "kernels/attention/fill_places.h"
#include "kernels/attention/hip/host.h"

#define TILEKILN_JOIN(a, b, c, d) a##b##c##d
#define TILEKILN_ENGINE(target, pipeline) TILEKILN_JOIN(tilekiln_, target, _fmha_fwd_splitkv_, pipeline)

namespace tilekiln::hip {
namespace {

using fmha::Bias;
using fmha::KvKernelProblem;
using fmha::KvProblem;

constexpr i64 most_bytes = INT32_MAX;  // of a buffer's offsets

void fill_cache_places(const KvKernelProblem& of, CachePlaces* at) {
  fmha::fill_places(of.places, of.problem.pages, at);
  at->seqlen_q_most = of.seqlen_q;
  at->seqlen_k_most = of.seqlen_k;
}

[[maybe_unused]] tilekiln_status check_cache(const KvKernelProblem& of) {
  const KvProblem& p = of.problem;
  const fmha::KvPages& pages = p.pages;
  const bool paged = pages.page_size != 0, vectorized = paged && pages.layout == fmha::KvLayout::vectorized;
  TILEKILN_TRY(check_steps("q", p.q, p.q_row, p.q_head, of.steps.q, p.hdim_q));
  TILEKILN_TRY(check_steps("out", p.out, p.out_row, p.out_head, of.steps.out, p.hdim_v));
  TILEKILN_TRY(check_steps("k", p.k, vectorized ? pages.k_chunk : p.k_row, p.k_head, paged ? pages.k_page : of.steps.k,
                           p.hdim_q));
  TILEKILN_TRY(check_steps("v", p.v, vectorized ? pages.v_chunk : p.v_row, p.v_head, paged ? pages.v_page : of.steps.v,
                           p.hdim_v));
  return check_scores(p);
}

i64 key_bytes(const KvProblem& p) { return p.dtype == fmha::KvDtype::fp16 || p.dtype == fmha::KvDtype::bf16 ? 2 : 1; }

// The bytes from a head's first element of `size` to the end of a pool of so many pages; 0: not known, or more than a
// buffer's offsets reach.
i64 pool_bytes(i64 size, i64 pages, i64 page, i64 last) {
  if (pages <= 0 || page > most_bytes / size / pages) return 0;
  const i64 bytes = size * ((pages - 1) * page + last);
  return bytes <= most_bytes ? bytes : 0;
}

// `near`: the instance loads by the offsets of one buffer.
[[maybe_unused]] void fill_cache(const KvKernelProblem& of, bool near, ScaledCacheProblem* to) {
  const KvProblem& p = of.problem;
  const fmha::KvPages& pages = p.pages;
  const bool group = p.features.group, paged = pages.page_size != 0;
  fill_scores(p, to);
  fill_cache_places(of, &to->at);
  const auto step = [&](i64 batch) { return group ? 0 : batch; };
  to->q = p.q, to->k = p.k, to->v = p.v, to->out = p.out, to->lse = p.lse, to->bias = p.bias;
  if (p.lse != nullptr) to->features |= kLse;
  to->q_batch = step(of.steps.q), to->q_head = p.q_head, to->q_row = static_cast<int>(p.q_row);
  to->out_batch = step(of.steps.out), to->out_head = p.out_head, to->out_row = static_cast<int>(p.out_row);
  to->lse_batch = step(of.steps.lse), to->lse_head = p.lse_head;
  to->bias_batch = step(of.steps.bias), to->bias_head = p.bias_head, to->bias_row = static_cast<int>(p.bias_row);
  to->alibi_slopes = p.alibi_slopes, to->alibi_batch = of.steps.alibi;
  to->sink = p.sink;
  to->k_batch = paged ? pages.k_page : step(of.steps.k), to->k_head = p.k_head;
  to->v_batch = paged ? pages.v_page : step(of.steps.v), to->v_head = p.v_head;
  to->vectorized = paged && pages.layout == fmha::KvLayout::vectorized;
  const i64 size = key_bytes(p), vec = 16 / size;
  to->k_row = static_cast<int>(to->vectorized ? vec : p.k_row), to->k_chunk = to->vectorized ? pages.k_chunk : vec;
  to->v_row = static_cast<int>(to->vectorized ? vec : p.v_row), to->v_chunk = to->vectorized ? pages.v_chunk : vec;
  if (near && paged && pages.k_page > 0) {
    const i64 count = of.cache_bytes / size / pages.k_page, last = p.hdim_q - 8, last_v = pages.page_size / vec - 1;
    to->k_bytes = static_cast<int>(pool_bytes(
        size, count, pages.k_page, (pages.page_size - 1) * i64(to->k_row) + last / vec * to->k_chunk + last % vec + 8));
    to->v_bytes = static_cast<int>(pool_bytes(
        size, count, pages.v_page,
        to->vectorized ? last_v * to->v_chunk + vec * p.hdim_v : (pages.page_size - 1) * i64(to->v_row) + p.hdim_v));
  }
  to->seqlen_q = of.seqlen_q, to->seqlen_k = of.seqlen_k;
  to->hdim_q = p.hdim_q, to->hdim_v = p.hdim_v;
  to->nhead_q = p.nhead_q;
  to->heads_per_key_head = p.nhead_k > 0 ? p.nhead_q / p.nhead_k : 1;
  to->pack = 1;
  to->splits = of.num_splits;
  to->part_out = of.part_out, to->part_lse = of.part_lse;
  to->q_descale = p.q_descale, to->k_descale = p.k_descale, to->v_descale = p.v_descale;
  to->k_page_scale = p.k_page_scale, to->v_page_scale = p.v_page_scale;
  to->page_scale_page = p.page_scale_page, to->page_scale_head = p.page_scale_head;
  to->out_scale = of.out_scale;
  to->out_fp8 = p.dtype == fmha::KvDtype::fp8 ? 1 : 0;
  to->one = 1;
}

Format format_of(fmha::KvDtype dtype) {
  switch (dtype) {
    case fmha::KvDtype::bf16: return {true, 0, 0};
    case fmha::KvDtype::bf16_fp8: return {true, 3, 0};
    case fmha::KvDtype::fp8:
    case fmha::KvDtype::fp8bf16: return {false, 1, 0};
    default: return {false, 0, 0};
  }
}

[[maybe_unused]] const Kernel* find_cache(const KvProblem& p) {
  return find_forward("fmha_cache_", p.hdim_q, p.hdim_v, format_of(p.dtype), p.features.dropout);
}

[[maybe_unused]] tilekiln_status launch_cache(const Site& site, const KvKernelProblem& of, const Kernel& kernel,
                                              const ScaledCacheProblem& row) {
  const auto& build = build_as<ForwardBuild>(kernel);
  const i64 rows = i64(of.seqlen_q) * row.pack, blocks = (rows + build.tile_q - 1) / build.tile_q;
  TILEKILN_TRY(check_blocks(row.nhead_q, i64(of.batch) * row.splits, blocks));
  if (row.nhead_q == 0 || row.hdim_v == 0) return TILEKILN_OK;
  return launch(site, {&kernel,
                       "tilekiln_fmha_fwd_waves",
                       {static_cast<unsigned>(blocks), static_cast<unsigned>(row.nhead_q / row.pack),
                        static_cast<unsigned>(of.batch * row.splits)},
                       static_cast<unsigned>(build.threads),
                       &row,  // what other kernels take is its beginning
                       build.fp8 != 0 ? sizeof(ScaledCacheProblem) : sizeof(CacheProblem)});
}

}  // namespace
}  // namespace tilekiln::hip
