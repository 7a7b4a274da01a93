// Every feature and odd shape of the backward families against a float64 reference, on every engine linked in that this
// machine can run. Inputs touch inaccessible pages, padding is NaN, outputs are poisoned, scratch starts as NaN.
//
//   bwd_engine_test [TARGET [DTYPE [quick]]]      one target (cpu_avx2) or any, one dtype (bf16), every fifth case only
// Exit code 77: the target asked for is not linked in, or this machine cannot run it.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <vector>

#include "bwd_case.h"

#define TILEKILN_WEAK extern "C" __attribute__((weak)) const tilekiln::fmha::BwdEngine
TILEKILN_WEAK tilekiln_cpu_avx512bf16_fmha_bwd_dq_dk_dv_qlanes;
TILEKILN_WEAK tilekiln_cpu_avx512_fmha_bwd_dq_dk_dv_qlanes;
TILEKILN_WEAK tilekiln_cpu_avx2_fmha_bwd_dq_dk_dv_qlanes;
TILEKILN_WEAK tilekiln_cpu_generic_fmha_bwd_dq_dk_dv_qlanes;

namespace tilekiln::test {
namespace {

// Of one dtype, u = unit roundoff of what is rounded: 2^-9 bf16, 2^-12 fp16 (round to nearest: half an ulp), 2^-24 fp32.
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

using Visit = std::function<void(const BwdCase&)>;

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

// Every tail of queries and of keys.
void tails(const Visit& visit) {
  for (int n = 1; n <= 66; ++n) {
    BwdCase t;
    t.name = "tail";
    t.nhead_q = 1, t.hdim_q = t.hdim_v = 24;
    t.seqlen_q = 80, t.seqlen_k = n;
    visit(t);
    t.seqlen_q = n, t.seqlen_k = 80;
    visit(t);
    t.seqlen_q = t.seqlen_k = 64 + n;
    t.dropout_p = 0.5f;
    visit(t);
    t.bias = Bias::alibi;
    t.dropout_p = 0;
    t.window_right = 3;
    visit(t);
  }
}

// Windows x mask origins x features. {300, 97} bottom right and {97, 300} top left leave rows without keys, or keys without rows.
void windows(const Visit& visit) {
  const std::pair<int, int> seqlens[] = {{200, 200}, {97, 300}, {300, 97}, {64, 448}, {33, 64}};
  const std::pair<int, int> limits[] = {{-1, -1}, {-1, 0},  {0, 0},   {16, 0}, {70, 10},
                                        {-1, 40}, {40, -1}, {130, 5}, {64, 64}};
  for (auto [seqlen_q, seqlen_k] : seqlens) {
    for (auto [left, right] : limits) {
      for (bool top_left : {false, true}) {
        BwdCase t;
        t.hdim_q = t.hdim_v = 40;
        t.seqlen_q = seqlen_q, t.seqlen_k = seqlen_k, t.window_left = left, t.window_right = right,
        t.top_left = top_left;
        t.name = "window";
        visit(t);
        BwdCase softcap = t, alibi = t, bias = t, dropout = t, sink = t;
        softcap.name = "window, softcap", softcap.softcap = 5;
        alibi.name = "window, alibi", alibi.bias = Bias::alibi;
        bias.name = "window, bias, dbias", bias.bias = Bias::elementwise, bias.dbias = true,
        bias.bias_of_heads = top_left;
        dropout.name = "window, dropout", dropout.dropout_p = 0.2f;
        sink.name = "window, sink", sink.sink = true, sink.sink_size = 5;
        for (const BwdCase& x : {softcap, alibi, bias, dropout, sink}) visit(x);
      }
    }
  }
}

// Mask edges at tile - 3 .. tile + 2, one key either side of every block border.
void borders(const Visit& visit) {
  for (int edge = 61; edge <= 66; ++edge) {
    for (int side = 0; side < 3; ++side) {
      for (int seqlen_q : {192, 180}) {
        BwdCase t;
        t.name = "border";
        t.nhead_q = 1, t.seqlen_q = seqlen_q, t.seqlen_k = 192, t.hdim_q = t.hdim_v = 32, t.top_left = true;
        t.window_left = side == 1 ? -1 : edge;
        t.window_right = side == 0 ? -1 : 127 - edge;
        visit(t);
        t.window_right = side == 0 ? -1 : edge;
        visit(t);
        t.sink_size = edge;
        visit(t);
      }
    }
  }
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
        visit(t);
        t.window_left = 300, t.window_right = 7;
        visit(t);
        t.bias = Bias::elementwise, t.dbias = true, t.dropout_p = 0.1f, t.randval = true;
        visit(t);
      }
    }
  }
}

