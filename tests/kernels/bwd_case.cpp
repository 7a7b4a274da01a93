// SPDX-License-Identifier: MIT
#include "bwd_case.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

namespace tilekiln::test {
namespace {

constexpr int kPadding = 3;  // rows after a sequence in group mode

struct Arrays {
  Sequences q_seq, k_seq;
  Tensor q, k, v, out, dout, lse, delta, dq, dk, dv;
  Guarded bias, dbias, slopes, sink, randval, dq_acc, dk_acc, dv_acc, locks, begun;
  i64 bias_batch, bias_head, dbias_row, split;

  Arrays(const BwdCase& t, Dtype dtype, std::mt19937& random, Flush flush)
      : q_seq(sequences(t, t.seqlen_q, kPadding, random)),
        k_seq(sequences(t, t.seqlen_k, kPadding, random)),
        q(t, input_kind(dtype), q_seq, t.nhead_q, t.hdim_q, flush),
        k(t, input_kind(dtype), k_seq, t.nhead_k, t.hdim_q, flush),
        v(t, input_kind(dtype), k_seq, t.nhead_k, t.hdim_v, flush),
        out(t, input_kind(dtype), q_seq, t.nhead_q, t.hdim_v, flush),
        dout(t, input_kind(dtype), q_seq, t.nhead_q, t.hdim_v, flush),
        lse(t, Kind::fp32, q_seq, t.nhead_q, 1, flush),
        delta(t, Kind::fp32, q_seq, t.nhead_q, 1, flush),
        dq(t, input_kind(dtype), q_seq, t.nhead_q, t.hdim_q + kRowPad, flush),
        dk(t, input_kind(dtype), k_seq, t.nhead_k, t.hdim_q + kRowPad, flush),
        dv(t, input_kind(dtype), k_seq, t.nhead_k, t.hdim_v + kRowPad, flush),
        bias(input_kind(dtype), i64(t.batch) * t.nhead_q * t.seqlen_q * t.seqlen_k, flush),
        dbias(input_kind(dtype), t.dbias ? i64(t.batch) * t.nhead_q * t.seqlen_q * (t.seqlen_k + kRowPad) : 0, flush),
        slopes(Kind::fp32, t.nhead_q, flush),
        sink(Kind::fp32, t.nhead_q, flush),
        randval(Kind::byte, t.randval ? i64(t.batch) * t.nhead_q * t.seqlen_q * (t.seqlen_k + kRowPad) : 0, flush),
        dq_acc(Kind::fp32, i64(t.nhead_q) * t.nsplits * t.seqlen_q * t.hdim_q, flush),
        dk_acc(Kind::fp32, i64(t.nhead_q) * t.seqlen_k * t.hdim_q, flush),
        dv_acc(Kind::fp32, i64(t.nhead_q) * t.seqlen_k * t.hdim_v, flush),
        locks(Kind::byte, t.nsplits * t.nhead_q * (t.seqlen_q / 64 + 1), flush),
        begun(Kind::byte, locks.size, flush) {
    std::normal_distribution<float> normal;
    fill({&q.data, &k.data, &v.data, &dout.data, &bias}, random, normal);
    for (size_t i = 0; t.bias_mean != 0 && i < bias.size; ++i) bias.set(i, normal(random) + t.bias_mean);
    if (t.bias_masks) {
      for (size_t i = 0; i < bias.size; ++i) {
        if (i % 3 == 0 || i / t.seqlen_k % 64 / 2 == 5) bias.set(i, -INFINITY);
      }
    }
    fill_heads(t, slopes, sink);
    if (sink.size > 1) sink.set(1, -INFINITY);
    for (Guarded* x :
         {&out.data, &lse.data, &delta.data, &dq.data, &dk.data, &dv.data, &dbias, &randval, &dk_acc, &dv_acc})
      x->poison();
    for (Tensor* x : {&q, &k, &v, &dout}) x->poison_padding();
    bias_head = t.bias_of_heads ? i64(t.seqlen_q) * t.seqlen_k : 0;
    bias_batch = t.bias_of_heads ? bias_head * t.nhead_q : 0;
    dbias_row = t.seqlen_k + kRowPad;
    split = i64(t.seqlen_q) * t.hdim_q;
  }
};

// The float64 answer for one query head of one sequence, (seqlen_q, seqlen_k) matrices row by row.
struct Reference {
  int sq, sk;
  std::vector<double> p, dropped, ds, ds_size;  // ds_size: what the terms of dS add up to in absolute values
  std::vector<double> lse, delta, delta_size;

