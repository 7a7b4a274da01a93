// SPDX-License-Identifier: MIT
#include "fwd_case.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <sstream>

#include "kernels/backends/philox.h"

namespace tilekiln::test {
namespace {

using i64 = long long;

Kind input_kind(Dtype dtype) {
  switch (dtype) {
    case Dtype::fp32: return Kind::fp32;
    case Dtype::fp16: return Kind::fp16;
    case Dtype::bf16: return Kind::bf16;
    default: return Kind::fp8;
  }
}

Kind output_kind(Dtype dtype) {
  if (dtype == Dtype::fp8bf16) return Kind::bf16;
  return dtype == Dtype::fp8fp32 ? Kind::fp32 : input_kind(dtype);
}

constexpr int kRowPad = 3;  // poisoned elements between rows of out
constexpr int kScaleBlock = 128;

// Error allowed besides the relative one: half of fp16's smallest subnormal; elsewhere P far below the row's maximum may be flushed to 0.
double absolute_error(Kind out) { return out == Kind::fp16 ? 0x1p-25 : 1e-30; }

struct Arrays {
  Sequences q_seq, k_seq;
  Layout ql, kl, vl, ol;
  Guarded q, k, v, out, lse, bias, slopes, sink, randval, q_descale, k_descale, v_descale;
  i64 bias_batch, bias_head;
  int q_blocks, k_blocks;

  static i64 count(const FwdCase& t, const Sequences& s, int nhead, int width) {
    return (t.group ? 1 : t.batch) * s.rows * nhead * width;
  }

  Arrays(const FwdCase& t, Dtype dtype, std::mt19937& random, Flush flush)
      : q_seq(sequences(t, t.seqlen_q, 2, random)),
        k_seq(sequences(t, t.seqlen_k, 3, random)),
        ql(layout_of(t, t.nhead_q, q_seq.rows, t.hdim_q)),
        kl(layout_of(t, t.nhead_k, k_seq.rows, t.hdim_q)),
        vl(layout_of(t, t.nhead_k, k_seq.rows, t.hdim_v)),
        ol(layout_of(t, t.nhead_q, q_seq.rows, t.hdim_v + kRowPad)),
        q(input_kind(dtype), count(t, q_seq, t.nhead_q, t.hdim_q), flush),
        k(input_kind(dtype), count(t, k_seq, t.nhead_k, t.hdim_q), flush),
        v(input_kind(dtype), count(t, k_seq, t.nhead_k, t.hdim_v), flush),
        out(output_kind(dtype), count(t, q_seq, t.nhead_q, t.hdim_v + kRowPad), flush),
        lse(Kind::fp32, count(t, q_seq, t.nhead_q, 1), flush),
        bias(output_kind(dtype), t.bias == Bias::elementwise ? i64(t.batch) * t.nhead_q * t.seqlen_q * t.seqlen_k : 0,
             flush),
        slopes(Kind::fp32, t.batch * t.nhead_q, flush),
        sink(Kind::fp32, t.nhead_q, flush),
        randval(Kind::byte, t.randval ? i64(t.batch) * t.nhead_q * t.seqlen_q * (t.seqlen_k + kRowPad) : 0, flush),
        q_descale(Kind::fp32, t.batch * t.nhead_q * ((t.seqlen_q + kScaleBlock - 1) / kScaleBlock), flush),
        k_descale(Kind::fp32, t.batch * t.nhead_k * ((t.seqlen_k + kScaleBlock - 1) / kScaleBlock), flush),
        v_descale(Kind::fp32, t.batch * t.nhead_k * ((t.seqlen_k + kScaleBlock - 1) / kScaleBlock), flush),
        q_blocks((t.seqlen_q + kScaleBlock - 1) / kScaleBlock),
        k_blocks((t.seqlen_k + kScaleBlock - 1) / kScaleBlock) {
    std::normal_distribution<float> normal;
    for (Guarded* x : {&q, &k, &v, &bias}) {
      for (size_t i = 0; i < x->size; ++i) x->set(i, normal(random));
    }
    for (size_t i = 0; i < slopes.size; ++i) slopes.set(i, 0.1f * float(i + 1));
    for (size_t i = 0; i < sink.size; ++i) sink.set(i, t.sink_logit - float(i));
    std::uniform_real_distribution<float> descale(0.5f, 2.f);
    for (Guarded* x : {&q_descale, &k_descale, &v_descale}) {
      for (size_t i = 0; i < x->size; ++i) x->set(i, descale(random));
    }
    for (Guarded* x : {&out, &lse, &randval}) x->poison();
    if (t.group) poison_padding(t);
    const i64 plane = i64(t.seqlen_q) * t.seqlen_k;
    bias_head = t.bias_shape == BiasShape::one ? 0 : plane;
    bias_batch = t.bias_shape == BiasShape::batch_heads ? plane * t.nhead_q : 0;
  }

