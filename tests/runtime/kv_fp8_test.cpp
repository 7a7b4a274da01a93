// SPDX-License-Identifier: MIT
// Calls over fp8 caches through the C ABI: scales of the cache, of queries and of out, one each or by page and head, read
// when the stream comes to them. Runs on fp8 (fp8 in and out) and on flash (an fp8 cache under bf16 queries); what a library
// does not hold is left out.
#include <math.h>
#include <stdint.h>

#include <limits>
#include <random>
#include <vector>

#include "check.h"
#include "kv_plain_engine.h"
#include "tensor.h"
#include "tilekiln/tilekiln.h"

namespace {

constexpr int64_t Hk = 2, Hq = 4, D = 64, Page = 128, Pages = 6;
std::mt19937 random_bits(5);
int ran = 0;

// e4m3: 4 bits of exponent with bias 7, 3 of mantissa.
float decode(uint8_t code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  const double value = exponent == 0 ? ldexp(mantissa, -9) : ldexp(8 + mantissa, exponent - 10);
  return static_cast<float>(code & 0x80 ? -value : value);
}
// Codes of magnitude below 2.
std::vector<uint8_t> codes(int64_t count) {
  std::vector<uint8_t> result(static_cast<size_t>(count));
  for (auto& x : result) x = static_cast<uint8_t>((random_bits() & 0x80) | random_bits() % 0x40);
  return result;
}

// Tells whether a call ran; without an instance it is left out.
bool runs(tilekiln_status status) {
  if (status == TILEKILN_NO_KERNEL) return false;
  ++ran;
  if (CHECK(status == TILEKILN_OK)) return true;
  fprintf(stderr, "%s\n", tilekiln_last_error());
  return false;
}

void splitkv() {
  constexpr int64_t keys = 200, rows = 2;
  const auto q8 = codes(rows * Hq * D), k8 = codes(keys * Hk * D), v8 = codes(keys * Hk * D);
  std::vector<uint8_t> out8(q8.size());
  std::vector<float> scales = {0.5f, 2, 0.25f, 64}, biases(Hq * rows * keys);
  for (auto& x : biases) x = static_cast<float>(random_bits() % 100) * 0.01f;
  const tilekiln_tensor q = tensor(q8.data(), TILEKILN_FP8, {1, rows, Hq, D}),
                        out = tensor(out8.data(), TILEKILN_FP8, {1, rows, Hq, D});
  const tilekiln_tensor k = tensor(k8.data(), TILEKILN_FP8, {1, keys, Hk, D}),
                        v = tensor(v8.data(), TILEKILN_FP8, {1, keys, Hk, D});
  const tilekiln_tensor qs = tensor(&scales[0], TILEKILN_FP32, {1}), ks = tensor(&scales[1], TILEKILN_FP32, {}),
                        vs = tensor(&scales[2], TILEKILN_FP32, {1, 1});
  const tilekiln_tensor os = tensor(&scales[3], TILEKILN_FP32, {1}),
                        bias = tensor(biases.data(), TILEKILN_FP32, {1, Hq, rows, keys});
  auto args = tilekiln_fmha_fwd_splitkv_defaults();
  args.q = &q, args.k = &k, args.v = &v, args.out = &out;
  for (int variant = 0; variant < 12; ++variant) {
    const bool scaled = variant & 1, biased = variant & 2;
    args.q_descale = scaled ? &qs : nullptr, args.k_descale = scaled ? &ks : nullptr;
    args.v_descale = scaled ? &vs : nullptr, args.out_scale = scaled ? &os : nullptr;
    args.bias = biased ? &bias : nullptr;
    args.num_splits = variant / 4 + 1;
    if (!runs(tilekiln_fmha_fwd_splitkv(&args))) continue;
    double worst = 0;
    for (int64_t h = 0; h < Hq; ++h) {
      for (int64_t i = 0; i < rows; ++i) {
        std::vector<double> p(keys);
        double total = 0;
        for (int64_t j = 0; j < keys; ++j) {
          double s = 0;
          for (int64_t d = 0; d < D; ++d)
            s += double(decode(q8[size_t((i * Hq + h) * D + d)])) * decode(k8[size_t((j * Hk + h / 2) * D + d)]);
          if (scaled) s *= scales[0] * scales[1];
          p[size_t(j)] = exp(s / 8 + (biased ? biases[size_t((h * rows + i) * keys + j)] : 0));
          total += p[size_t(j)];
        }
        for (int64_t d = 0; d < D; ++d) {
          double o = 0;
          for (int64_t j = 0; j < keys; ++j) o += p[size_t(j)] / total * decode(v8[size_t((j * Hk + h / 2) * D + d)]);
          if (scaled) o *= scales[2] * scales[3];
          // Half a step of 3 bits of mantissa, or of the subnormal numbers, and what P's rounding adds.
          worst = fmax(worst, fabs(decode(out8[size_t((i * Hq + h) * D + d)]) - o) /
                                  (fabs(o) * 0.0625 + 0.002 * (scaled ? 16 : 1)));
        }
      }
    }
    if (!CHECK(worst < 1.3)) fprintf(stderr, "variant %d: worst %g\n", variant, worst);
  }

  // A scale that an earlier piece of the stream makes wrong is told by synchronise, and out is as it was.
  tilekiln_stream* stream = nullptr;
  CHECK(tilekiln_stream_create(&stream) == TILEKILN_OK);
  args.stream = stream;
  args.out_scale = &os;
  out8.assign(out8.size(), 99);
  CHECK(tilekiln_stream_launch_host(
            stream, [](void* scale) { *static_cast<float*>(scale) = std::numeric_limits<float>::infinity(); },
            &scales[3]) == TILEKILN_OK);
  if (tilekiln_fmha_fwd_splitkv(&args) == TILEKILN_OK) {
    CHECK(tilekiln_stream_synchronize(stream) == TILEKILN_INVALID_ARGUMENT);
    CHECK_TEXT(tilekiln_last_error(), "out_scale: was inf, must be finite");
    for (uint8_t x : out8) CHECK(x == 99);
  }
  CHECK(tilekiln_stream_synchronize(stream) == TILEKILN_OK && tilekiln_stream_destroy(stream) == TILEKILN_OK);
}

// bf16 queries over an fp8 cache against the same cache in bf16: scales are powers of two, so that both hold the same numbers.
void prefill(bool vectorized, bool by_page) {
  constexpr int64_t rows = 5;
  const int vec8 = 16, vec16 = 8;
  std::vector<uint16_t> q16(rows * Hq * D), k16(Pages * Page * Hk * D), v16(k16.size()), out[2];
  for (auto& x : q16) x = static_cast<uint16_t>((random_bits() & 0x80ff) | 0x3f00);
  std::vector<float> scales(Pages * Hk * 2);
  for (auto& x : scales) x = by_page ? ldexpf(1, static_cast<int>(random_bits() % 4) - 2) : 0.5f;
  const auto k8 = codes(Pages * Page * Hk * D), v8 = codes(Pages * Page * Hk * D);
  for (int64_t page = 0; page < Pages; ++page) {
    for (int64_t h = 0; h < Hk; ++h) {
      for (int64_t t = 0; t < Page; ++t) {
        for (int64_t d = 0; d < D; ++d) {
          const auto at = [&](bool keys, int64_t vec) {
            if (!vectorized) return size_t(((page * Page + t) * Hk + h) * D + d);
            return keys ? size_t((((page * Hk + h) * (D / vec) + d / vec) * Page + t) * vec + d % vec)
                        : size_t((((page * Hk + h) * (Page / vec) + t / vec) * D + d) * vec + t % vec);
          };
          const float* const scale = &scales[size_t((page * Hk + h) * 2)];
          plain::store(k16.data(), static_cast<int64_t>(at(true, vec16)), true, decode(k8[at(true, vec8)]) * scale[0]);
          plain::store(v16.data(), static_cast<int64_t>(at(false, vec16)), true,
                       decode(v8[at(false, vec8)]) * scale[1]);
        }
      }
    }
  }
  const auto pool = [&](const void* data, int32_t dtype, bool keys) {
    const int64_t vec = dtype == TILEKILN_FP8 ? vec8 : vec16;
    if (!vectorized) return tensor(data, dtype, {Pages, Page, Hk, D});
    return keys ? tensor(data, dtype, {Pages, Hk, D / vec, Page, vec})
                : tensor(data, dtype, {Pages, Hk, Page / vec, D, vec});
  };
  std::vector<int32_t> cu = {0, rows}, table = {3, 0, 5, 1}, length = {3 * Page + 17};
  const tilekiln_tensor starts = tensor(cu.data(), TILEKILN_INT32, {2}),
                        blocks = tensor(table.data(), TILEKILN_INT32, {1, 4}),
                        lengths = tensor(length.data(), TILEKILN_INT32, {1});
  const tilekiln_tensor one = tensor(scales.data(), TILEKILN_FP32, {1}),
                        each = tensor(scales.data(), TILEKILN_FP32, {Pages, Hk, 2});
  const tilekiln_tensor q = tensor(q16.data(), TILEKILN_BF16, {rows, Hq, D});
  for (int quantised = 0; quantised < 2; ++quantised) {
    out[quantised].resize(q16.size());
    const tilekiln_tensor o = tensor(out[quantised].data(), TILEKILN_BF16, {rows, Hq, D});
    const int32_t dtype = quantised ? TILEKILN_FP8 : TILEKILN_BF16;
    const tilekiln_tensor k = pool(quantised ? static_cast<const void*>(k8.data()) : k16.data(), dtype, true);
    const tilekiln_tensor v = pool(quantised ? static_cast<const void*>(v8.data()) : v16.data(), dtype, false);
    auto args = tilekiln_fmha_batch_prefill_defaults();
    args.q = &q, args.k = &k, args.v = &v, args.out = &o, args.cu_seqlens_q = &starts, args.block_table = &blocks,
    args.seqlen_k = &lengths;
    args.causal = 1;
    if (quantised && by_page) args.kv_block_descale = &each;
    if (quantised && !by_page) args.k_descale = args.v_descale = &one;
    if (!runs(tilekiln_fmha_batch_prefill(&args))) return;
  }
  double worst = 0;
  for (size_t i = 0; i < q16.size(); ++i)
    worst = fmax(worst, fabs(plain::load(out[0].data(), static_cast<int64_t>(i), true) -
                             plain::load(out[1].data(), static_cast<int64_t>(i), true)));
  if (!CHECK(worst < 2e-2)) fprintf(stderr, "vectorized %d by page %d: worst %g\n", vectorized, by_page, worst);
}

// Bytes in, bytes out.
void append() {
  constexpr int64_t room = 40, fresh = 3;
  auto k8 = codes(2 * room * Hk * D), v8 = codes(2 * room * Hk * D);
  const auto k_before = k8, v_before = v8, kn8 = codes(2 * fresh * Hk * D), vn8 = codes(2 * fresh * Hk * D);
  std::vector<int32_t> length = {7, 37};
  const tilekiln_tensor k = tensor(k8.data(), TILEKILN_FP8, {2, room, Hk, D}),
                        v = tensor(v8.data(), TILEKILN_FP8, {2, room, Hk, D});
  const tilekiln_tensor kn = tensor(kn8.data(), TILEKILN_FP8, {2, fresh, Hk, D}),
                        vn = tensor(vn8.data(), TILEKILN_FP8, {2, fresh, Hk, D}),
                        lengths = tensor(length.data(), TILEKILN_INT32, {2});
  auto args = tilekiln_fmha_fwd_appendkv_defaults();
  args.k = &k, args.v = &v, args.knew = &kn, args.vnew = &vn, args.seqlen_k = &lengths;
  if (!runs(tilekiln_fmha_fwd_appendkv(&args))) return;
  bool same = true;
  for (int64_t b = 0; b < 2; ++b) {
    for (int64_t j = 0; j < room; ++j) {
      const int64_t new_row = j - length[size_t(b)];
      const bool written = new_row >= 0 && new_row < fresh;
      for (int64_t e = 0; e < Hk * D; ++e) {
        const size_t at = size_t((b * room + j) * Hk * D + e),
                     from = size_t((b * fresh + (written ? new_row : 0)) * Hk * D + e);
        same = same && k8[at] == (written ? kn8[from] : k_before[at]) && v8[at] == (written ? vn8[from] : v_before[at]);
      }
    }
  }
  CHECK(same);
}

}  // namespace

int main() {
  splitkv();
  for (bool vectorized : {false, true}) {
    for (bool by_page : {false, true}) prefill(vectorized, by_page);
  }
  append();
  CHECK(ran >= 8);
  return check_result();
}