  double& at(std::vector<double>& m, int i, int j) const { return m[size_t(i) * sk + j]; }
};

// Answers, and writes `out` and `lse` as the forward would have: D is that of the rounded `out`.
Reference reference(const BwdCase& t, Arrays& a, int b, int h) {
  Reference r;
  r.sq = a.q_seq.length[b], r.sk = a.k_seq.length[b];
  const int sq = r.sq, sk = r.sk, hk = h / (t.nhead_q / t.nhead_k);
  for (auto* m : {&r.p, &r.dropped, &r.ds, &r.ds_size}) m->assign(size_t(sq) * sk, 0);
  for (auto* m : {&r.lse, &r.delta, &r.delta_size}) m->assign(sq, 0);
  std::vector<double> dp(sk), dp_size(sk), out(t.hdim_v);
  for (int i = 0; i < sq; ++i) {
    out.assign(t.hdim_v, 0);
    const Query query{b, h, i, sq, sk, t.sink ? a.sink.get(h) : -INFINITY, a.slopes.get(h)};
    const auto product = [&](int j) {
      double x = 0;
      for (int d = 0; d < t.hdim_q; ++d) x += a.q.get(b, h, i, d) * a.k.get(b, hk, j, d);
      return x * scale_of(t);
    };
    const Scores scores = scores_of(t, query, product, [&](int j) {
      return a.bias.get(b * a.bias_batch + h * a.bias_head + i64(i) * t.seqlen_k + j);
    });
    r.lse[i] = scores.lse();
    for (int j = 0; j < sk; ++j) {
      const double p = scores.weight(j), keep = kept(t, query, j);
      r.at(r.p, i, j) = p, r.at(r.dropped, i, j) = p * keep;
      dp[j] = dp_size[j] = 0;
      if (p == 0) continue;
      for (int d = 0; d < t.hdim_v; ++d) {
        const double v = a.v.get(b, hk, j, d), x = a.dout.get(b, h, i, d) * v * keep;
        dp[j] += x, dp_size[j] += std::abs(x);
        out[d] += p * keep * v;
      }
    }
    a.lse.data.set(lse_at(t, a.q_seq, b, h, i), float(r.lse[i]));
    for (int d = 0; d < t.hdim_v; ++d) {
      a.out.data.set(a.out.at(b, h, i, d), float(out[d]));
      const double x = a.out.get(b, h, i, d) * a.dout.get(b, h, i, d);
      r.delta[i] += x, r.delta_size[i] += std::abs(x);
    }
    for (int j = 0; j < sk; ++j) {
      r.at(r.ds, i, j) = r.at(r.p, i, j) * (dp[j] - r.delta[i]) * scores.slope[j];
      r.at(r.ds_size, i, j) = r.at(r.p, i, j) * (dp_size[j] + r.delta_size[i]);
    }
  }
  return r;
}

// Gathers the error of a gradient over its elements.
class Comparison {
 public:
  void add(double value, double expected, double size, Kind kind) {
    const double error = value - expected;
    if (!(std::abs(error) < INFINITY)) ++broken_;
    const double beyond = std::max(0., std::abs(error) - absolute_error(kind));
    if (size > 0)
      worst_ = std::max(worst_, beyond / size);
    else if (value != 0)
      ++broken_;
    error2_ += error * error, expected2_ += expected * expected, size2_ += size * size;
    ++count_;
  }
  GradientError result(const char* name, std::string& broken) const {
    if (broken_ > 0) broken = std::string("NaN, or no exact zero, in ") + name;
    // Floor of the scale: with one visible key dP = D and the terms cancel altogether: then only their own size is a measure.
    const double scale2 = std::max(expected2_, 1e-3 * size2_);
    return {scale2 > 1e-20 ? std::sqrt(error2_ / scale2) : std::sqrt(error2_), worst_};
  }
  size_t count() const { return count_; }

