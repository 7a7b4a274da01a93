// SPDX-License-Identifier: MIT
// Every feature and odd shape of the backward families against a float64 reference, on every engine linked in that this
// machine can run. Inputs touch inaccessible pages, padding is NaN, outputs are poisoned, scratch starts as NaN.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <vector>

#include "bwd_case.h"
#include "sweeps.h"
#include "tile_trap.h"

TILEKILN_EACH_TARGET(TILEKILN_WEAK_ENGINE, tilekiln::fmha::BwdEngine, fmha_bwd_dq_dk_dv, qtiles, qlanes)

namespace tilekiln::test {
namespace {

// Tolerances of a dtype, u = unit roundoff of what is rounded: 2^-9 bf16, 2^-12 fp16 (round to nearest: half an ulp), 2^-24 fp32.
//   element: |error| / sum of |terms|. bf16 rounds `out` (so D), P, dS and the result: 4 u. fp16 rounds `out` and the result.
//   rms:     as the forward's, but dS = P o (dP - D) is a difference, which the reference's own size does not show: the
//            worst bf16 case measured, 9e-3, has a head dim of 1.
struct Tolerance { double rms, element; };
Tolerance tolerance(Dtype dtype) {
  switch (dtype) {
    case Dtype::fp32: return {1e-5, 1e-5};
    case Dtype::fp16: return {6e-4, 8e-4};
    case Dtype::bf16: return {1.2e-2, 1.2e-2};
    default: std::abort();
  }
}

using Visit = Visitor<BwdCase>;

// Head dims, odd lengths, causal, and everything at once.
void shapes(const Visit& visit) {
  const std::pair<int, int> hdims[] = {{64, 64},   {128, 128}, {59, 59},   {111, 111}, {32, 48},
                                       {192, 128}, {1, 3},     {256, 256}, {66, 62},   {80, 80}};
  const std::pair<int, int> seqlens[] = {{64, 64}, {1, 1}, {77, 131}, {130, 65}, {5, 0}, {0, 70}, {64, 300}};
  for (auto [hdim_q, hdim_v] : hdims) {
    for (auto [seqlen_q, seqlen_k] : seqlens) {
      BwdCase t;
      t.name = "shape";
      t.hdim_q = hdim_q, t.hdim_v = hdim_v, t.seqlen_q = seqlen_q, t.seqlen_k = seqlen_k;
      visit(t);
      t.name = "causal";
      t.window_right = 0;
      t.head_units = true;
      visit(t);
      t.name = "causal, bias, dbias, dropout, sink";
      t.head_units = false;
      t.heads_inside = t.sink = t.randval = t.dbias = t.locks = true;
      t.bias = Bias::elementwise;
      t.dropout_p = 0.2f;
      visit(t);
    }
  }
}

void windows_and_dbias(const Visit& visit) {
  BwdCase base;
  base.hdim_q = base.hdim_v = 40;
  windows<BwdCase>(visit, base, [](BwdCase& t) { t.dbias = true, t.bias_of_heads = t.top_left; });
}

// Several chunks of keys, splits of dQ, and mask edges around the border of a chunk.
void chunks(const Visit& visit) {
  for (int nsplits : {1, 2, 3}) {
    for (bool locks : {false, true}) {
      for (int seqlen_k : {255, 256, 257, 700}) {
        BwdCase t;
        t.name = "chunk";
        t.nhead_q = 2, t.nhead_k = 1, t.seqlen_q = 90, t.seqlen_k = seqlen_k, t.hdim_q = 32, t.hdim_v = 24,
        t.nsplits = nsplits;
        t.locks = locks, t.head_units = !locks;
        t.unit_keys = locks ? 64 * nsplits % 192 + 64 : 256;
        visit(t);
        t.window_left = 300, t.window_right = 7;
        visit(t);
        t.bias = Bias::elementwise, t.dbias = true, t.dropout_p = 0.1f, t.randval = true;
        visit(t);
      }
    }
  }
}

// A bias of -inf is a mask: for scattered pairs, and for whole rows.
void bias_masks(const Visit& visit) {
  for (int window : {-1, 0}) {
    for (bool dbias : {true, false}) {
      BwdCase t;
      t.name = "bias of -inf";
      t.seqlen_q = 100, t.seqlen_k = 140, t.hdim_q = t.hdim_v = 32, t.bias = Bias::elementwise, t.bias_masks = true;
      t.window_right = window, t.dbias = dbias;
      visit(t);
      t.dropout_p = 0.2f;
      visit(t);
    }
  }
}

// An LSE far from 0: P of a key that does not exist would overflow.
void far_scores(const Visit& visit) {
  for (float mean : {-300.f, 300.f}) {
    for (auto [seqlen_q, seqlen_k] : {std::pair{70, 65}, {33, 126}, {64, 259}}) {
      BwdCase t;
      t.name = "far scores";
      t.seqlen_q = seqlen_q, t.seqlen_k = seqlen_k, t.hdim_q = t.hdim_v = 32;
      t.bias = Bias::elementwise, t.bias_mean = mean, t.dbias = true;
      visit(t);
      t.window_left = 50, t.window_right = 20;
      visit(t);
    }
  }
}

void randoms(const Visit& visit) {
  std::mt19937 random(11);
  const auto below = [&](int n) { return int(random() % unsigned(n)); };
  for (int i = 0; i < 60; ++i) {
    BwdCase t;
    t.name = "random";
    t.batch = 1 + below(3), t.nhead_q = 4, t.nhead_k = 1 << below(3);
    t.seqlen_q = 1 + below(200), t.seqlen_k = below(300), t.hdim_q = 8 * (1 + below(12)), t.hdim_v = 1 + below(100);
    t.window_left = below(2) ? -1 : below(100), t.window_right = below(2) ? -1 : below(50);
    t.top_left = below(2), t.group = below(2), t.heads_inside = below(2), t.sink = below(2);
    t.sink_size = below(2) ? 0 : below(90);
    t.head_units = below(2), t.locks = below(2), t.nsplits = 1 + below(2), t.unit_keys = 64 << below(3);
    if (below(2)) t.dropout_p = 0.3f, t.randval = below(2);
    const int score = below(4);
    if (score == 1) t.softcap = 8;
    if (score == 2) t.bias = Bias::alibi;
    if (score == 3) t.bias = Bias::elementwise, t.dbias = below(2);
    t.bias_of_heads = below(2);
    visit(t);
  }
}

// A NaN in a key reaches the queries that see it, and of the others at most those of its vector.
bool nan_stays_with_its_queries(const fmha::BwdEngine& engine, Dtype dtype, void* scratch) {
  constexpr int kSeqlen = 64, kHdim = 32, kNanKey = 50, kNanColumn = 3, kFirst = 48;
  const Kind kind = dtype == Dtype::fp32 ? Kind::fp32 : dtype == Dtype::fp16 ? Kind::fp16 : Kind::bf16;
  Guarded q(kind, kSeqlen * kHdim), k(kind, kSeqlen * kHdim), v(kind, kSeqlen * kHdim), dout(kind, kSeqlen * kHdim);
  Guarded dk(kind, kSeqlen * kHdim), dv(kind, kSeqlen * kHdim), dq(Kind::fp32, kSeqlen * kHdim);
  Guarded lse(Kind::fp32, kSeqlen), delta(Kind::fp32, kSeqlen);
  for (size_t i = 0; i < q.size; ++i) q.set(i, .5f), k.set(i, .25f), v.set(i, 1.f), dout.set(i, .5f), dq.set(i, 0);
  for (size_t i = 0; i < lse.size; ++i) lse.set(i, 8), delta.set(i, 1);
  k.set(kNanKey * kHdim + kNanColumn, NAN);
  fmha::BwdProblem p{};
  p.features.dtype = dtype, p.features.mask = true;
  p.nhead_q = p.nhead_k = 1, p.hdim_q = p.hdim_v = kHdim;
  p.q = q.data(), p.k = k.data(), p.v = v.data(), p.dout = dout.data(), p.dk = dk.data(), p.dv = dv.data();
  p.lse = static_cast<float*>(lse.data()), p.delta = static_cast<float*>(delta.data());
  p.q_row = p.k_row = p.v_row = p.dout_row = p.dk_row = p.dv_row = kHdim;
  p.softmax_scale = 1, p.window_left = -1, p.window_right = 0;
  fmha::BwdUnit u{};
  u.head_end = 1, u.key_end = u.seqlen_q = u.seqlen_k = kSeqlen;
  u.dq_acc = static_cast<float*>(dq.data());
  engine.chunk[int(dtype)](p, u, scratch);
  for (int i = 0; i < kSeqlen; ++i) {
    const bool finite = std::isfinite(dq.get(size_t(i * kHdim + kNanColumn)));
    if (i < kFirst ? !finite : i >= kNanKey && finite) return false;
  }
  return true;
}

const std::vector<const char*> dtype_names = {"fp32", "fp16", "bf16"};

// Returns the number of failures.
int test(const Target<fmha::BwdEngine>& target, Dtype dtype, Steps steps) {
  Guarded scratch(Kind::byte, target.engine->scratch_bytes);
  scratch.poison();
  const Tolerance allowed = tolerance(dtype);
  int visited = 0, count = 0, failures = 0;
  GradientError worst;
  double sum = 0;  // the same where all results are
  const Visit visit = [&](const BwdCase& t) {
    if (!steps.visits(visited++)) return;
    ++count;
    const BwdErrors e = run(*target.engine, dtype, t, scratch, unsigned(visited));
    bool right = e.broken.empty();
    const double far = std::abs(t.bias_mean) * 0x1p-23;  // what scores and LSE of that size round in fp32
    for (const GradientError* x : {&e.dq, &e.dk, &e.dv, &e.dbias, &e.delta, &e.d_sink}) {
      sum += x->rms + x->element;
      if (far == 0) worst.element = std::max(worst.element, x->element);
      right = right && x->element <= allowed.element + far;
    }
    for (const GradientError* x : {&e.dq, &e.dk, &e.dv, &e.dbias}) {
      if (far == 0) worst.rms = std::max(worst.rms, x->rms);
      right = right && x->rms <= allowed.rms + far;
    }
    if (right) return;
    ++failures;
    std::printf("FAIL %s %s:", target.name, describe(t, dtype).c_str());
    const char* const names[] = {"dq", "dk", "dv", "dbias", "delta", "d_sink"};
    int i = 0;
    for (const GradientError* x : {&e.dq, &e.dk, &e.dv, &e.dbias, &e.delta, &e.d_sink})
      std::printf(" %s %.1e %.1e", names[i++], x->rms, x->element);
    std::printf(" %s\n", e.broken.c_str());
  };
  for (auto sweep : {shapes, tails<BwdCase>, windows_and_dbias, borders<BwdCase>, chunks, scales<BwdCase>,
                     caps<BwdCase>, sinks<BwdCase>, bias_masks, far_scores, dropouts<BwdCase>, randoms})
    sweep(visit);
  ++count;
  if (!nan_stays_with_its_queries(*target.engine, dtype, scratch.data())) {
    ++failures;
    std::printf("FAIL %s %s: a NaN in a key\n", target.name, dtype_names[size_t(dtype)]);
  }
  std::printf("%s %s: %d checks, %d failed; worst rms %.1e, element %.1e, sum %.17g\n", target.name,
              dtype_names[size_t(dtype)], count, failures, worst.rms, worst.element, sum);
  return failures;
}

}  // namespace
}  // namespace tilekiln::test

int main(int argc, char** argv) {
  using namespace tilekiln::test;
  TileTrap::install_if_needed();
  const std::vector<Target<tilekiln::fmha::BwdEngine>> targets = {
      TILEKILN_EACH_TARGET(TILEKILN_NAMED_ENGINE, , fmha_bwd_dq_dk_dv, qtiles, qlanes)};
  return test_engines(argc, argv, targets, dtype_names, test);
}
