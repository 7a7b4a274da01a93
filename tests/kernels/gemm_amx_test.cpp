// SPDX-License-Identifier: MIT
// The tile engine of gemm on random problems of every dtype, layout and epilogue: the same bits by the instructions (where the processor
// has none, by the trap) and by the emulation, whole and cut into units; beside the engine of vectors, and nothing outside of out written.
//
//   gemm_amx_test [SEED [PROBLEMS]]
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "check.h"
#include "kernels/backends/numbers.h"
#include "kernels/gemm/engine.h"
#include "runs.h"
#include "tile_trap.h"

extern "C" const tilekiln::matrix::Engine tilekiln_cpu_amx_gemm_amx, tilekiln_cpu_amxemulated_gemm_amx,
    tilekiln_cpu_avx512bf16_gemm_panels;

namespace tilekiln::test {
namespace {

using namespace matrix;

std::mt19937 random_words;
int drawn(int below) { return int(random_words() % unsigned(below)); }
bool chance(int of) { return drawn(of) == 0; }
float number() { return float(drawn(2001) - 1000) / 1000; }

int bytes_of(Dtype t) { return t == Dtype::fp32 ? 4 : t == Dtype::bf16 || t == Dtype::fp16 ? 2 : 1; }
int bytes_of(OutDtype dtype) {
  return dtype == OutDtype::fp32 || dtype == OutDtype::int32 ? 4 : dtype >= OutDtype::int8 ? 1 : 2;
}

template <class T> void put_as(std::vector<char>& to, size_t at, float x) {
  T value;
  core::narrow(x, value);
  memcpy(to.data() + at * sizeof value, &value, sizeof value);
}
void put(std::vector<char>& to, Dtype dtype, size_t at, float x) {
  switch (dtype) {
    case Dtype::bf16: return put_as<core::bf16>(to, at, x);
    case Dtype::fp16: return put_as<core::fp16>(to, at, x);
    case Dtype::fp8: return put_as<core::fp8>(to, at, x);
    case Dtype::bf8: return put_as<core::bf8>(to, at, x);
    case Dtype::fp32: return put_as<float>(to, at, x);
    default: to[at] = char(std::lrint(x * 127));
  }
}
void put(std::vector<char>& to, OutDtype dtype, size_t at, float x) {
  put(to, dtype == OutDtype::bf16 ? Dtype::bf16 : dtype == OutDtype::fp16 ? Dtype::fp16 : Dtype::fp32, at, x);
}
template <class T> T get_as(const std::vector<char>& from, size_t at) {
  T value;
  memcpy(&value, from.data() + at * sizeof value, sizeof value);
  return value;
}
double get(const std::vector<char>& from, OutDtype dtype, size_t at) {
  switch (dtype) {
    case OutDtype::bf16: return core::widen(get_as<core::bf16>(from, at));
    case OutDtype::fp16: return core::widen(get_as<core::fp16>(from, at));
    case OutDtype::fp8: return core::widen(get_as<core::fp8>(from, at));
    case OutDtype::int8: return get_as<signed char>(from, at);
    case OutDtype::int32: return get_as<int>(from, at);
    default: return get_as<float>(from, at);
  }
}

struct Given {
  Problem p = {};
  std::vector<char> a, b, c, d[2];
  std::vector<float> bias, row_scale, column_scale;
  size_t out_bytes = 0;
};

int size_of(int kind, int most) {
  static constexpr int edges[] = {1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129};
  return kind == 0 ? edges[drawn(14)] : 1 + drawn(most);
}

void draw(Given& g, long most_work) {
  Problem& p = g.p;
  const Dtype dtypes[] = {Dtype::bf16, Dtype::bf16, Dtype::int8, Dtype::fp8, Dtype::bf8,
                          Dtype::fp16, Dtype::fp16, Dtype::fp32, Dtype::fp32};
  p.dtype = dtypes[drawn(9)];
  const bool fp16 = p.dtype == Dtype::fp16, fp32 = p.dtype == Dtype::fp32;
  if (fp32) p.products = chance(2) ? 3 : 6;
  do {
    p.m = size_of(drawn(3), 200), p.n = size_of(drawn(3), 250), p.k = chance(20) ? 0 : size_of(drawn(3), 700);
    if (chance(8)) p.k = 2000 + drawn(3000), p.m = 1 + drawn(20), p.n = 1 + drawn(70);
  } while (long(p.m) * p.n * p.k > most_work);
  if (chance(5)) p.m = (p.m + 15) / 16 * 16, p.k = (p.k + 63) / 64 * 64;  // whole tiles
  const bool int8 = p.dtype == Dtype::int8, scaled = int8 ? chance(2) : chance(4);
  if (int8 && !scaled) {
    p.out_dtype = OutDtype::int32;
  } else {
    const OutDtype outs[] = {OutDtype::fp32, OutDtype::bf16, OutDtype::fp16, OutDtype::int8, OutDtype::fp8};
    p.out_dtype = outs[drawn(fp32 ? 1 : p.dtype == Dtype::bf16 ? 2 : fp16 ? 3 : 5)];
  }
  p.a_columns = chance(3), p.b_columns = chance(2);
  const bool lines = chance(8);  // rows of b in whole lines, for few rows
  if (lines) p.b_columns = true, p.m = (p.m + 15) % 16 + 1, p.n = (p.n + 15) / 16 * 16, p.k = (p.k + 63) / 64 * 64;
  if (!lines && (p.dtype == Dtype::bf16 || fp16) && chance(3))
    p.b_panels = fp16 ? 1 : 2, p.b_columns = false, p.n = (p.n + 63) / 64 * 64;
  p.lda = (p.a_columns ? p.m : p.k) + drawn(3), p.ldb = (p.b_columns ? p.k : p.n) + drawn(3);
  if (lines) p.ldb = (p.ldb + 63) / 64 * 64;
  p.out_row = p.n + (chance(2) ? 0 : drawn(5));
  if (chance(4)) p.tile_m = 1 + drawn(150), p.tile_k = 1 << drawn(8);
  const size_t rows = size_t(p.a_columns ? p.k : p.m), b_rows = size_t(p.b_columns ? p.n : p.k);
  g.a.resize(rows * size_t(p.lda) * bytes_of(p.dtype));
  for (size_t i = 0; i < rows * size_t(p.lda); ++i) put(g.a, p.dtype, i, number());
  const size_t b_count = p.b_panels == 2   ? size_t(p.n) * ((p.k + 1) / 2) * 2
                         : p.b_panels == 1 ? size_t(p.n) * size_t(p.k)
                                           : b_rows * size_t(p.ldb);
  g.b.resize(b_count * bytes_of(p.dtype));
  for (size_t i = 0; i < b_count; ++i) {
    const bool missing = p.b_panels == 2 && p.k % 2 != 0 && i % 2 != 0 && i / 128 % ((p.k + 1) / 2) == size_t(p.k / 2);
    put(g.b, p.dtype, i, missing ? 0 : number());
  }
  // Numbers that have no parts, and those that nearly have none.
  for (int i = (fp16 || fp32) && chance(3) ? 4 : 0; i > 0; --i) {
    const float odd[] = {
        __builtin_inff(), -__builtin_inff(), __builtin_nanf(""), fp32 ? 8.f : 65504, 0x1p-24f, -0x1.004p-14f, 0, -0.f,
        0x1.ffp127f,      0x1p-149f,         -0x1.2345p-120f};
    std::vector<char>& to = chance(2) ? g.a : g.b;
    if (!to.empty()) put(to, p.dtype, size_t(drawn(int(to.size()) / bytes_of(p.dtype))), odd[drawn(fp32 ? 11 : 8)]);
  }
  p.a = g.a.data(), p.b = g.b.data();
  if (lines && !g.b.empty()) {
    const std::vector<char> as_drawn = g.b;
    g.b.resize(as_drawn.size() + 64);
    p.b = memcpy(g.b.data() + -size_t(g.b.data()) % 64, as_drawn.data(), as_drawn.size());
  }
  p.alpha = 1;
  if (p.out_dtype == OutDtype::int32) return;
  const auto fill = [](std::vector<float>& to, int count, float most) {
    to.resize(size_t(count));
    for (float& x : to) x = number() * most;
    return to.data();
  };
  if (scaled && (int8 || chance(2))) p.row_scale = fill(g.row_scale, p.m, .1f), p.row_scale_step = 1;
  if (scaled && chance(2)) p.column_scale = fill(g.column_scale, p.n, 1);
  p.alpha = chance(3) ? .5f : 1;
  p.bias_of_rows = chance(3);
  if (chance(2)) p.bias = fill(g.bias, p.bias_of_rows ? p.m : p.n, 1);
  p.activation = Activation(drawn(8)), p.clamp_min = -1, p.clamp_max = 2, p.slope = p.per_slope = 1, p.out_factor = 8;
  const OutDtype extra = p.out_dtype >= OutDtype::int8 ? OutDtype::fp32 : p.out_dtype;
  const auto matrix = [&](std::vector<char>& to) {
    const size_t count = size_t(p.m) * size_t(p.n);
    to.resize(count * size_t(bytes_of(extra)));
    for (size_t i = 0; i < count; ++i) put(to, extra, i, number());
    return chance(2) ? Extra{to.data(), p.n, 1} : Extra{to.data(), 1, p.m};
  };
  if (chance(3)) p.c = matrix(g.c), p.beta = .75f;
  if (chance(4)) {
    p.multiply = chance(2);
    p.d[0] = matrix(g.d[0]);
    if (chance(2)) p.d[1] = matrix(g.d[1]);
  }
}

std::vector<char> computed(const Engine& engine, Problem p, const std::vector<Unit>& units) {
  std::vector<char> out((size_t(p.m) * size_t(p.out_row) + 64) * size_t(bytes_of(p.out_dtype)), 0x55);
  char* const first = out.data() + 32 * bytes_of(p.out_dtype);
  p.out = first;
  void* const scratch = aligned_alloc(4096, (engine.scratch_bytes + 4095) / 4096 * 4096);
  memset(scratch, 0xff, engine.scratch_bytes);  // NaN, where nothing is written
  for (const Unit& unit : units) {
    memset(scratch, 0, 64);
    (p.products && engine.of_parts[0] ? engine.of_parts[p.products / 6] : engine.run[int(p.dtype)])(p, unit, scratch);
  }
  free(scratch);
  return out;
}

std::vector<Unit> cut(const Problem& p, int block_rows) {
  const int rows = block_rows * (1 + drawn(3)), columns = 64 * (1 + drawn(3));
  std::vector<Unit> units;
  for (int m = 0; m < p.m; m += rows) {
    for (int n = 0; n < p.n; n += columns) units.push_back({m, std::min(p.m, m + rows), n, std::min(p.n, n + columns)});
  }
  return units;
}

void told(const char* what, const Problem& p, double excess = 0) {
  fprintf(
      stderr,
      "%s: %g too much, products %d dtype %d out %d m %d n %d k %d a_columns %d b_columns %d panels %d activation %d\n",
      what, excess, p.products, int(p.dtype), int(p.out_dtype), p.m, p.n, p.k, p.a_columns, p.b_columns, p.b_panels,
      int(p.activation));
}

void one(long most_work) {
  Given g;
  draw(g, most_work);
  const Problem& p = g.p;
  const std::vector<Unit> whole = {{0, p.m, 0, p.n}};
  const auto found = computed(tilekiln_cpu_amx_gemm_amx, p, whole);
  if (!CHECK(found == computed(tilekiln_cpu_amxemulated_gemm_amx, p, whole))) told("emulated", p);
  // Rows of any number: a few that are alone go another way than those of a block.
  for (const int block : {32, 1 + drawn(40)}) {
    if (!CHECK(found == computed(tilekiln_cpu_amxemulated_gemm_amx, p, cut(p, block)))) told("cut", p);
  }
  const PackColumns& pack = tilekiln_cpu_amxemulated_gemm_amx.pack[int(p.dtype)];
  if (pack.panel && !p.b_panels && p.k > 0) {
    const size_t one_panel = size_t((p.k + pack.elements - 1) / pack.elements) * kPanelLanes;
    const size_t bytes = one_panel * size_t((p.n + kPanelLanes - 1) / kPanelLanes) * sizeof(float);
    float* const panels = (float*)aligned_alloc(64, bytes);
    memset(panels, 0xff, bytes);  // NaN, where nothing is written
    for (int n = 0; n < p.n; n += kPanelLanes) pack.panel(panels + size_t(n / kPanelLanes) * one_panel, p, n);
    Problem packed = p;
    packed.b = panels, packed.b_panels = pack.elements;
    if (!CHECK(found == computed(tilekiln_cpu_amxemulated_gemm_amx, packed, cut(p, 32)))) told("packed", p);
    free(panels);
  }
  const auto expected = computed(tilekiln_cpu_avx512bf16_gemm_panels, p, whole);
  double worst = 0;
  bool outside = true;
  for (size_t i = 0; i < size_t(p.m) * size_t(p.out_row) + 64; ++i) {
    const long at = long(i) - 32;
    const size_t bytes = size_t(bytes_of(p.out_dtype));
    if (at < 0 || at >= long(p.m) * p.out_row || at % p.out_row >= p.n) {
      for (size_t j = 0; j < bytes; ++j) outside &= found[i * bytes + j] == 0x55;
      continue;
    }
    const double x = get(found, p.out_dtype, i), y = get(expected, p.out_dtype, i);
    // Roundings of sums of so many; a step of out; a product with further matrices may be close to 0.
    const double step = p.out_dtype == OutDtype::fp32   ? 1e-5
                        : p.out_dtype == OutDtype::bf16 ? 8e-3
                        : p.out_dtype == OutDtype::int8 ? 1
                        : p.out_dtype == OutDtype::fp8  ? .13
                                                        : 2e-3;
    const double each = p.products == 6 ? 8e-7 : 2e-5;
    const double allowed = p.out_dtype == OutDtype::int32 ? 0
                           : p.products == 6 ? 4e-7 * std::max(1., std::abs(y)) + each * std::sqrt(p.k + 1.)
                                             : step * std::max(1., std::abs(y)) + each * std::sqrt(p.k + 1.);
    worst = std::max(worst, std::isnan(x) != std::isnan(y) ? 1e9
                            : std::isnan(x) || x == y      ? 0
                                                           : (std::abs(x - y) - allowed));
  }
  if (!CHECK(worst <= 0)) told("beside vectors", p, worst);
  if (!CHECK(outside)) told("outside", p);
}

}  // namespace
}  // namespace tilekiln::test

int main(int argc, char** argv) {
  using namespace tilekiln::test;
  if (!runs("cpu_amx")) {
    printf("tile engines need AVX-512 and its dot products\n");
    return 77;
  }
  if (!TileTrap::install_if_needed()) {
    printf("no tiles here: %s\n", tilekiln::amx::refusal());
    return 77;
  }
  const unsigned seed = argc > 1 ? unsigned(strtoul(argv[1], nullptr, 10)) : 1;
  const int problems = argc > 2 ? atoi(argv[2]) : 60;
  for (int i = 0; i < problems; ++i) {
    random_words.seed(seed + unsigned(i));
    one(400000);
  }
  return check_result();
}
