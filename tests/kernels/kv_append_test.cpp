// SPDX-License-Identifier: MIT
// Append: new keys and values in the cache, byte for byte, rotations against their definition, and nothing else touched. Also keys
// on both sides of the 2 GB and 4 GB borders of a cache, and decode over them.
//
//   kv_append_test [TARGET]
// Exit code 77: the target asked for is not linked in, or this machine cannot run it.
#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "guarded.h"
#include "kernels/attention/kv_engine.h"
#include "runs.h"

#define TILEKILN_WEAK extern "C" __attribute__((weak)) const tilekiln::fmha::KvEngine
TILEKILN_WEAK tilekiln_cpu_avx512bf16_fmha_fwd_splitkv_qlanes, tilekiln_cpu_avx512bf16_fmha_fwd_splitkv_dlanes;
TILEKILN_WEAK tilekiln_cpu_avx512_fmha_fwd_splitkv_qlanes, tilekiln_cpu_avx512_fmha_fwd_splitkv_dlanes;
TILEKILN_WEAK tilekiln_cpu_avx2_fmha_fwd_splitkv_qlanes, tilekiln_cpu_avx2_fmha_fwd_splitkv_dlanes;
TILEKILN_WEAK tilekiln_cpu_neonbf16_fmha_fwd_splitkv_qlanes, tilekiln_cpu_neonbf16_fmha_fwd_splitkv_dlanes;
TILEKILN_WEAK tilekiln_cpu_neon_fmha_fwd_splitkv_qlanes, tilekiln_cpu_neon_fmha_fwd_splitkv_dlanes;
TILEKILN_WEAK tilekiln_cpu_generic_fmha_fwd_splitkv_qlanes, tilekiln_cpu_generic_fmha_fwd_splitkv_dlanes;

