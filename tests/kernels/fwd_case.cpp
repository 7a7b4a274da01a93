// SPDX-License-Identifier: MIT
#include "fwd_case.h"

#include <cmath>
#include <cstring>
#include <random>

namespace tilekiln::test {
namespace {

Kind output_kind(Dtype dtype) {
  if (dtype == Dtype::fp8bf16) return Kind::bf16;
  return dtype == Dtype::fp8fp32 ? Kind::fp32 : input_kind(dtype);
}

constexpr int kScaleBlock = 128;

struct Arrays {
  Sequences q_seq, k_seq;
  Tensor q, k, v, out;
  Guarded lse, bias, slopes, sink, randval, q_descale, k_descale, v_descale;
  i64 bias_batch, bias_head;
  int q_blocks, k_blocks;

  Arrays(const FwdCase& t, Dtype dtype, std::mt19937& random, Flush flush)
      : q_seq(sequences(t, t.seqlen_q, 2, random)),
        k_seq(sequences(t, t.seqlen_k, 3, random)),
        q(t, input_kind(dtype), q_seq, t.nhead_q, t.hdim_q, flush),
        k(t, input_kind(dtype), k_seq, t.nhead_k, t.hdim_q, flush),
        v(t, input_kind(dtype), k_seq, t.nhead_k, t.hdim_v, flush),
        out(t, output_kind(dtype), q_seq, t.nhead_q, t.hdim_v + kRowPad, flush),
        lse(Kind::fp32, (t.group ? 1 : t.batch) * q_seq.rows * t.nhead_q, flush),
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
    fill({&q.data, &k.data, &v.data, &bias}, random, normal);
    fill_heads(t, slopes, sink);
    std::uniform_real_distribution<float> descale(0.5f, 2.f);
    fill({&q_descale, &k_descale, &v_descale}, random, descale);
    for (Guarded* x : {&out.data, &lse, &randval}) x->poison();
    k.poison_padding();
    v.poison_padding();
    const i64 plane = i64(t.seqlen_q) * t.seqlen_k;
    bias_head = t.bias_shape == BiasShape::one ? 0 : plane;
    bias_batch = t.bias_shape == BiasShape::batch_heads ? plane * t.nhead_q : 0;
  }
};

fmha::FwdProblem problem_of(const FwdCase& t, Dtype dtype, const Arrays& a) {
  fmha::FwdProblem p{};
  set_scores(p, t, a.bias, a.slopes, a.sink);
  p.features.dtype = dtype, p.features.qscale = t.qscale, p.features.group = t.group, p.features.lse = t.lse;
  a.q.place(p.q, p.q_head, p.q_row);
  a.k.place(p.k, p.k_head, p.k_row);
  a.v.place(p.v, p.v_head, p.v_row);
  a.out.place(p.out, p.out_head, p.out_row);
  p.lse = t.lse ? static_cast<float*>(a.lse.data()) : nullptr;
  p.lse_head = a.q_seq.rows;
  p.randval = t.randval ? static_cast<unsigned char*>(a.randval.data()) : nullptr;
  p.randval_row = t.seqlen_k + kRowPad;
  p.randval_head = t.seqlen_q * p.randval_row;
  p.bias_head = a.bias_head;
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
  u.q_offset = a.q.offset(b);
  u.k_offset = a.k.offset(b);
  u.v_offset = a.v.offset(b);
  u.out_offset = a.out.offset(b);
  u.lse_offset = lse_at(t, a.q_seq, b, 0, 0);
  u.randval_offset = i64(b) * t.nhead_q * t.seqlen_q * (t.seqlen_k + kRowPad);
  u.bias_offset = b * a.bias_batch;
  u.alibi_offset = t.bias_shape == BiasShape::batch_heads ? i64(b) * t.nhead_q : 0;
  u.q_descale_offset = i64(b) * t.nhead_q * a.q_blocks;
  u.k_descale_offset = u.v_descale_offset = i64(b) * t.nhead_k * a.k_blocks;
  return u;
}

// Q, K and V as numbers.
struct Values { std::vector<double> q, k, v; };

Answer reference(const FwdCase& t, const Arrays& a, const Values& values, int b, int h, int i) {
  const int head_k = h / (t.nhead_q / t.nhead_k);
  const auto k_scale = [&](const Guarded& x, int j) {
    if (t.qscale == Qscale::none) return 1.0;
    return t.qscale == Qscale::pertensor ? x.get(0)
                                         : x.get((i64(b) * t.nhead_k + head_k) * a.k_blocks + j / kScaleBlock);
  };
  double q_scale = 1;
  if (t.qscale == Qscale::pertensor) q_scale = a.q_descale.get(0);
  if (t.qscale == Qscale::blockscale)
    q_scale = a.q_descale.get((i64(b) * t.nhead_q + h) * a.q_blocks + i / kScaleBlock);
  const Query query{b,
                    h,
                    i,
                    a.q_seq.length[b],
                    a.k_seq.length[b],
                    t.sink ? a.sink.get(h) : -INFINITY,
                    a.slopes.get(t.bias_shape == BiasShape::batch_heads ? b * t.nhead_q + h : h)};
  const auto product = [&](int j) {
    double x = 0;
    const double *q = &values.q[a.q.at(b, h, i, 0)], *k = &values.k[a.k.at(b, head_k, j, 0)];
    for (int d = 0; d < t.hdim_q; ++d) x += q[d] * k[d];
    return x * (double(scale_of(t)) * q_scale * k_scale(a.k_descale, j));
  };
  const auto bias = [&](int j) { return a.bias.get(b * a.bias_batch + h * a.bias_head + i64(i) * t.seqlen_k + j); };
  return answer_of(
      t, query, scores_of(t, query, product, bias), [&](int j) { return &values.v[a.v.at(b, head_k, j, 0)]; },
      [&](int j) { return k_scale(a.v_descale, j); });
}

}  // namespace

std::string describe(const FwdCase& t, Dtype dtype) {
  static const char* const dtypes[] = {"fp32", "fp16", "bf16", "fp8bf16", "fp8fp32"};
  static const char* const scales[] = {"none", "pertensor", "blockscale"};
  std::ostringstream s;
  s << dtypes[int(dtype)] << ' ' << describe(t) << " shape " << int(t.bias_shape) << " qscale "
    << scales[int(t.qscale)];
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

  const Values values{a.q.data.values(), a.k.data.values(), a.v.data.values()};
  Gathered gathered(a.out.data, a.lse, t.lse);
  for (int b = 0; b < t.batch; ++b) {
    for (int h = 0; h < t.nhead_q; ++h) {
      for (int i = 0; i < a.q_seq.length[b]; ++i)
        gathered.add(reference(t, a, values, b, h, i), a.out.at(b, h, i, 0), lse_at(t, a.q_seq, b, h, i));
    }
  }
  Errors errors = gathered.result();
  if (const std::string wrong = wrong_bytes(t, a.q_seq, a.k_seq, a.randval); !wrong.empty()) errors.broken = wrong;
  return errors;
}

}  // namespace tilekiln::test
