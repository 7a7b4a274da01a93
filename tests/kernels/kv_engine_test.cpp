// SPDX-License-Identifier: MIT
// The engines of the KV-cache families (not append: kv_append_test.cpp) against a float64 reference: both pipelines, every cache
// layout, splits and their combine, every feature. Caches touch inaccessible pages; what holds no key is NaN, and an index of a
// page that holds none points nowhere.
//
//   kv_engine_test [TARGET [DTYPE [quick|few [FIRST]]]]
// Exit code 77: the target asked for is not linked in, or this machine cannot run it.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <vector>

#include "kv_case.h"
#include "runs.h"
#include "steps.h"
#include "tile_trap.h"

#define TILEKILN_WEAK extern "C" __attribute__((weak)) const tilekiln::fmha::KvEngine
TILEKILN_WEAK tilekiln_cpu_avx512bf16_fmha_fwd_splitkv_qlanes, tilekiln_cpu_avx512bf16_fmha_fwd_splitkv_dlanes;
TILEKILN_WEAK tilekiln_cpu_avx512_fmha_fwd_splitkv_qlanes, tilekiln_cpu_avx512_fmha_fwd_splitkv_dlanes;
TILEKILN_WEAK tilekiln_cpu_avx2_fmha_fwd_splitkv_qlanes, tilekiln_cpu_avx2_fmha_fwd_splitkv_dlanes;
TILEKILN_WEAK tilekiln_cpu_neonbf16_fmha_fwd_splitkv_qlanes, tilekiln_cpu_neonbf16_fmha_fwd_splitkv_dlanes;
TILEKILN_WEAK tilekiln_cpu_neon_fmha_fwd_splitkv_qlanes, tilekiln_cpu_neon_fmha_fwd_splitkv_dlanes;
TILEKILN_WEAK tilekiln_cpu_amx_fmha_fwd_splitkv_qtiles, tilekiln_cpu_amxemulated_fmha_fwd_splitkv_qtiles;
TILEKILN_WEAK tilekiln_cpu_generic_fmha_fwd_splitkv_qlanes, tilekiln_cpu_generic_fmha_fwd_splitkv_dlanes;