  void poison_padding(const FwdCase& t) {
    for (int b = 0; b < t.batch; ++b) {
      for (i64 row = k_seq.start[b] + k_seq.length[b]; row < k_seq.start[b] + k_seq.length[b] + 3; ++row) {
        for (int h = 0; h < t.nhead_k; ++h) {
          for (int d = 0; d < t.hdim_q; ++d) k.set(h * kl.head + row * kl.row + d, NAN);
          for (int d = 0; d < t.hdim_v; ++d) v.set(h * vl.head + row * vl.row + d, NAN);
        }
      }
    }
  }

  i64 at_batch(const FwdCase& t, const Layout& l, const Sequences& s, int b) const {
    return t.group ? s.start[b] * l.row : b * l.batch;
  }
};

float scale_of(const FwdCase& t) { return t.scale_given ? t.scale : 1 / std::sqrt(float(t.hdim_q)); }

fmha::FwdProblem problem_of(const FwdCase& t, Dtype dtype, const Arrays& a) {
  fmha::FwdProblem p{};
  p.features = {dtype, t.bias,          t.qscale,      t.group, t.window_left >= 0 || t.window_right >= 0,
                t.lse, t.dropout_p > 0, t.softcap > 0, false,   t.sink || t.sink_size > 0};
  p.nhead_q = t.nhead_q;
  p.nhead_k = t.nhead_k;
  p.hdim_q = t.hdim_q;
  p.hdim_v = t.hdim_v;
  p.q = a.q.data();
  p.k = a.k.data();
  p.v = a.v.data();
  p.out = a.out.data();
  p.lse = t.lse ? static_cast<float*>(a.lse.data()) : nullptr;
  p.randval = t.randval ? static_cast<unsigned char*>(a.randval.data()) : nullptr;
  p.q_head = a.ql.head, p.q_row = a.ql.row;
  p.k_head = a.kl.head, p.k_row = a.kl.row;
  p.v_head = a.vl.head, p.v_row = a.vl.row;
  p.out_head = a.ol.head, p.out_row = a.ol.row;
  p.lse_head = a.q_seq.rows;
  p.randval_row = t.seqlen_k + kRowPad;
  p.randval_head = t.seqlen_q * p.randval_row;
  p.softmax_scale = scale_of(t);
  p.softcap = t.softcap;
  p.bias = t.bias == Bias::elementwise ? a.bias.data() : nullptr;
  p.bias_head = a.bias_head;
  p.bias_row = t.seqlen_k;
  p.alibi_slopes = t.bias == Bias::alibi ? static_cast<float*>(a.slopes.data()) : nullptr;
  p.sink = t.sink ? static_cast<float*>(a.sink.data()) : nullptr;
  p.window_left = t.window_left;
  p.window_right = t.window_right;
  p.top_left = t.top_left;
  p.sink_keys = t.window_left >= 0 ? t.sink_size : 0;
  p.dropout_p = t.dropout_p;
  p.rng_seed = t.seed;
  p.rng_offset = t.offset;
  if (t.qscale != Qscale::none) {
    p.q_descale = static_cast<float*>(a.q_descale.data());
    p.k_descale = static_cast<float*>(a.k_descale.data());
    p.v_descale = static_cast<float*>(a.v_descale.data());
    p.q_descale_head = a.q_blocks;
    p.k_descale_head = p.v_descale_head = a.k_blocks;
    p.block_scale_q = p.block_scale_k = kScaleBlock;
  }
  return p;
}

fmha::FwdUnit unit_of(const FwdCase& t, const Arrays& a, int b, int h, int row) {
  fmha::FwdUnit u{};
  u.batch = b;
  u.head = h;
  u.row = row;
  u.seqlen_q = a.q_seq.length[b];
  u.seqlen_k = a.k_seq.length[b];
  u.q_offset = a.at_batch(t, a.ql, a.q_seq, b);
  u.k_offset = a.at_batch(t, a.kl, a.k_seq, b);
  u.v_offset = a.at_batch(t, a.vl, a.k_seq, b);
  u.out_offset = a.at_batch(t, a.ol, a.q_seq, b);
  u.lse_offset = t.group ? a.q_seq.start[b] : b * a.q_seq.rows * t.nhead_q;
  u.randval_offset = i64(b) * t.nhead_q * t.seqlen_q * (t.seqlen_k + kRowPad);
  u.bias_offset = b * a.bias_batch;
  u.alibi_offset = t.bias_shape == BiasShape::batch_heads ? i64(b) * t.nhead_q : 0;
  u.q_descale_offset = i64(b) * t.nhead_q * a.q_blocks;
  u.k_descale_offset = u.v_descale_offset = i64(b) * t.nhead_k * a.k_blocks;
  return u;
}

// The float64 answer for one row.
struct Reference {
  std::vector<double> out, magnitude;  // magnitude[d] = sum_j P_j |V_jd|
  double lse;
};

// Q, K and V as numbers.
struct Values { std::vector<double> q, k, v; };

Reference reference(const FwdCase& t, const Arrays& a, const Values& values, int b, int h, int i) {
  const int sq = a.q_seq.length[b], sk = a.k_seq.length[b], head_k = h / (t.nhead_q / t.nhead_k);
  const i64 qo = a.at_batch(t, a.ql, a.q_seq, b) + h * a.ql.head + i * a.ql.row;
  const i64 ko = a.at_batch(t, a.kl, a.k_seq, b) + head_k * a.kl.head;
  const i64 vo = a.at_batch(t, a.vl, a.k_seq, b) + head_k * a.vl.head;
  const int shift = t.top_left ? 0 : sk - sq;

  const auto k_scale = [&](const Guarded& x, int j) {
    if (t.qscale == Qscale::none) return 1.0;
    return t.qscale == Qscale::pertensor ? x.get(0)
                                         : x.get((i64(b) * t.nhead_k + head_k) * a.k_blocks + j / kScaleBlock);
  };
  double q_scale = 1;
  if (t.qscale == Qscale::pertensor) q_scale = a.q_descale.get(0);
  if (t.qscale == Qscale::blockscale)
    q_scale = a.q_descale.get((i64(b) * t.nhead_q + h) * a.q_blocks + i / kScaleBlock);

  std::vector<double> s(sk, -INFINITY);
  double m = t.sink ? a.sink.get(h) : -INFINITY;
  for (int j = 0; j < sk; ++j) {
    const bool right = t.window_right < 0 || j <= i + shift + t.window_right;
    const bool left = t.window_left < 0 || j >= i + shift - t.window_left || j < t.sink_size;
    if (!left || !right) continue;
    double x = 0;
    const double *q = &values.q[qo], *k = &values.k[ko + j * a.kl.row];
    for (int d = 0; d < t.hdim_q; ++d) x += q[d] * k[d];
    x *= double(scale_of(t)) * q_scale * k_scale(a.k_descale, j);
    if (t.softcap > 0) x = t.softcap * std::tanh(x / t.softcap);
    if (t.bias == Bias::alibi) {
      const int row = t.bias_shape == BiasShape::batch_heads ? b * t.nhead_q + h : h;
      x -= a.slopes.get(row) * std::abs(i + shift - j);
    }
    if (t.bias == Bias::elementwise) x += a.bias.get(b * a.bias_batch + h * a.bias_head + i64(i) * t.seqlen_k + j);
    s[j] = x;
    m = std::max(m, x);
  }

  Reference r{std::vector<double>(t.hdim_v, 0), std::vector<double>(t.hdim_v, 0), -INFINITY};
  if (m == -INFINITY) return r;
  double l = t.sink ? std::exp(a.sink.get(h) - m) : 0;
  for (int j = 0; j < sk; ++j) l += std::exp(s[j] - m);
  r.lse = m + std::log(l);
  const int threshold = core::dropout_threshold(t.dropout_p);
  for (int j = 0; j < sk; ++j) {
    double p = std::exp(s[j] - m) / l;
    if (t.dropout_p > 0) {
      const auto offset = t.offset + 64ULL * (unsigned(b) * t.nhead_q + h);
      p = core::dropout_byte(t.seed, offset, i, j) <= threshold ? p / (1 - double(t.dropout_p)) : 0;
    }
    if (p == 0) continue;
    p *= k_scale(a.v_descale, j);
    const double* v = &values.v[vo + j * a.vl.row];
    for (int d = 0; d < t.hdim_v; ++d) {
      const double x = p * v[d];
      r.out[d] += x;
      r.magnitude[d] += std::abs(x);
    }
  }
  return r;
}

void check_randval(const FwdCase& t, const Arrays& a, Errors& errors) {
  if (!t.randval) return;
  for (int b = 0; b < t.batch; ++b) {
    for (int h = 0; h < t.nhead_q; ++h) {
      const auto offset = t.offset + 64ULL * (unsigned(b) * t.nhead_q + h);
      for (int i = 0; i < t.seqlen_q; ++i) {
        for (int j = 0; j < t.seqlen_k + kRowPad; ++j) {
          const size_t at = ((i64(b) * t.nhead_q + h) * t.seqlen_q + i) * (t.seqlen_k + kRowPad) + j;
          const bool exists = i < a.q_seq.length[b] && j < a.k_seq.length[b];
          const bool right =
              exists ? a.randval.get(at) == core::dropout_byte(t.seed, offset, i, j) : a.randval.poisoned(at);
          if (!right) errors.broken = "a random byte";
        }
      }
    }
  }
}

}  // namespace

std::string describe(const FwdCase& t, Dtype dtype) {
  static const char* const dtypes[] = {"fp32", "fp16", "bf16", "fp8bf16", "fp8fp32"};
  static const char* const biases[] = {"none", "elementwise", "alibi"};
  static const char* const scales[] = {"none", "pertensor", "blockscale"};
  std::ostringstream s;
  s << dtypes[int(dtype)] << ' ' << t.name << ": batch " << t.batch << " nhead " << t.nhead_q << '/' << t.nhead_k
    << " seqlen " << t.seqlen_q << '/' << t.seqlen_k << " hdim " << t.hdim_q << '/' << t.hdim_v << " window ("
    << t.window_left << ", " << t.window_right << ')' << (t.top_left ? " top_left" : "") << " sink_size " << t.sink_size
    << (t.sink ? " sink" : "") << (t.group ? " group" : "") << (t.heads_inside ? " bshd" : " bhsd") << " bias "
    << biases[int(t.bias)] << " shape " << int(t.bias_shape) << " softcap " << t.softcap << " dropout " << t.dropout_p
    << (t.randval ? " randval" : "") << " qscale " << scales[int(t.qscale)] << " scale " << scale_of(t);
  return s.str();
}

Errors run(const fmha::FwdEngine& engine, Dtype dtype, const FwdCase& t, void* scratch, unsigned seed) {
  std::mt19937 random(seed);
  const Arrays a(t, dtype, random, seed % 2 ? Flush::start : Flush::end);
  const fmha::FwdProblem problem = problem_of(t, dtype, a);
  // NaN: nothing may depend on what was there, but on blocks that an earlier tile of the call packed. Some calls forget these too.
  const bool each = seed % 8 == 0;
  const auto begin = [&] {
    std::memset(scratch, 0xff, engine.scratch_bytes);
    std::memset(scratch, 0, sizeof(fmha::i64));
  };
  begin();
  for (int b = 0; b < t.batch; ++b) {
    for (int h = 0; h < t.nhead_q; ++h) {
      for (int row = 0; row < t.seqlen_q; row += engine.tile_q) {
        if (each) begin();
        engine.tile[int(dtype)](problem, unit_of(t, a, b, h, row), scratch);
      }
    }
  }

  const Values values{a.q.values(), a.k.values(), a.v.values()};
  Errors errors;
  double error2 = 0, reference2 = 0;
  size_t written = 0, written_lse = 0;
  for (int b = 0; b < t.batch; ++b) {
    for (int h = 0; h < t.nhead_q; ++h) {
      for (int i = 0; i < a.q_seq.length[b]; ++i) {
        const Reference r = reference(t, a, values, b, h, i);
        const i64 at = a.at_batch(t, a.ol, a.q_seq, b) + h * a.ol.head + i * a.ol.row;
        for (int d = 0; d < t.hdim_v; ++d) {
          const double got = a.out.get(at + d), error = got - r.out[d];
          if (!(std::abs(got) < INFINITY)) errors.broken = "out is not finite";
          if (r.magnitude[d] == 0 ? got != 0 : false) errors.broken = "out of a row without keys is not 0";
          const double beyond = std::abs(error) - absolute_error(a.out.kind);
          if (r.magnitude[d] > 0) errors.element = std::max(errors.element, beyond / r.magnitude[d]);
          error2 += error * error;
          reference2 += r.out[d] * r.out[d];
          ++written;
        }
        if (!t.lse) continue;
        const i64 lse_at = (t.group ? a.q_seq.start[b] : i64(b) * a.q_seq.rows * t.nhead_q) + h * a.q_seq.rows + i;
        const double lse = a.lse.get(lse_at);
        ++written_lse;
        if (r.lse == -INFINITY || !(std::abs(lse) < INFINITY)) {
          if (lse != r.lse) errors.broken = "lse of a row without keys is not -inf, or of another is";
        } else {
          errors.lse = std::max(errors.lse, std::abs(lse - r.lse));
        }
      }
    }
  }
  errors.rms = reference2 > 0 ? std::sqrt(error2 / reference2) : std::sqrt(error2);

  size_t touched = 0, touched_lse = 0;
  for (size_t i = 0; i < a.out.size; ++i) touched += !a.out.poisoned(i);
  for (size_t i = 0; i < a.lse.size; ++i) touched_lse += !a.lse.poisoned(i);
  if (touched != written || touched_lse != written_lse) errors.broken = "a write outside the rows of out or lse";
  check_randval(t, a, errors);
  return errors;
}

}  // namespace tilekiln::test
