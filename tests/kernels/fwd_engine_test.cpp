// SPDX-License-Identifier: MIT
// Every feature and odd shape of fmha_fwd against a float64 reference, on every engine linked in that this machine can run.
// Inputs touch inaccessible pages, padding is NaN, outputs are poisoned, scratch starts as NaN.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>

#include "fwd_case.h"
#include "sweeps.h"
#include "tile_trap.h"

TILEKILN_EACH_TARGET(TILEKILN_WEAK_ENGINE, tilekiln::fmha::FwdEngine, fmha_fwd, qtiles, qlanes)

namespace tilekiln::test {
namespace {

// One tolerance per dtype. u = unit roundoff of what is rounded: 2^-8 bf16, 2^-11 fp16, 2^-24 fp32.
//   element: |error| <= (u of P + u of out) sum P |V|, plus what fp32 scores and sums add: their rounding is multiplied by
//            |score| (up to ~40 in log2 units here) and grows with sqrt(hdim): 1.2e-5 covers it; measured worst 7.3e-6.
//            Scores that a scale of 10 makes ten times as large have ten times that; measured worst 7.1e-5.
//            bf16 = 2 2^-8 + 2 1.0e-4 (2^x of degree 3, in P and in l) + 1.2e-5. fp16 keeps P in fp32: one 2^-11.
//   rms:     roundings are independent and uniform: each adds about 0.4 u, so 0.57 u = 2.2e-3 for bf16; the rest is slack for
//            rows of few keys. What fp32 scores add is 6.3e-7 where measured worst, and 4.6e-6 at a scale of 10.
//   lse:     fp32 sums; bf16's 2^x error of 1.0e-4 goes straight into the sum.
//   tiles:   P without an LSE is within 7.3e-3 where its rounding alone has 3.9e-3 (kernels/backends/cpu/amx/powers.h).
struct Tolerance { double rms, element, lse; };
constexpr double kFixedPowers = 3.4e-3;
Tolerance tolerance(Dtype dtype) {
  switch (dtype) {
    case Dtype::fp32: return {3e-6, 1.2e-5, 2e-5};
    case Dtype::fp8fp32: return {3e-6, 1.2e-5, 2e-5};
    case Dtype::fp16: return {4e-4, 5.0e-4, 2e-5};
    case Dtype::bf16: return {4e-3, 8.0e-3, 3e-4};
    case Dtype::fp8bf16: return {4e-3, 8.0e-3, 3e-4};
    default: std::abort();  // no engine of a CPU has it
  }
}

using Visit = Visitor<FwdCase>;

// Head dims, odd lengths, causal, and everything at once.
void shapes(const Visit& visit) {
  const std::pair<int, int> hdims[] = {{64, 64},   {128, 128}, {59, 59},   {111, 111}, {32, 48},
                                       {192, 128}, {1, 3},     {256, 256}, {66, 62}};
  const std::pair<int, int> seqlens[] = {{64, 64}, {1, 1}, {77, 131}, {130, 65}, {5, 0}, {64, 129}};
  for (auto [hdim_q, hdim_v] : hdims) {
    for (auto [seqlen_q, seqlen_k] : seqlens) {
      FwdCase t;
      t.name = "shape";
      t.hdim_q = hdim_q, t.hdim_v = hdim_v, t.seqlen_q = seqlen_q, t.seqlen_k = seqlen_k;
      visit(t);
      t.name = "causal";
      t.window_right = 0;
      visit(t);
      t.name = "causal, bias, dropout, sink";
      t.heads_inside = t.sink = t.randval = true;
      t.bias = Bias::elementwise;
      t.dropout_p = 0.2f;
      visit(t);
    }
  }
}

void windows_of_groups(const Visit& visit) {
  FwdCase base;
  base.nhead_k = 2;
  windows<FwdCase>(visit, base, [](FwdCase&) {});
}

// The last tile's last vector has one row, which sees nothing of the first block and all of the second: O of the other
// vectors holds something by then, its own does not.
void late_vectors(const Visit& visit) {
  for (int rows : {5, 9, 17, 33, 49}) {
    FwdCase t;
    t.name = "border, a vector that starts late";
    t.nhead_q = 1, t.seqlen_q = 64 + rows, t.seqlen_k = 192, t.top_left = true, t.window_left = 65 - rows;
    visit(t);
  }
}

// Masked scores far above the visible one: a maximum that took them in would leave nothing of P.
void loud_scores(const Visit& visit) {
  FwdCase loud;
  loud.name = "masked scores above the visible";
  loud.seqlen_q = loud.seqlen_k = 150, loud.window_left = loud.window_right = 0, loud.scale_given = true,
  loud.scale = 10;
  loud.lse = false;  // of several hundred, where fp32 is too coarse for the tolerance
  visit(loud);
  // Maxima that rise by more than 60 powers of 2 from keys to later keys.
  for (const int right : {-1, 0}) {
    loud.name = "scores that rise";
    loud.window_left = -1, loud.window_right = right, loud.seqlen_q = 100, loud.seqlen_k = 500;
    visit(loud);
  }
}

void descales(const Visit& visit) {
  for (Qscale qscale : {Qscale::pertensor, Qscale::blockscale}) {
    for (auto [seqlen_q, seqlen_k] : {std::pair{300, 300}, {129, 513}, {128, 127}, {1, 129}}) {
      FwdCase t;
      t.name = "descale";
      t.batch = 2, t.nhead_q = 4, t.nhead_k = 2, t.seqlen_q = seqlen_q, t.seqlen_k = seqlen_k, t.qscale = qscale;
      visit(t);
      t.window_left = 100, t.window_right = 20;
      visit(t);
      t.dropout_p = 0.3f;
      visit(t);
      t.dropout_p = 0, t.softcap = 4;
      visit(t);
    }
  }
}

void randoms(const Visit& visit) {
  std::mt19937 random(11);
  const auto below = [&](int n) { return int(random() % unsigned(n)); };
  for (int i = 0; i < 80; ++i) {
    FwdCase t;
    t.name = "random";
    t.batch = 1 + below(3), t.nhead_q = 4, t.nhead_k = 1 << below(3);
    t.seqlen_q = 1 + below(200), t.seqlen_k = below(300), t.hdim_q = 8 * (1 + below(20)), t.hdim_v = 1 + below(160);
    t.window_left = below(2) ? -1 : below(100), t.window_right = below(2) ? -1 : below(50);
    t.top_left = below(2), t.group = below(2), t.heads_inside = below(2), t.sink = below(2), t.lse = below(4);
    t.sink_size = below(2) ? 0 : below(90);
    if (below(2)) t.dropout_p = 0.3f, t.randval = below(2);
    const int score = below(4);
    if (score == 1) t.softcap = 8;
    if (score == 2) t.bias = Bias::alibi;
    if (score == 3) t.bias = Bias::elementwise;
    t.bias_shape = BiasShape(below(3));
    visit(t);
  }
}

// A NaN in one query reaches that query only, one of V those that see its key; a bias of +inf gives NaN as IEEE softmax does, a row of -inf
// is a masked row.
bool nan_stays_in_its_row(const fmha::FwdEngine& engine, Dtype dtype, bool biased, bool causal, void* scratch) {
  constexpr int kSeqlen = 130, kHdim = 64, kNanRow = 70, kMinusRow = 5, kPlusRow = 6, kNanKey = 100;
  const Kind kind = dtype == Dtype::fp32 ? Kind::fp32 : dtype == Dtype::fp16 ? Kind::fp16 : Kind::bf16;
  Guarded q(kind, kSeqlen * kHdim, Flush::end), k(kind, kSeqlen * kHdim, Flush::end);
  Guarded v(kind, kSeqlen * kHdim, Flush::end), out(kind, kSeqlen * kHdim, Flush::end);
  Guarded bias(kind, kSeqlen * kSeqlen, Flush::end);
  for (size_t i = 0; i < q.size; ++i) q.set(i, .5f), k.set(i, .25f), v.set(i, 1.f);
  for (size_t i = 0; i < bias.size; ++i) bias.set(i, 0);
  q.set(kNanRow * kHdim + 3, NAN);
  if (causal) v.set(kNanKey * kHdim + 9, NAN);
  for (int j = 0; j < kSeqlen; ++j) bias.set(kMinusRow * kSeqlen + j, -INFINITY);
  bias.set(kPlusRow * kSeqlen + 3, INFINITY);
  fmha::FwdProblem p{};
  p.features.dtype = dtype;
  p.features.bias = biased ? Bias::elementwise : Bias::none;
  p.features.mask = causal;
  p.nhead_q = p.nhead_k = 1, p.hdim_q = p.hdim_v = kHdim;
  p.q = q.data(), p.k = k.data(), p.v = v.data(), p.out = out.data(), p.bias = biased ? bias.data() : nullptr;
  p.q_row = p.k_row = p.v_row = p.out_row = kHdim, p.bias_row = kSeqlen;
  p.softmax_scale = 1, p.window_left = -1, p.window_right = causal ? 0 : -1;
  std::memset(scratch, 0, sizeof(fmha::i64));  // a call begins
  for (int row = 0; row < kSeqlen; row += engine.tile_q) {
    fmha::FwdUnit u{};
    u.row = row, u.seqlen_q = u.seqlen_k = kSeqlen;
    engine.tile[int(dtype)](p, u, scratch);
  }
  for (int i = 0; i < kSeqlen; ++i) {
    for (int d = 0; d < kHdim; ++d) {
      const double x = out.get(i * kHdim + d);
      const bool none = i == kNanRow || (biased && i == kPlusRow) || (causal && i >= kNanKey && d == 9);
      const bool right = none ? x != x : biased && i == kMinusRow ? x == 0 : std::abs(x - 1) < 1e-5;
      if (!right) return false;
    }
  }
  return true;
}

const std::vector<const char*> dtype_names = {"fp32", "fp16", "bf16", "fp8bf16", "fp8fp32"};

// Returns the number of failures.
int test(const Target<fmha::FwdEngine>& target, Dtype dtype, Steps steps) {
  Guarded memory(Kind::byte, target.engine->scratch_bytes);
  void* const scratch = memory.data();
  Tolerance allowed = tolerance(dtype);
  if (std::strncmp(target.name, "cpu_amx", 7) == 0) allowed.element += kFixedPowers;
  int visited = 0, count = 0, failures = 0;
  Errors worst;
  double sum = 0;  // the same where all results are
  const Visit visit = [&](const FwdCase& t) {
    if (!steps.visits(visited++)) return;
    ++count;
    const Errors e = run(*target.engine, dtype, t, scratch, unsigned(visited));
    sum += e.rms + e.element + e.lse;
    worst.rms = std::max(worst.rms, e.rms);
    worst.element = std::max(worst.element, e.element);
    worst.lse = std::max(worst.lse, e.lse);
    const double louder = t.scale_given && t.scale > 1 ? t.scale - 1 : 0;
    if (e.broken.empty() && e.rms <= allowed.rms + 1e-6 * louder && e.element <= allowed.element + 1.2e-5 * louder &&
        e.lse <= allowed.lse)
      return;
    ++failures;
    std::printf("FAIL %s %s: rms %.2e element %.2e lse %.2e %s\n", target.name, describe(t, dtype).c_str(), e.rms,
                e.element, e.lse, e.broken.c_str());
  };
  for (auto sweep : {shapes, tails<FwdCase>, windows_of_groups, borders<FwdCase>, late_vectors, scales<FwdCase>,
                     caps<FwdCase>, sinks<FwdCase>, loud_scores, descales, dropouts<FwdCase>, randoms})
    sweep(visit);
  for (int i = 0; i < 4 && dtype != Dtype::fp8bf16 && dtype != Dtype::fp8fp32; ++i) {
    ++count;
    if (nan_stays_in_its_row(*target.engine, dtype, i / 2, i % 2, scratch)) continue;
    ++failures;
    std::printf("FAIL %s %s: NaN and infinite inputs,%s%s\n", target.name, dtype_names[size_t(dtype)],
                i / 2 ? " bias" : "", i % 2 ? " causal" : "");
  }
  std::printf("%s %s: %d checks, %d failed; worst rms %.1e, element %.1e, lse %.1e, sum %.17g\n", target.name,
              dtype_names[size_t(dtype)], count, failures, worst.rms, worst.element, worst.lse, sum);
  return failures;
}

}  // namespace
}  // namespace tilekiln::test

int main(int argc, char** argv) {
  using namespace tilekiln::test;
  TileTrap::install_if_needed();
  const std::vector<Target<tilekiln::fmha::FwdEngine>> targets = {
      TILEKILN_EACH_TARGET(TILEKILN_NAMED_ENGINE, , fmha_fwd, qtiles, qlanes)};
  return test_engines(argc, argv, targets, dtype_names, test);
}