 private:
  double error2_ = 0, expected2_ = 0, size2_ = 0, worst_ = 0;
  size_t count_ = 0;
  int broken_ = 0;
};

fmha::BwdProblem problem_of(const BwdCase& t, Dtype dtype, const Arrays& a) {
  fmha::BwdProblem p{};
  set_scores(p, t, a.bias, a.slopes, a.sink);
  p.features.dtype = dtype, p.features.group = t.group, p.features.dbias = t.dbias;
  p.features.store_randval = t.randval, p.features.deterministic = t.head_units;
  a.q.place(p.q, p.q_head, p.q_row);
  a.k.place(p.k, p.k_head, p.k_row);
  a.v.place(p.v, p.v_head, p.v_row);
  a.out.place(p.out, p.out_head, p.out_row);
  a.dout.place(p.dout, p.dout_head, p.dout_row);
  a.dq.place(p.dq, p.dq_head, p.dq_row);
  a.dk.place(p.dk, p.dk_head, p.dk_row);
  a.dv.place(p.dv, p.dv_head, p.dv_row);
  p.lse = static_cast<const float*>(a.lse.data.data()), p.delta = static_cast<float*>(a.delta.data.data());
  p.dbias = t.dbias ? a.dbias.data() : nullptr;
  p.randval = t.randval ? static_cast<unsigned char*>(a.randval.data()) : nullptr;
  p.lse_head = a.q_seq.rows;
  p.dbias_row = p.randval_row = a.dbias_row;
  p.dbias_head = p.randval_head = t.seqlen_q * a.dbias_row;
  p.bias_head = a.bias_head;
  return p;
}

// The marks of the tiles of dq_acc that hold a sum: [head][split][tile].
unsigned char* begun_of(const BwdCase& t, const Arrays& a, int head, int split) {
  return static_cast<unsigned char*>(a.begun.data()) + (i64(head) * t.nsplits + split) * (t.seqlen_q / 64 + 1);
}

fmha::BwdUnit unit_of(const BwdCase& t, const Arrays& a, int b, int head, int head_end, int number, bool marks) {
  fmha::BwdUnit u{};
  const int chunk = number * t.unit_keys / 256;
  u.batch = b, u.head = head, u.head_end = head_end, u.key = number * t.unit_keys;
  u.key_end = std::min(u.key + t.unit_keys, a.k_seq.length[b]);
  u.seqlen_q = a.q_seq.length[b], u.seqlen_k = a.k_seq.length[b];
  u.q_offset = a.q.offset(b), u.k_offset = a.k.offset(b), u.v_offset = a.v.offset(b), u.dout_offset = a.dout.offset(b);
  u.lse_offset = lse_at(t, a.q_seq, b, 0, 0);
  u.dk_offset = a.dk.offset(b), u.dv_offset = a.dv.offset(b);
  u.dbias_offset = u.randval_offset = i64(b) * t.nhead_q * t.seqlen_q * a.dbias_row;
  u.bias_offset = b * a.bias_batch;
  u.dq_acc_head = t.nsplits * a.split;
  u.dq_acc = static_cast<float*>(a.dq_acc.data()) + head * u.dq_acc_head + chunk % t.nsplits * a.split;
  u.dq_tiles_head = t.nsplits * (t.seqlen_q / 64 + 1);
  u.dq_begun = marks ? begun_of(t, a, head, chunk % t.nsplits) : nullptr;
  u.dq_locks = t.locks ? static_cast<unsigned char*>(a.locks.data()) + head * u.dq_tiles_head : nullptr;
  if (t.head_units) {
    u.dk_acc = static_cast<float*>(a.dk_acc.data()) + i64(head) * t.seqlen_k * t.hdim_q;
    u.dv_acc = static_cast<float*>(a.dv_acc.data()) + i64(head) * t.seqlen_k * t.hdim_v;
  }
  return u;
}

// Every stage for one sequence. Returns d_sink of each head. marks: dq_acc starts as NaN, and it is marked which tiles of it
// hold a sum; else it starts as 0.
std::vector<double> run_sequence(const fmha::BwdEngine& engine, Dtype dtype, const BwdCase& t, const Arrays& a,
                                 const fmha::BwdProblem& p, int b, void* scratch, bool marks) {
  const int sq = a.q_seq.length[b], sk = a.k_seq.length[b], group = t.nhead_q / t.nhead_k, kind = int(dtype);
  const auto rows_of = [&](int head, int row) {
    fmha::BwdRows u{};
    u.batch = b, u.head = head, u.row = row, u.row_end = std::min(row + 100, sq);
    u.out_offset = a.out.offset(b), u.dout_offset = a.dout.offset(b), u.dq_offset = a.dq.offset(b);
    u.lse_offset = lse_at(t, a.q_seq, b, 0, 0);
    u.dq_acc = static_cast<const float*>(a.dq_acc.data()) + head * t.nsplits * a.split;
    u.dq_acc_split = a.split, u.nsplits = t.nsplits;
    u.dq_begun = marks ? begun_of(t, a, head, 0) : nullptr, u.dq_begun_split = t.seqlen_q / 64 + 1;
    return u;
  };
  std::vector<double> d_sink(t.nhead_q, 0);
  for (int h = 0; h < t.nhead_q; ++h) {
    for (int row = 0; row < sq; row += 100) d_sink[h] += engine.dot_do_o[kind](p, rows_of(h, row));
  }
  std::memset(a.dq_acc.data(), marks ? 0xff : 0, a.dq_acc.size * 4);
  std::memset(a.begun.data(), 0, a.begun.size);
  std::memset(a.locks.data(), 0, a.locks.size);
  const int units = (sk + t.unit_keys - 1) / t.unit_keys, step = t.head_units ? 1 : group;
  for (int h = 0; h < t.nhead_q; h += step) {
    for (int i = 0; i < units; ++i) {
      fmha::BwdUnit unit = unit_of(t, a, b, h, h + step, i, marks);
      const fmha::BwdUnit next = unit_of(t, a, b, h, h + step, i + 1 < units ? i + 1 : 0, marks);
      unit.next = marks ? &next : nullptr;
      engine.chunk[kind](p, unit, scratch);
    }
  }
  for (int h = 0; t.head_units && h < t.nhead_k; ++h) {
    const auto sum = [&](const Tensor& to, const Guarded& from, int width) {
      const i64 head = i64(t.seqlen_k) * width;
      engine.sum_heads[kind](static_cast<char*>(to.data.data()) + to.at(b, h, 0, 0) * i64(bytes_of(to.data.kind)),
                             to.row, static_cast<const float*>(from.data()) + h * group * head, head, group, sk, width);
    };
    if (sk == 0) continue;
    sum(a.dk, a.dk_acc, t.hdim_q);
    sum(a.dv, a.dv_acc, t.hdim_v);
  }
  for (int h = 0; h < t.nhead_q; ++h) {
    for (int row = 0; row < sq; row += 100) engine.convert_dq[kind](p, rows_of(h, row));
  }
  return d_sink;
}

// Every gradient, bit for bit.
std::string bits(const Arrays& a) {
  std::string all;
  for (const Guarded* x : {&a.dq.data, &a.dk.data, &a.dv.data, &a.delta.data, &a.dbias})
    all.append(static_cast<const char*>(x->data()), x->size * bytes_of(x->kind));
  return all;
}

}  // namespace

std::string describe(const BwdCase& t, Dtype dtype) {
  static const char* const dtypes[] = {"fp32", "fp16", "bf16"};
  std::ostringstream s;
  s << dtypes[int(dtype)] << ' ' << describe(t) << (t.dbias ? " dbias" : "") << (t.head_units ? " head_units" : "")
    << " unit_keys " << t.unit_keys << " nsplits " << t.nsplits;
  return s.str();
}

BwdErrors run(const fmha::BwdEngine& engine, Dtype dtype, const BwdCase& t, Guarded& scratch, unsigned seed) {
  std::mt19937 random(seed);
  Arrays a(t, dtype, random, seed % 2 ? Flush::start : Flush::end);
  const fmha::BwdProblem p = problem_of(t, dtype, a);
  const Kind kind = input_kind(dtype);
  BwdErrors errors;
  Comparison dq, dk, dv, dbias, delta, sinks;
  for (int b = 0; b < t.batch; ++b) {
    const int sq = a.q_seq.length[b], sk = a.k_seq.length[b], group = t.nhead_q / t.nhead_k;
    std::vector<Reference> heads;
    for (int h = 0; h < t.nhead_q; ++h) heads.push_back(reference(t, a, b, h));
    const std::vector<double> d_sink = run_sequence(engine, dtype, t, a, p, b, scratch.data(), false);
    const std::string first = bits(a);
    scratch.poison();
    if (run_sequence(engine, dtype, t, a, p, b, scratch.data(), true) != d_sink || bits(a) != first)
      errors.broken = "a second run gives other bits";

    for (int h = 0; h < t.nhead_q; ++h) {
      Reference& r = heads[h];
      const int hk = h / group;
      double expected = 0, size = 0;
      for (int i = 0; i < sq; ++i) {
        delta.add(a.delta.data.get(lse_at(t, a.q_seq, b, h, i)), r.delta[i], r.delta_size[i], Kind::fp32);
        if (t.sink && a.sink.get(h) > -INFINITY) {
          expected -= std::exp(a.sink.get(h) - r.lse[i]) * r.delta[i];
          size += std::exp(a.sink.get(h) - r.lse[i]) * r.delta_size[i];
        }
        for (int d = 0; d < t.hdim_q; ++d) {
          double x = 0, terms = 0;
          for (int j = 0; j < sk; ++j) {
            x += r.at(r.ds, i, j) * a.k.get(b, hk, j, d);
            terms += r.at(r.ds_size, i, j) * std::abs(a.k.get(b, hk, j, d));
          }
          dq.add(a.dq.get(b, h, i, d), scale_of(t) * x, std::abs(scale_of(t)) * terms, kind);
        }
        for (int j = 0; t.dbias && j < sk; ++j)
          dbias.add(a.dbias.get(((i64(b) * t.nhead_q + h) * t.seqlen_q + i) * a.dbias_row + j), r.at(r.ds, i, j),
                    r.at(r.ds_size, i, j), kind);
      }
      sinks.add(d_sink[h], expected, size, Kind::fp32);
    }
    for (int hk = 0; hk < t.nhead_k; ++hk) {
      for (int j = 0; j < sk; ++j) {
        for (int d = 0; d < std::max(t.hdim_q, t.hdim_v); ++d) {
          double x = 0, x_terms = 0, y = 0, y_terms = 0;
          for (int h = hk * group; h < (hk + 1) * group; ++h) {
            Reference& r = heads[h];
            for (int i = 0; i < sq; ++i) {
              if (r.at(r.p, i, j) == 0) continue;
              if (d < t.hdim_q) {
                const double q = a.q.get(b, h, i, d);
                x += r.at(r.ds, i, j) * q, x_terms += r.at(r.ds_size, i, j) * std::abs(q);
              }
              if (d < t.hdim_v) {
                const double z = r.at(r.dropped, i, j) * a.dout.get(b, h, i, d);
                y += z, y_terms += std::abs(z);
              }
            }
          }
          if (d < t.hdim_q) dk.add(a.dk.get(b, hk, j, d), scale_of(t) * x, std::abs(scale_of(t)) * x_terms, kind);
          if (d < t.hdim_v) dv.add(a.dv.get(b, hk, j, d), y, y_terms, kind);
        }
      }
    }
  }

  errors.dq = dq.result("dq", errors.broken);
  errors.dk = dk.result("dk", errors.broken);
  errors.dv = dv.result("dv", errors.broken);
  errors.dbias = dbias.result("dbias", errors.broken);
  errors.delta = delta.result("delta", errors.broken);
  errors.d_sink = sinks.result("d_sink", errors.broken);
  if (touched(a.dq.data) != dq.count() || touched(a.dk.data) != dk.count() || touched(a.dv.data) != dv.count() ||
      touched(a.dbias) != dbias.count() || touched(a.delta.data) != delta.count())
    errors.broken = "a write outside the rows of a gradient, or none inside";
  if (const std::string wrong = wrong_bytes(t, a.q_seq, a.k_seq, a.randval); !wrong.empty()) errors.broken = wrong;
  return errors;
}

}  // namespace tilekiln::test