namespace tilekiln::test {
namespace {

// Tolerances as fwd_engine_test.cpp has them. fp8: half a unit in the last place of e4m3 is 2^-4; with one rounding, rms about 0.4 of that.
struct Tolerance { double rms, element, lse; };
constexpr double kFixedPowers = 3.4e-3;
Tolerance tolerance(KvDtype dtype) {
  switch (dtype) {
    case KvDtype::fp32: return {3e-6, 8e-6, 2e-5};
    case KvDtype::fp16: return {4e-4, 5.0e-4, 2e-5};
    case KvDtype::fp8: return {4e-2, 6.3e-2, 2e-5};
    default: return {4e-3, 8.0e-3, 3e-4};
  }
}

enum class Pipeline { qlanes, dlanes };
using Visit = std::function<void(const KvCase&)>;

// A case on every kind of cache. Vectorized pages hold multiples of 16 bytes of keys and head dims.
void on_caches(KvCase t, int vec, const Visit& visit) {
  t.cache = Cache::dense;
  visit(t);
  for (int page_size : {1, 16, 48, 64, 128}) {
    t.cache = Cache::linear;
    t.page_size = page_size;
    visit(t);
    t.cache = Cache::vectorized;
    if (page_size % vec == 0 && t.hdim_q % vec == 0) visit(t);
  }
}

void shapes(int vec, const Visit& visit) {
  const std::pair<int, int> hdims[] = {{64, 64},   {128, 128}, {32, 48}, {80, 80},
                                       {256, 256}, {192, 128}, {59, 33}, {1, 3}};
  const std::pair<int, int> heads[] = {{4, 4}, {4, 2}, {4, 1}, {6, 2}, {20, 1}, {20, 5}};
  for (auto [hdim_q, hdim_v] : hdims) {
    for (auto [nhead_q, nhead_k] : heads) {
      for (int seqlen_q : {1, 3, 20}) {
        KvCase t;
        t.name = "shape";
        t.hdim_q = hdim_q, t.hdim_v = hdim_v, t.nhead_q = nhead_q, t.nhead_k = nhead_k, t.seqlen_q = seqlen_q;
        t.seqlen_k = 150, t.splits = seqlen_q == 3 ? 3 : 0;
        if (hdim_q == 64) {
          on_caches(t, vec, visit);
        } else {
          visit(t);
          t.cache = Cache::linear;
          visit(t);
        }
      }
    }
  }
}

void tails(int vec, const Visit& visit) {
  for (int n = 0; n <= 66; ++n) {
    KvCase t;
    t.name = "tail";
    t.batch = 1, t.hdim_q = t.hdim_v = 32, t.seqlen_k = n, t.full_lengths = true;
    t.seqlen_q = 1 + n % 5;
    visit(t);
    t.seqlen_k = 64 + n, t.leftpad = n % 7;
    t.cache = n % 2 && 32 % vec == 0 ? Cache::vectorized : Cache::linear;
    visit(t);
  }
}

void splits(int vec, const Visit& visit) {
  for (int splits : {1, 2, 3, 8, 17, 128}) {
    for (int seqlen_k : {5, 100, 300}) {
      for (bool full : {true, false}) {
        KvCase t;
        t.name = "splits";
        t.splits = splits, t.seqlen_k = seqlen_k, t.full_lengths = full, t.seqlen_q = full ? 1 : 5;
        visit(t);
        t.name = "splits, sink";
        t.sink = true;
        on_caches(t, vec, visit);
        t.name = "splits, window, sink columns";
        t.window_left = 40, t.window_right = 0, t.sink_size = 3;
        visit(t);
        t.leftpad = 5;
        t.cache = Cache::linear;
        visit(t);
      }
    }
  }
}

void features(int vec, Pipeline pipeline, const Visit& visit) {
  const std::pair<int, int> limits[] = {{-1, -1}, {-1, 0}, {0, 0}, {70, 10}, {-1, 40}, {130, 0}};
  for (auto [left, right] : limits) {
    for (bool top_left : {false, true}) {
      for (int splits : {0, 4}) {
        KvCase t;
        t.seqlen_q = 6, t.seqlen_k = 300, t.window_left = left, t.window_right = right, t.top_left = top_left,
        t.splits = splits;
        t.name = "window";
        on_caches(t, vec, visit);
        KvCase softcap = t, alibi = t, bias = t, sink = t, scales = t, negative = t;
        softcap.name = "window, softcap", softcap.softcap = 5;
        alibi.name = "window, alibi", alibi.bias = Bias::alibi;
        bias.name = "window, bias", bias.bias = Bias::elementwise, bias.cache = Cache::linear;
        sink.name = "window, sink", sink.sink = true, sink.sink_size = 5;
        scales.name = "window, descales", scales.descales = true;
        negative.name = "window, negative scale", negative.scale = -0.125f, negative.scale_given = true;
        for (const KvCase& x : {softcap, alibi, bias, sink, scales, negative}) visit(x);
        if (splits == 0) {
          KvCase pages = t;
          pages.name = "window, page scales";
          pages.page_scales = true, pages.cache = Cache::linear, pages.page_size = 128;
          visit(pages);
          pages.descales = true, pages.softcap = 4, pages.cache = Cache::vectorized;
          visit(pages);
        }
        if (pipeline == Pipeline::qlanes && splits == 0) {
          KvCase dropout = t;
          dropout.name = "window, dropout", dropout.dropout_p = 0.2f;
          dropout.seqlen_q = 70;
          on_caches(dropout, vec, visit);
        }
      }
    }
  }
  KvCase t;
  t.name = "saturation";
  t.seqlen_k = 40;
  for (float scale : {20.f, 800.f}) {
    t.out_scale = scale;
    visit(t);
    t.splits = 2;
    visit(t);
  }
}

// Caps and sinks of sweeps.h.
void caps_and_sinks(int vec, const Visit& visit) {
  for (int splits : {0, 3}) {
    KvCase t;
    t.seqlen_q = 5, t.splits = splits;
    for (float cap : {1e-3f, 0.1f, 50.f, 1e4f, 1e8f, 1e20f}) {
      t.name = "soft cap", t.softcap = cap, t.scale_given = false, t.bias = Bias::none;
      on_caches(t, vec, visit);
      t.name = "soft cap, small scores", t.scale = 1e-3f, t.scale_given = true;
      visit(t);
      t.name = "soft cap, alibi", t.scale_given = false, t.bias = Bias::alibi;
      visit(t);
    }
    t.softcap = 0, t.bias = Bias::none, t.sink = true, t.window_right = 0;
    for (float logit : {-20.f, -90.f, 4.f}) {
      t.name = "far sink", t.sink_logit = logit, t.scale_given = false;
      visit(t);
      t.name = "far sink, tiny scale", t.scale = 1e-38f, t.scale_given = true;
      visit(t);
    }
  }
}

// A finite bias masks nothing: rows of the lowest number have equal weights. No LSE: in log2 units fp32 ends before that number.
void lowest_biases(int vec, const Visit& visit) {
  for (int seqlen_k : {70, 300}) {
    KvCase t;
    t.name = "lowest bias";
    t.seqlen_q = 4, t.seqlen_k = seqlen_k, t.bias = Bias::elementwise, t.lowest_bias = true, t.lse = false;
    on_caches(t, vec, visit);
    t.window_right = 0, t.sink_size = 2, t.window_left = 50;
    visit(t);
  }
}

void prefills(int vec, const Visit& visit) {
  for (int seqlen_q : {64, 100, 130}) {
    for (int leftpad : {0, 3, 20}) {
      KvCase t;
      t.name = "prefill";
      t.batch = 1, t.seqlen_q = seqlen_q, t.seqlen_k = 260, t.leftpad = leftpad, t.window_right = 0;
      on_caches(t, vec, visit);
    }
  }
}

void randoms(int vec, Pipeline pipeline, const Visit& visit) {
  std::mt19937 random(7);
  const auto below = [&](int n) { return int(random() % unsigned(n)); };
  for (int i = 0; i < 120; ++i) {
    KvCase t;
    t.name = "random";
    t.batch = 1 + below(3), t.nhead_k = 1 << below(3), t.nhead_q = t.nhead_k * (1 + below(5));
    t.seqlen_q = 1 + below(pipeline == Pipeline::dlanes ? 12 : 90), t.seqlen_k = below(400);
    t.hdim_q = 16 * (1 + below(8)), t.hdim_v = 1 + below(130);
    t.cache = Cache(below(3)), t.page_size = t.cache == Cache::vectorized ? vec << below(4) : 1 + below(100);
    t.leftpad = below(2) ? below(70) : 0, t.splits = below(2) ? 1 + below(9) : 0;
    t.window_left = below(2) ? -1 : below(100), t.window_right = below(2) ? -1 : below(50);
    t.top_left = below(2), t.sink = below(2), t.lse = below(4), t.sink_size = below(2) ? 0 : below(90),
    t.descales = below(2);
    const int score = below(4);
    if (score == 1) t.softcap = 8;
    if (score == 2) t.bias = Bias::alibi;
    if (score == 3) t.bias = Bias::elementwise;
    visit(t);
  }
}

struct Target {
  const char* name;
  const fmha::KvEngine *qlanes, *dlanes;  // many queries; few, and combine
  bool alone;                             // qlanes: few queries are another target's
};

// Engines of targets that may be linked in.
#define TILEKILN_OF(target) \
  {"cpu_" #target, &tilekiln_cpu_##target##_fmha_fwd_splitkv_qlanes, &tilekiln_cpu_##target##_fmha_fwd_splitkv_dlanes, \
   false}
#define TILEKILN_TILES_OF(target)                              \
  {"cpu_" #target, &tilekiln_cpu_##target##_fmha_fwd_splitkv_qtiles, \
   &tilekiln_cpu_avx512bf16_fmha_fwd_splitkv_dlanes, true}
const Target kTargets[] = {
    TILEKILN_TILES_OF(amx), TILEKILN_TILES_OF(amxemulated), TILEKILN_OF(avx512bf16), TILEKILN_OF(avx512),
    TILEKILN_OF(avx2),      TILEKILN_OF(neonbf16),          TILEKILN_OF(neon),       TILEKILN_OF(generic)};

// Returns the number of failures.
int test(const Target& target, Pipeline pipeline, KvDtype dtype, Steps steps) {
  const fmha::KvEngine& engine = pipeline == Pipeline::qlanes ? *target.qlanes : *target.dlanes;
  Guarded memory(Kind::byte, engine.scratch_bytes);
  memory.poison();
  Tolerance allowed = tolerance(dtype);
  if (target.alone) allowed.element += kFixedPowers;
  const char* const name = pipeline == Pipeline::qlanes ? "qlanes" : "dlanes";
  int visited = 0, count = 0, failures = 0;
  Errors worst;
  double sum = 0;  // the same where all results are
  const Visit visit = [&](const KvCase& t) {
    if (!steps.visits(visited++)) return;
    ++count;
    const Errors e = run(engine, *target.dlanes, dtype, t, memory.data(), unsigned(visited));
    sum += e.rms + e.element + e.lse;
    worst.rms = std::max(worst.rms, e.rms);
    worst.element = std::max(worst.element, e.element);
    worst.lse = std::max(worst.lse, e.lse);
    if (e.broken.empty() && e.rms <= allowed.rms && e.element <= allowed.element && e.lse <= allowed.lse) return;
    ++failures;
    std::printf("FAIL %s %s %s: rms %.2e element %.2e lse %.2e %s\n", target.name, name, describe(t, dtype).c_str(),
                e.rms, e.element, e.lse, e.broken.c_str());
  };
  const int vec = dtype == KvDtype::fp32 ? 4 : dtype == KvDtype::fp16 || dtype == KvDtype::bf16 ? 8 : 16;
  shapes(vec, visit);
  tails(vec, visit);
  splits(vec, visit);
  features(vec, pipeline, visit);
  caps_and_sinks(vec, visit);
  if (dtype != KvDtype::fp16) lowest_biases(vec, visit);  // -65504 is no end of fp32, and leaves scores 8 bits
  if (pipeline == Pipeline::qlanes) prefills(vec, visit);
  randoms(vec, pipeline, visit);
  std::printf("%s %s %s: %d checks, %d failed; worst rms %.1e, element %.1e, lse %.1e, sum %.17g\n", target.name, name,
              name_of(dtype), count, failures, worst.rms, worst.element, worst.lse, sum);
  return failures;
}

}  // namespace
}  // namespace tilekiln::test

int main(int argc, char** argv) {
  using namespace tilekiln::test;
  TileTrap::install_if_needed();
  const Steps steps = steps_of(argc, argv, 11);
  int failures = 0, tested = 0;
  for (const Target& target : kTargets) {
    const bool asked = argc < 2 || std::strcmp(argv[1], "any") == 0 || std::strcmp(argv[1], target.name) == 0;
    if (target.qlanes == nullptr || target.dlanes == nullptr || !runs(target.name) || !asked) continue;
    for (int i = 0; i < tilekiln::fmha::kKvDtypes; ++i) {
      const KvDtype dtype{static_cast<unsigned char>(i)};
      if (argc > 2 && std::strcmp(argv[2], name_of(dtype)) != 0) continue;
      if (target.qlanes->tile[i] == nullptr) continue;
      ++tested;
      failures += test(target, Pipeline::qlanes, dtype, steps);
      if (!target.alone) failures += test(target, Pipeline::dlanes, dtype, steps);
    }
  }
  if (tested == 0) {
    std::printf("no engine %s %s here\n", argc > 1 ? argv[1] : "", argc > 2 ? argv[2] : "");
    return 77;
  }
  return failures != 0;
}