void scales(const Visit& visit) {
  for (float scale : {-0.125f, 1.f, 0.f, 1e-12f}) {
    BwdCase t;
    t.name = "scale";
    t.nhead_q = 1, t.seqlen_q = 70, t.seqlen_k = 100, t.scale_given = true, t.scale = scale;
    visit(t);
    t.window_right = 0;
    visit(t);
    t.softcap = 3;
    visit(t);
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

void dropouts(const Visit& visit) {
  for (float p : {0.01f, 0.1f, 0.2f, 0.5f, 0.9f, 0.999f}) {
    BwdCase t;
    t.name = "dropout";
    t.batch = 2, t.seqlen_q = 100, t.seqlen_k = 150, t.dropout_p = p, t.randval = true;
    visit(t);
    t.window_right = 0, t.group = true;
    visit(t);
    t.softcap = 4;
    visit(t);
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
    t.head_units = below(2), t.locks = below(2), t.nsplits = 1 + below(2);
    if (below(2)) t.dropout_p = 0.3f, t.randval = below(2);
    const int score = below(4);
    if (score == 1) t.softcap = 8;
    if (score == 2) t.bias = Bias::alibi;
    if (score == 3) t.bias = Bias::elementwise, t.dbias = below(2);
    t.bias_of_heads = below(2);
    visit(t);
  }
}

struct Target {
  const char* name;
  const fmha::BwdEngine* engine;
  bool supported;
};

std::vector<Target> targets() {
#if defined(__x86_64__)
  const bool v4 = __builtin_cpu_supports("x86-64-v4"), v3 = __builtin_cpu_supports("x86-64-v3");
  const bool bf16 = v4 && __builtin_cpu_supports("avx512bf16");
#else
  const bool v4 = false, v3 = false, bf16 = false;
#endif
  return {{"cpu_avx512bf16", &tilekiln_cpu_avx512bf16_fmha_bwd_dq_dk_dv_qlanes, bf16},
          {"cpu_avx512", &tilekiln_cpu_avx512_fmha_bwd_dq_dk_dv_qlanes, v4},
          {"cpu_avx2", &tilekiln_cpu_avx2_fmha_bwd_dq_dk_dv_qlanes, v3},
          {"cpu_generic", &tilekiln_cpu_generic_fmha_bwd_dq_dk_dv_qlanes, true}};
}

// Returns the number of failures.
int test(const Target& target, Dtype dtype, int step) {
  Guarded scratch(Kind::byte, target.engine->scratch_bytes);
  scratch.poison();
  const Tolerance allowed = tolerance(dtype);
  int visited = 0, count = 0, failures = 0;
  GradientError worst;
  const Visit visit = [&](const BwdCase& t) {
    if (visited++ % step != 0) return;
    const BwdErrors e = run(*target.engine, dtype, t, scratch, unsigned(++count));
    bool right = e.broken.empty();
    const double far = std::abs(t.bias_mean) * 0x1p-23;  // what scores and LSE of that size round in fp32
    for (const GradientError* x : {&e.dq, &e.dk, &e.dv, &e.dbias, &e.delta, &e.d_sink}) {
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
  for (auto sweep : {shapes, tails, windows, borders, chunks, scales, bias_masks, far_scores, dropouts, randoms})
    sweep(visit);
  static const char* const names[] = {"fp32", "fp16", "bf16"};
  std::printf("%s %s: %d checks, %d failed; worst rms %.1e, element %.1e\n", target.name, names[int(dtype)], count,
              failures, worst.rms, worst.element);
  return failures;
}

}  // namespace
}  // namespace tilekiln::test

int main(int argc, char** argv) {
  using namespace tilekiln::test;
  static const char* const dtypes[] = {"fp32", "fp16", "bf16"};
  const int step = argc > 3 && std::strcmp(argv[3], "quick") == 0 ? 5 : 1;
  int failures = 0, tested = 0;
  for (const Target& target : targets()) {
    const bool asked = argc < 2 || std::strcmp(argv[1], "any") == 0 || std::strcmp(argv[1], target.name) == 0;
    if (target.engine == nullptr || !target.supported || !asked) continue;
    for (int dtype = 0; dtype < 3; ++dtype) {
      if (argc > 2 && std::strcmp(argv[2], dtypes[dtype]) != 0) continue;
      ++tested;
      failures += test(target, Dtype(dtype), step);
    }
  }
  if (tested == 0) {
    std::printf("no engine %s %s here\n", argc > 1 ? argv[1] : "", argc > 2 ? argv[2] : "");
    return 77;
  }
  return failures != 0;
}
