// SPDX-License-Identifier: MIT
// Products of every dtype by each gemm engine linked in that this machine can run, against a float64 reference: layouts, odd sizes,
// more words than a block of k holds, weights in groups of int8 and int4; and bit for bit by units of any cut, packed panels and
// widened rows.
//
//   gemm_engine_test [TARGET]
// Exit code 77: the target asked for is not linked in, or this machine cannot run it.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <vector>

#include "kernels/backends/numbers.h"
#include "kernels/gemm/engine.h"
#include "runs.h"
#include "tile_trap.h"

TILEKILN_EACH_TARGET(TILEKILN_WEAK_ENGINE, tilekiln::matrix::Engine, gemm, amx, panels)

namespace tilekiln::test {
namespace {

using namespace matrix;

struct Target {
  const char* name;
  const Engine* engine;
};
const Target kTargets[] = {TILEKILN_EACH_TARGET(TILEKILN_NAMED_ENGINE, , gemm, amx, panels)};

unsigned state = 1;
int drawn(int below) { return int((state = state * 1664525u + 1013904223u) >> 8) % below; }

int element_bytes(Dtype dtype) {
  const int bytes[] = {4, 2, 2, 1, 1, 1};
  return bytes[int(dtype)];
}
// Writes the number nearest to x and returns what is written.
double put(void* to, Dtype dtype, size_t at, float x) {
  const auto as = [&](auto* typed) {
    core::narrow(x, typed[at]);
    return double(core::widen(typed[at]));
  };
  switch (dtype) {
    case Dtype::fp32: return static_cast<float*>(to)[at] = x;
    case Dtype::fp16: return as(static_cast<core::fp16*>(to));
    case Dtype::bf16: return as(static_cast<core::bf16*>(to));
    case Dtype::int8: return static_cast<signed char*>(to)[at] = static_cast<signed char>(std::lrint(x));
    case Dtype::fp8: return as(static_cast<core::fp8*>(to));
    default: return as(static_cast<core::bf8*>(to));
  }
}

struct Matrix {
  std::vector<char> bytes;
  std::vector<double> values;  // as they are stored
  Matrix(Dtype dtype, size_t count) : bytes(count * size_t(element_bytes(dtype)) + 64), values(count) {
    const bool whole = dtype == Dtype::int8;
    for (size_t i = 0; i < count; ++i)
      values[i] = put(bytes.data(), dtype, i, whole ? float(drawn(256) - 128) : float(drawn(2001) - 1000) / 1000);
  }
};

// Forgets the earlier calls of a thread.
void begin_call(void* scratch) { std::memset(scratch, 0, 64); }

constexpr float kUntouched = -12345.f;
int failures, checks;

void check(bool right, const char* target, const char* what, int dtype, const Problem& p, double error) {
  ++checks;
  if (right) return;
  ++failures;
  std::printf("FAIL %s %s dtype %d: m %d n %d k %d, columns of a %d of b %d: error %.2e\n", target, what, dtype, p.m,
              p.n, p.k, p.a_columns, p.b_columns, error);
}

void products(const Target& target, void* scratch) {
  const int sizes[][3] = {{1, 1, 1},       {1, 70, 33},   {3, 17, 5},     {6, 64, 64}, {7, 65, 66},   {18, 40, 9},
                          {32, 130, 7},    {65, 129, 31}, {13, 20, 2100}, {72, 8, 16}, {136, 79, 33}, {72, 80, 9},
                          {250, 66, 1300}, {2, 37, 130},  {5, 9, 259},    {15, 70, 67}};
  for (int d = 0; d < kDtypes; ++d) {
    if (target.engine->run[d] == nullptr) continue;  // its target does not list it
    for (const auto& [m, n, k] : sizes) {
      for (int layout = 0; layout < 4; ++layout) {
        if (m * k > 100000 && layout != d % 4) continue;  // one layout of the largest
        Problem p = {};
        p.dtype = Dtype(d), p.out_dtype = p.dtype == Dtype::int8 ? OutDtype::int32 : OutDtype::fp32;
        p.m = m, p.n = n, p.k = k, p.a_columns = layout & 1, p.b_columns = layout & 2, p.alpha = 1;
        const Matrix a(p.dtype, size_t(m) * k), b(p.dtype, size_t(k) * n);
        p.a = a.bytes.data(), p.b = b.bytes.data();
        p.lda = p.a_columns ? m : k, p.ldb = p.b_columns ? k : n, p.out_row = n + 3;
        std::vector<float> out(size_t(m) * size_t(n + 3), kUntouched);
        p.out = out.data();
        begin_call(scratch);
        target.engine->run[d](p, {0, m, 0, n}, scratch);
        double worst = 0;
        bool inside = true;
        for (int i = 0; i < m; ++i) {
          for (int j = 0; j < n + 3; ++j) {
            const float got = out[size_t(i) * size_t(n + 3) + size_t(j)];
            if (j >= n) {
              inside &= got == kUntouched;
              continue;
            }
            double sum = 0, size = 1e-30;
            for (int l = 0; l < k; ++l) {
              const double x = a.values[size_t(p.a_columns ? l * m + i : i * k + l)],
                           y = b.values[size_t(p.b_columns ? j * k + l : l * n + j)];
              sum += x * y, size += std::abs(x * y);
            }
            int integer;
            std::memcpy(&integer, &got, sizeof integer);
            const double found = p.dtype == Dtype::int8 ? integer : double(got);
            worst = std::max(worst, std::abs(found - sum) / size);
          }
        }
        check(worst <= (p.dtype == Dtype::int8 ? 0 : 3e-6), target.name, "product", d, p, worst);
        check(inside, target.name, "columns that are not out", d, p, 0);
      }
    }
  }
}

// Memory that begins with a line, as that of calls.
char* from_line(std::vector<char>& bytes) {
  return bytes.data() + (64 - reinterpret_cast<std::uintptr_t>(bytes.data()) % 64) % 64;
}

// b as panels, [panel][word][lane]; of int8 128 is added to each.
std::vector<char> panels_of(const Problem& p, int elements) {
  const int size = element_bytes(p.dtype), panels = (p.n + kPanelLanes - 1) / kPanelLanes,
            words = (p.k + elements - 1) / elements;
  std::vector<char> to(size_t(panels) * size_t(words) * size_t(kPanelLanes * elements * size));
  if (p.dtype == Dtype::int8) std::fill(to.begin(), to.end(), char(128));
  for (int j = 0; j < p.n; ++j) {
    for (int l = 0; l < p.k; ++l) {
      const size_t word =
          (size_t(j / kPanelLanes) * size_t(words) + size_t(l / elements)) * kPanelLanes + size_t(j % kPanelLanes);
      char* const at = &to[(word * size_t(elements) + size_t(l % elements)) * size_t(size)];
      std::memcpy(at, static_cast<const char*>(p.b) + (p.b_columns ? j * p.ldb + l : l * p.ldb + j) * size,
                  size_t(size));
      if (p.dtype == Dtype::int8) *at = char(*at ^ 128);
    }
  }
  return to;
}

// The bits of out are those of one unit, however out is cut, whether b is panels or a is widened beforehand.
void cuts(const Target& target, void* scratch) {
  constexpr int m = 29, n = 136;
  for (int d = 0; d < kDtypes; ++d) {
    if (target.engine->run[d] == nullptr) continue;
    for (const int k : {1, 70, 77, 4200}) {  // a word in part; an odd number of words, whole and not; more than a chunk
      for (int layout = 0; layout < 4; ++layout) {
        if (k > 1000 && layout != d % 4) continue;
        Problem p = {};
        p.dtype = Dtype(d), p.out_dtype = p.dtype == Dtype::int8 ? OutDtype::int32 : OutDtype::fp32;
        p.m = m, p.n = n, p.k = k, p.a_columns = layout & 1, p.b_columns = layout & 2, p.alpha = 1;
        const Matrix a(p.dtype, size_t(m) * size_t(k)), b(p.dtype, size_t(k) * n);
        p.a = a.bytes.data(), p.b = b.bytes.data();
        p.lda = p.a_columns ? m : k, p.ldb = p.b_columns ? k : n, p.out_row = n;
        const auto run = [&](const Problem& of, std::initializer_list<int> rows, int columns) {
          std::vector<float> out(size_t(m) * n, kUntouched);
          Problem call = of;
          call.out = out.data();
          begin_call(scratch);
          for (int m0 = 0, i = 0; m0 < m; ++i) {
            const int m1 = std::min(m, m0 + rows.begin()[size_t(i) % rows.size()]);
            for (int n0 = 0; n0 < n; n0 += columns)
              target.engine->run[d](call, {m0, m1, n0, std::min(n, n0 + columns)}, scratch);
            m0 = m1;
          }
          return out;
        };
        const auto like = [&](const std::vector<float>& x, const std::vector<float>& y, const char* what) {
          check(std::memcmp(x.data(), y.data(), x.size() * sizeof(float)) == 0, target.name, what, d, p, 0);
        };
        const std::vector<float> whole = run(p, {m}, n);
        like(whole, run(p, {1, 2, 3, 5, 18}, kPanelLanes), "units");
        if (const Widen& widen = target.engine->widen[d]; widen.rows && !p.a_columns) {
          const i64 row = (i64(k + widen.elements - 1) / widen.elements * 4 + kWideRow - 1) / kWideRow * kWideRow;
          std::vector<char> words(size_t(m) * size_t(row) + 64);
          char* const first = from_line(words);
          widen.rows(first, row, p.a, p.lda, m, k);
          Problem wide = p;
          wide.a = first, wide.lda = row / 4, wide.a_words = true;
          like(whole, run(wide, {7, m}, n), "widened rows");
        }
        const bool quads = std::strstr(target.name, "neon") || std::strcmp(target.name, "cpu_avx512bf16") == 0;
        const int elements[] = {1, 1, 2, quads ? 4 : 0, 0, 0};  // of a word of packed panels; 0: there are none
        if (elements[d] == 0) continue;
        const std::vector<char> packed = panels_of(p, elements[d]);
        Problem ready = p;
        ready.b = packed.data(), ready.b_panels = elements[d], ready.b_columns = false;
        like(whole, run(ready, {m}, n), "panels");
        like(whole, run(ready, {1, 5, 8, 15}, kPanelLanes), "units of panels");
      }
    }
  }
}

// int8 rows by weights of int8 or int4 in groups of 32 or 64, packed as kernels/gemm/cpu/unpack.h says.
void groups(const Target& target, void* scratch) {
  for (const Weights weights : {Weights::int8, Weights::int4}) {
    for (const int group : {32, 64}) {
      for (const int m : {1, 5, 16, 40}) {
        const int n = 2 * kPanelLanes, k = 448, panels = 2, groups_ = k / group,
                  step = weights == Weights::int4 ? 8 : 4;
        std::vector<int> w(size_t(n) * k);
        std::vector<unsigned char> packed(size_t(panels) * size_t(k / step) * 4 * kPanelLanes);
        for (int j = 0; j < n; ++j) {
          for (int l = 0; l < k; ++l) {
            const int value = w[size_t(j) * k + size_t(l)] = step == 8 ? drawn(16) - 8 : drawn(256) - 128;
            const size_t word =
                (size_t(j / kPanelLanes) * size_t(k / step) + size_t(l / step)) * kPanelLanes + size_t(j % kPanelLanes);
            unsigned char& byte = packed[4 * word + size_t(l % 4)];
            if (step == 4) byte = static_cast<unsigned char>(value + 128);
            if (step == 8) byte = static_cast<unsigned char>(byte | (value + 8) << (l % 8 < 4 ? 0 : 4));
          }
        }
        const Matrix a(Dtype::int8, size_t(m) * k);
        std::vector<float> scale(size_t(panels) * size_t(groups_) * kPanelLanes), out(size_t(m) * n);
        for (float& one : scale) one = float(1 + drawn(100)) / 100;
        std::vector<int> sums(size_t(m) * k / kSummed);
        for (size_t i = 0; i < size_t(m) * k; ++i) sums[i / kSummed] += int(a.values[i]);
        Grouped g = {};
        g.product.m = m, g.product.n = n, g.product.k = k, g.product.alpha = 1;
        g.product.a = a.bytes.data(), g.product.lda = k, g.product.b = packed.data(), g.product.out = out.data();
        g.product.out_row = n, g.a_dtype = Dtype::int8, g.weights = weights, g.group = group;
        g.b_scale = scale.data(), g.a_sums = sums.data();
        begin_call(scratch);
        target.engine->groups(g, {0, m, 0, n}, scratch);
        double worst = 0;
        for (int i = 0; i < m; ++i) {
          for (int j = 0; j < n; ++j) {
            double sum = 0, size = 1e-30;
            for (int l = 0; l < k; ++l) {
              const size_t at = (size_t(j / kPanelLanes) * size_t(groups_) + size_t(l / group)) * kPanelLanes;
              const double x = a.values[size_t(i) * k + size_t(l)] * w[size_t(j) * k + size_t(l)] *
                               double(scale[at + size_t(j % kPanelLanes)]);
              sum += x, size += std::abs(x);
            }
            worst = std::max(worst, std::abs(double(out[size_t(i) * n + size_t(j)]) - sum) / size);
          }
        }
        check(worst <= 1e-6, target.name, step == 8 ? "groups of int4" : "groups of int8", 3, g.product, worst);
      }
    }
  }
}

}  // namespace
}  // namespace tilekiln::test

int main(int argc, char** argv) {
  using namespace tilekiln::test;
  const bool tiles = TileTrap::install_if_needed();
  for (const Target& target : kTargets) {
    const bool asked = argc < 2 || std::strcmp(argv[1], target.name) == 0;
    if (target.engine == nullptr || !runs(target.name) || !asked) continue;
    if (std::strcmp(target.name, "cpu_amx") == 0 && !tiles) continue;
    void* const scratch = std::aligned_alloc(64, (target.engine->scratch_bytes + 63) / 64 * 64);
    products(target, scratch);
    cuts(target, scratch);
    if (target.engine->groups != nullptr) groups(target, scratch);
    std::free(scratch);
    std::printf("%s: %d checks, %d failed\n", target.name, checks, failures);
  }
  if (checks == 0) {
    std::printf("no engine %s here\n", argc > 1 ? argv[1] : "");
    return 77;
  }
  return failures != 0;
}