namespace tilekiln::test {
namespace {

using fmha::KvDtype;
using fmha::Rope;
using i64 = long long;

const char* failed = nullptr;
void expect(bool condition, const char* what) {
  if (!condition && !failed) failed = what;
}

struct AppendCase {
  Rope rope;
  int rotary_dim, page_size;  // page_size 0: no pages
  bool rotary_fp32, q_advances;
  int nhead_q = 3, nhead_k = 2, hdim_q = 48, hdim_v = 40, leftpad = 0;
};

float rounded(Kind kind, float x) {
  Guarded cell(kind, 1);
  cell.set(0, x);
  return float(cell.get(0));
}

// One element of a rotated row, each product and the sum rounded to fp32, then to the type.
float rotated(Kind kind, const AppendCase& t, const std::vector<float>& row, int d, const float* cos,
              const float* sin) {
  const int half = t.rotary_dim / 2;
  const bool interleaved = t.rope == Rope::interleaved;
  const int pair = interleaved ? d / 2 : d % half;
  const bool first = interleaved ? d % 2 == 0 : d < half;
  const float x0 = row[interleaved ? 2 * pair : pair], x1 = row[interleaved ? 2 * pair + 1 : pair + half];
  volatile float a = first ? x0 * cos[pair] : x1 * cos[pair], b = first ? x1 * sin[pair] : x0 * sin[pair];
  return rounded(kind, first ? a - b : a + b);
}

void run_append(const fmha::KvEngine& engine, KvDtype dtype, Kind kind, const AppendCase& t, unsigned seed) {
  constexpr int kBatch = 2, kNew = 7, kQueries = 5, kCapacity = 70;
  const int seqlens[kBatch] = {0, 37};
  std::mt19937 random(seed);
  const Flush flush = seed % 2 ? Flush::start : Flush::end;
  const int pages = t.page_size ? (kCapacity + t.page_size - 1) / t.page_size : 0;
  const i64 rows = t.page_size ? i64(kBatch) * pages * t.page_size : i64(kBatch) * kCapacity;
  Guarded q(kind, i64(kBatch) * kQueries * t.nhead_q * t.hdim_q, flush), k(kind, rows * t.nhead_k * t.hdim_q, flush),
      v(kind, rows * t.nhead_k * t.hdim_v, flush), knew(kind, i64(kBatch) * kNew * t.nhead_k * t.hdim_q, flush),
      vnew(kind, i64(kBatch) * kNew * t.nhead_k * t.hdim_v, flush);
  const Kind rotary_kind = t.rotary_fp32 ? Kind::fp32 : kind;
  const int half = t.rotary_dim / 2;
  Guarded cos(rotary_kind, i64(37 + kNew) * half, flush), sin(rotary_kind, i64(37 + kNew) * half, flush);
  std::normal_distribution<float> normal;
  for (Guarded* x : {&q, &knew, &vnew, &cos, &sin}) {
    for (size_t i = 0; i < x->size; ++i) x->set(i, normal(random));
  }
  k.poison();
  v.poison();
  std::vector<int> table(kBatch * pages);
  for (size_t i = 0; i < table.size(); ++i) table[i] = int(table.size() - 1 - i);
  std::vector<float> q_before(q.size), cosines(cos.size), sines(sin.size);
  for (size_t i = 0; i < q.size; ++i) q_before[i] = float(q.get(i));
  for (size_t i = 0; i < cos.size; ++i) cosines[i] = float(cos.get(i)), sines[i] = float(sin.get(i));

  fmha::AppendProblem p{};
  p.dtype = dtype, p.rope = t.rope, p.nhead_q = t.nhead_q, p.nhead_k = t.nhead_k, p.hdim_q = t.hdim_q,
  p.hdim_v = t.hdim_v;
  p.rotary_dim = t.rotary_dim, p.rotary_fp32 = t.rotary_fp32, p.q_advances = t.q_advances;
  p.q = q.data(), p.k = k.data(), p.v = v.data(), p.knew = knew.data(), p.vnew = vnew.data();
  p.q_head = p.k_head = p.knew_head = t.hdim_q, p.v_head = p.vnew_head = t.hdim_v;
  p.q_row = t.nhead_q * t.hdim_q, p.k_row = p.knew_row = t.nhead_k * t.hdim_q,
  p.v_row = p.vnew_row = t.nhead_k * t.hdim_v;
  p.rotary_cos = cos.data(), p.rotary_sin = sin.data(), p.rotary_cos_row = p.rotary_sin_row = half;
  if (t.page_size)
    p.pages = {table.data(), t.page_size, fmha::KvLayout::linear, t.page_size * p.k_row, t.page_size * p.v_row, 0, 0};
  for (int b = 0; b < kBatch; ++b) {
    for (int middle : {0, 3}) {  // in two parts
      fmha::AppendUnit u{};
      u.seqlen_k = seqlens[b];
      u.q_row = u.new_row = middle, u.q_row_end = middle ? kQueries : 3, u.new_row_end = middle ? kNew : 3;
      u.q_offset = b * kQueries * p.q_row, u.knew_offset = b * kNew * p.knew_row, u.vnew_offset = b * kNew * p.vnew_row;
      if (!t.page_size) u.k_offset = i64(b) * kCapacity * p.k_row, u.v_offset = i64(b) * kCapacity * p.v_row;
      u.pages_offset = b * pages, u.first_key = t.leftpad;
      engine.append[int(dtype)](p, u);
    }
  }

  std::vector<float> row(t.hdim_q);
  size_t written_k = 0, written_v = 0;
  for (int b = 0; b < kBatch; ++b) {
    for (int j = 0; j < kNew; ++j) {
      const int place = t.leftpad + seqlens[b] + j;
      const i64 at = t.page_size ? i64(table[b * pages + place / t.page_size]) * t.page_size + place % t.page_size
                                 : i64(b) * kCapacity + place;
      for (int h = 0; h < t.nhead_k; ++h) {
        const i64 from = (i64(b) * kNew + j) * t.nhead_k + h, to = at * t.nhead_k + h;
        for (int d = 0; d < t.hdim_q; ++d) row[d] = float(knew.get(from * t.hdim_q + d));
        for (int d = 0; d < t.hdim_q; ++d, ++written_k) {
          const i64 angle = i64(seqlens[b] + j) * half;
          const float want = d < t.rotary_dim ? rotated(kind, t, row, d, &cosines[angle], &sines[angle]) : row[d];
          expect(float(k.get(to * t.hdim_q + d)) == want, "a new key");
        }
        for (int d = 0; d < t.hdim_v; ++d, ++written_v)
          expect(v.get(to * t.hdim_v + d) == vnew.get(from * t.hdim_v + d), "a new value");
      }
    }
    for (int i = 0; i < kQueries; ++i) {
      for (int h = 0; h < t.nhead_q; ++h) {
        const i64 at = ((i64(b) * kQueries + i) * t.nhead_q + h) * t.hdim_q;
        std::copy_n(q_before.begin() + at, t.hdim_q, row.begin());
        for (int d = 0; d < t.hdim_q; ++d) {
          const i64 angle = i64(seqlens[b] + (t.q_advances ? i : 0)) * half;
          const float want = d < t.rotary_dim ? rotated(kind, t, row, d, &cosines[angle], &sines[angle]) : row[d];
          expect(float(q.get(at + d)) == want, "a query");
        }
      }
    }
  }
  size_t touched_k = 0, touched_v = 0;
  for (size_t i = 0; i < k.size; ++i) touched_k += !k.poisoned(i);
  for (size_t i = 0; i < v.size; ++i) touched_v += !v.poisoned(i);
  expect(touched_k == written_k && touched_v == written_v, "a write outside the new keys");
}

// Pages of 16 keys on both sides of 2 GB and 4 GB: what append writes there, both pipelines read.
void run_large(const fmha::KvEngine& qlanes, const fmha::KvEngine& dlanes) {
  constexpr int kPage = 16, kHdim = 128, kKeys = 6 * kPage - 5;
  constexpr i64 kPageBytes = kPage * kHdim * 2, kBytes = 9LL << 29;  // 4.5 GB
  const int pages[6] = {0,
                        int((1LL << 31) / kPageBytes) - 1,
                        int((1LL << 31) / kPageBytes),
                        int((1LL << 32) / kPageBytes) - 1,
                        int((1LL << 32) / kPageBytes),
                        int(kBytes / kPageBytes) - 1};
  void* cache[2];
  for (void*& x : cache) {
    x = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (x == MAP_FAILED) std::abort();
  }
  Guarded knew(Kind::bf16, i64(kKeys) * kHdim), vnew(Kind::bf16, i64(kKeys) * kHdim), q(Kind::bf16, kHdim);
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  for (Guarded* x : {&knew, &vnew, &q}) {
    for (size_t i = 0; i < x->size; ++i) x->set(i, normal(random));
  }
  fmha::AppendProblem a{};
  a.dtype = KvDtype::bf16, a.nhead_q = a.nhead_k = 1, a.hdim_q = a.hdim_v = kHdim;
  a.k = cache[0], a.v = cache[1], a.knew = knew.data(), a.vnew = vnew.data();
  a.k_row = a.v_row = a.knew_row = a.vnew_row = kHdim;
  a.pages = {pages, kPage, fmha::KvLayout::linear, kPage * kHdim, kPage * kHdim, 0, 0};
  fmha::AppendUnit au{};
  au.new_row_end = kKeys;
  dlanes.append[int(KvDtype::bf16)](a, au);
  for (int j = 0; j < kKeys; ++j) {
    for (int i = 0; i < 2; ++i) {
      const char* from = static_cast<const char*>(i ? vnew.data() : knew.data()) + j * kHdim * 2;
      const char* at = static_cast<const char*>(cache[i]) + pages[j / kPage] * kPageBytes + j % kPage * kHdim * 2;
      expect(std::memcmp(at, from, kHdim * 2) == 0, "a key far out");
    }
  }

  std::vector<double> s(kKeys), want(kHdim);
  double m = -INFINITY, l = 0;
  for (int j = 0; j < kKeys; ++j) {
    for (int d = 0; d < kHdim; ++d) s[j] += q.get(d) * knew.get(i64(j) * kHdim + d) / std::sqrt(double(kHdim));
    m = std::max(m, s[j]);
  }
  for (int j = 0; j < kKeys; ++j) l += s[j] = std::exp(s[j] - m);
  for (int j = 0; j < kKeys; ++j) {
    for (int d = 0; d < kHdim; ++d) want[d] += s[j] / l * vnew.get(i64(j) * kHdim + d);
  }
  for (const fmha::KvEngine* engine : {&qlanes, &dlanes}) {
    Guarded scratch(Kind::byte, engine->scratch_bytes), out(Kind::fp32, kHdim), lse(Kind::fp32, 1);
    fmha::KvProblem p{};
    p.features.lse = true;
    p.nhead_q = p.nhead_k = 1, p.hdim_q = p.hdim_v = kHdim, p.q = q.data(), p.k = cache[0], p.v = cache[1];
    p.out = out.data(), p.lse = static_cast<float*>(lse.data()), p.k_row = p.v_row = kHdim;
    p.softmax_scale = 1 / std::sqrt(float(kHdim)), p.window_left = p.window_right = -1;
    p.dtype = KvDtype::bf16, p.pages = a.pages, p.out_scale = 1;
    fmha::KvUnit u{};
    u.rows = u.heads = u.seqlen_q = 1, u.seqlen_k = u.key_end = kKeys, u.first_split = true;
    engine->split[int(KvDtype::bf16)](p, u, scratch.data());
    for (int d = 0; d < kHdim; ++d) expect(std::abs(out.get(d) - want[d]) < 1e-2, "attention over keys far out");
  }
  for (void* x : cache) munmap(x, kBytes);
}

int test(const char* target, const fmha::KvEngine& qlanes, const fmha::KvEngine& dlanes) {
  const std::pair<KvDtype, Kind> dtypes[] = {
      {KvDtype::fp32, Kind::fp32}, {KvDtype::fp16, Kind::fp16}, {KvDtype::bf16, Kind::bf16}, {KvDtype::fp8, Kind::fp8}};
  int count = 0, failures = 0;
  for (auto [dtype, kind] : dtypes) {
    for (Rope rope : {Rope::none, Rope::interleaved, Rope::half}) {
      if (rope != Rope::none && kind == Kind::fp8) continue;
      for (int rotary_dim : {16, 32, 48, 6}) {
        for (int page_size : {0, 1, 16, 24}) {
          for (int variant = 0; variant < 4; ++variant) {
            const AppendCase t{rope,
                               rope == Rope::none ? 0 : rotary_dim,
                               page_size,
                               variant % 2 == 1,
                               variant / 2 == 1,
                               3,
                               2,
                               48,
                               40,
                               variant * 3};
            failed = nullptr;
            run_append(dlanes, dtype, kind, t, unsigned(++count));
            if (!failed) continue;
            ++failures;
            std::printf("FAIL %s dtype %d rope %d rotary_dim %d page %d variant %d: %s\n", target, int(dtype),
                        int(rope), t.rotary_dim, page_size, variant, failed);
          }
        }
      }
    }
  }
  failed = nullptr;
  run_large(qlanes, dlanes);
  if (failed) {
    ++failures;
    std::printf("FAIL %s: %s\n", target, failed);
  }
  std::printf("%s: %d checks, %d failed\n", target, count + 1, failures);
  return failures;
}

struct Target {
  const char* name;
  const fmha::KvEngine *qlanes, *dlanes;
};

// Engines of targets that may be linked in.
#define TILEKILN_OF(target) \
  {"cpu_" #target, &tilekiln_cpu_##target##_fmha_fwd_splitkv_qlanes, &tilekiln_cpu_##target##_fmha_fwd_splitkv_dlanes}
const Target kTargets[] = {TILEKILN_OF(avx512bf16), TILEKILN_OF(avx512), TILEKILN_OF(avx2),
                           TILEKILN_OF(neonbf16),   TILEKILN_OF(neon),   TILEKILN_OF(generic)};

}  // namespace
}  // namespace tilekiln::test

int main(int argc, char** argv) {
  int failures = 0, tested = 0;
  for (const auto& target : tilekiln::test::kTargets) {
    const bool asked = argc < 2 || std::strcmp(argv[1], "any") == 0 || std::strcmp(argv[1], target.name) == 0;
    if (target.qlanes == nullptr || target.dlanes == nullptr || !tilekiln::test::runs(target.name) || !asked) continue;
    ++tested;
    failures += tilekiln::test::test(target.name, *target.qlanes, *target.dlanes);
  }
  if (tested == 0) {
    std::printf("no engine %s here\n", argc > 1 ? argv[1] : "");
    return 77;
  }
  return failures != 0;
}
