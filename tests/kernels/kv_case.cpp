// SPDX-License-Identifier: MIT
#include "kv_case.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

namespace tilekiln::test {
namespace {

struct Kinds { Kind q, kv, out, bias; };
Kinds kinds_of(KvDtype dtype) {
  switch (dtype) {
    case KvDtype::fp32: return {Kind::fp32, Kind::fp32, Kind::fp32, Kind::fp32};
    case KvDtype::fp16: return {Kind::fp16, Kind::fp16, Kind::fp16, Kind::fp16};
    case KvDtype::bf16: return {Kind::bf16, Kind::bf16, Kind::bf16, Kind::bf16};
    case KvDtype::fp8: return {Kind::fp8, Kind::fp8, Kind::fp8, Kind::fp32};
    case KvDtype::fp8bf16: return {Kind::fp8, Kind::fp8, Kind::bf16, Kind::bf16};
    case KvDtype::bf16_fp8: return {Kind::bf16, Kind::fp8, Kind::bf16, Kind::bf16};
    case KvDtype::bf16_bf8: return {Kind::bf16, Kind::bf8, Kind::bf16, Kind::bf16};
  }
  std::abort();
}

float lowest_of(Kind kind) {
  return kind == Kind::fp16 ? -65504.f : kind == Kind::bf16 ? -0x1.fep127f : -0x1.fffffep127f;
}

// The place of an element in a cache of each layout. The arithmetic is the border's, written down once more without its code.
struct Place {
  Cache cache;
  int page_size, heads, capacity, width, vec;
  bool is_value;

  i64 row() const {
    return cache == Cache::dense ? i64(heads) * width : cache == Cache::linear ? i64(heads) * width : 0;
  }
  i64 head() const { return cache == Cache::vectorized ? i64(page_size) * width : width; }
  i64 page() const { return i64(page_size) * heads * width; }
  i64 chunk() const { return i64(vec) * (is_value ? width : page_size); }

  i64 at(const std::vector<int>& table, int b, int h, i64 place, int d) const {
    if (cache == Cache::dense) return ((i64(b) * capacity + place) * heads + h) * width + d;
    const i64 base = i64(table[place / page_size]) * page(), t = place % page_size;
    if (cache == Cache::linear) return base + (t * heads + h) * width + d;
    const i64 inside =
        is_value ? (t / vec * width + d) * vec + t % vec : (i64(d / vec) * page_size + t) * vec + d % vec;
    return base + h * head() + inside;
  }
};

struct Arrays {
  Kinds kinds;
  std::vector<int> q_length, k_length;
  int capacity, table_width, pages;
  std::vector<std::vector<int>> tables;
  Place kp, vp;
  std::vector<float> k_rows, v_rows;  // [batch][nhead_k][seqlen_k][hdim], as stored
  Guarded q, k, v, out, lse, o_acc, lse_acc, bias, slopes, sink, table, descales, k_scales, v_scales;

  static int pages_of(const KvCase& t) { return (t.leftpad + t.seqlen_k + t.page_size - 1) / t.page_size; }
  static i64 cache_size(const KvCase& t, int width) {
    const i64 rows = t.cache == Cache::dense ? i64(t.batch) * (t.leftpad + t.seqlen_k)
                                             : i64(t.batch * pages_of(t) + 2) * t.page_size;
    return rows * t.nhead_k * width;
  }
  static i64 rows_of(const KvCase& t) { return i64(t.batch) * t.nhead_q * t.seqlen_q; }

  Arrays(const KvCase& t, KvDtype dtype, std::mt19937& random, Flush flush)
      : kinds(kinds_of(dtype)),
        capacity(t.leftpad + t.seqlen_k),
        table_width(pages_of(t)),
        pages(t.batch * table_width + 2),
        kp{t.cache, t.page_size, t.nhead_k, capacity, t.hdim_q, 16 / int(bytes_of(kinds.kv)), false},
        vp{t.cache, t.page_size, t.nhead_k, capacity, t.hdim_v, 16 / int(bytes_of(kinds.kv)), true},
        q(kinds.q, rows_of(t) * t.hdim_q, flush),
        k(kinds.kv, cache_size(t, t.hdim_q), flush),
        v(kinds.kv, cache_size(t, t.hdim_v), flush),
        out(kinds.out, rows_of(t) * (t.hdim_v + kRowPad), flush),
        lse(Kind::fp32, rows_of(t), flush),
        o_acc(Kind::fp32, rows_of(t) * t.splits * t.hdim_v, flush),
        lse_acc(Kind::fp32, rows_of(t) * t.splits, flush),
        bias(kinds.bias, i64(t.nhead_q) * t.seqlen_q * t.seqlen_k, flush),
        slopes(Kind::fp32, t.nhead_q, flush),
        sink(Kind::fp32, t.nhead_q, flush),
        table(Kind::fp32, t.cache == Cache::dense ? 0 : t.batch * table_width, flush),
        descales(Kind::fp32, 3, flush),
        k_scales(Kind::fp32, i64(pages) * t.nhead_k, flush),
        v_scales(Kind::fp32, i64(pages) * t.nhead_k, flush) {
    k_rows.resize(i64(t.batch) * t.nhead_k * t.seqlen_k * t.hdim_q);
    v_rows.resize(i64(t.batch) * t.nhead_k * t.seqlen_k * t.hdim_v);
    std::normal_distribution<float> normal;
    std::uniform_real_distribution<float> scale(0.5f, 2.f);
    for (int b = 0; b < t.batch; ++b) {
      q_length.push_back(t.full_lengths ? t.seqlen_q : t.seqlen_q - int(random() % ((t.seqlen_q + 1) / 2)));
      k_length.push_back(t.full_lengths ? t.seqlen_k : int(random() % (t.seqlen_k + 1)));
    }
    std::vector<int> order(pages);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random);
    for (Guarded* x : {&out, &lse, &o_acc, &lse_acc, &k, &v}) x->poison();
    fill({&q, &bias}, random, normal);
    for (size_t i = 0; t.lowest_bias && i < bias.size; ++i) {
      if (i / t.seqlen_k % 2 == 1) bias.set(i, lowest_of(bias.kind));
    }
    fill({&descales, &k_scales, &v_scales}, random, scale);
    fill_heads(t, slopes, sink);
    for (int b = 0; b < t.batch; ++b) {
      tables.emplace_back(order.begin() + b * table_width, order.begin() + (b + 1) * table_width);
      for (int i = 0; i < table_width && t.cache != Cache::dense; ++i) {
        // Beyond the pages that hold keys an index means nothing: nobody may follow it.
        const bool used = i * t.page_size < t.leftpad + k_length[b];
        const int entry = used ? tables[b][i] : 0x7ffffff0;
        std::memcpy(static_cast<char*>(table.data()) + 4 * (b * table_width + i), &entry, 4);
      }
      for (int j = 0; j < k_length[b]; ++j) {
        for (int h = 0; h < t.nhead_k; ++h) {
          const i64 row = (i64(b) * t.nhead_k + h) * t.seqlen_k + j;
          for (int d = 0; d < t.hdim_q; ++d)
            k_rows[row * t.hdim_q + d] = put(k, kp.at(tables[b], b, h, t.leftpad + j, d), normal(random));
          for (int d = 0; d < t.hdim_v; ++d)
            v_rows[row * t.hdim_v + d] = put(v, vp.at(tables[b], b, h, t.leftpad + j, d), normal(random));
        }
      }
    }
  }

  static float put(Guarded& x, i64 at, float value) {
    x.set(at, value);
    return float(x.get(at));
  }
};

fmha::KvProblem problem_of(const KvCase& t, KvDtype dtype, const Arrays& a) {
  fmha::KvProblem p{};
  set_scores(p, t, a.bias, a.slopes, a.sink);
  p.features.qscale = t.descales ? Qscale::pertensor : Qscale::none;
  p.features.lse = t.lse || t.splits > 0;
  p.q = a.q.data(), p.k = a.k.data(), p.v = a.v.data();
  p.q_head = t.hdim_q, p.q_row = i64(t.nhead_q) * t.hdim_q;
  p.k_head = a.kp.head(), p.k_row = a.kp.row();
  p.v_head = a.vp.head(), p.v_row = a.vp.row();
  if (t.splits > 0) {
    p.out = a.o_acc.data(), p.lse = static_cast<float*>(a.lse_acc.data());
    p.lse_head = i64(t.splits) * t.seqlen_q;
    p.out_row = t.hdim_v, p.out_head = p.lse_head * t.hdim_v;
  } else {
    p.out = a.out.data(), p.lse = t.lse ? static_cast<float*>(a.lse.data()) : nullptr;
    p.out_row = t.hdim_v + kRowPad, p.out_head = t.seqlen_q * p.out_row;
    p.lse_head = t.seqlen_q;
  }
  p.bias_head = i64(t.seqlen_q) * t.seqlen_k;
  if (t.descales) {
    const float* d = static_cast<float*>(a.descales.data());
    p.q_descale = d;
    if (!t.page_scales) p.k_descale = d + 1, p.v_descale = d + 2;
  }
  p.dtype = dtype;
  p.pages = {t.cache == Cache::dense ? nullptr : static_cast<const int*>(a.table.data()),
             t.cache == Cache::dense ? 0 : t.page_size,
             t.cache == Cache::vectorized ? fmha::KvLayout::vectorized : fmha::KvLayout::linear,
             a.kp.page(),
             a.vp.page(),
             a.kp.chunk(),
             a.vp.chunk()};
  p.out_scale = t.splits > 0 ? 1.f : t.out_scale;
  if (t.page_scales) {
    p.k_page_scale = static_cast<float*>(a.k_scales.data()), p.v_page_scale = static_cast<float*>(a.v_scales.data());
    p.page_scale_page = t.nhead_k, p.page_scale_head = 1;
  }
  return p;
}

void run_units(const fmha::KvEngine& engine, KvDtype dtype, const KvCase& t, const Arrays& a, void* scratch) {
  const fmha::KvProblem problem = problem_of(t, dtype, a);
  std::memset(scratch, 0, sizeof(fmha::i64));  // a call begins
  const auto unit = t.splits > 0 ? engine.split[int(dtype)] : engine.tile[int(dtype)];
  // Every other case whose units may have all heads.
  const bool side_by_side = t.cache == Cache::vectorized || (problem.k_head == t.hdim_q && problem.v_head == t.hdim_v);
  const bool all =
      side_by_side && t.seqlen_q == 1 && t.nhead_k > 1 && t.nhead_q <= engine.all_heads && a.k_length[0] % 2 == 0;
  const int group = all ? t.nhead_q : t.nhead_q / t.nhead_k;
  const int heads = all ? group : engine.tile_q == 64 ? 1 : std::min(group, engine.tile_q);
  const int rows = all ? 1 : engine.tile_q / heads;
  for (int b = 0; b < t.batch; ++b) {
    for (int split = 0; split < std::max(t.splits, 1); ++split) {
      for (int head = 0; head < t.nhead_q; head += std::min(heads, group - head % group)) {
        for (int row = 0; row < a.q_length[b]; row += rows) {
          fmha::KvUnit u{};
          u.batch = b, u.head = head, u.row = row, u.seqlen_q = a.q_length[b], u.seqlen_k = a.k_length[b];
          u.heads = std::min(heads, group - head % group);
          u.rows = std::min(rows, a.q_length[b] - row);
          u.q_offset = i64(b) * t.seqlen_q * problem.q_row;
          if (t.cache == Cache::dense) {
            u.k_offset = i64(b) * a.capacity * problem.k_row;
            u.v_offset = i64(b) * a.capacity * problem.v_row;
          }
          u.out_offset = b * t.nhead_q * problem.out_head + split * i64(t.seqlen_q) * t.hdim_v * (t.splits > 0);
          u.lse_offset = b * t.nhead_q * problem.lse_head + split * t.seqlen_q * (t.splits > 0);
          const int per = t.splits > 0 ? std::max(1, (u.seqlen_k + t.splits - 1) / t.splits) : u.seqlen_k;
          u.key_begin = std::min(split * per, u.seqlen_k);
          u.key_end = std::min(u.key_begin + per, u.seqlen_k);
          u.first_split = split == 0;
          u.pages_offset = b * a.table_width;
          u.first_key = t.leftpad;
          unit(problem, u, scratch);
        }
      }
    }
  }
}

void run_combine(const fmha::KvEngine& rows, KvDtype dtype, const KvCase& t, const Arrays& a) {
  fmha::CombineProblem p{};
  p.dtype = dtype, p.nsplits = t.splits, p.hdim_v = t.hdim_v;
  p.o_acc = static_cast<const float*>(a.o_acc.data()), p.lse_acc = static_cast<const float*>(a.lse_acc.data());
  p.o_acc_row = t.hdim_v, p.o_acc_split = i64(t.seqlen_q) * t.hdim_v, p.o_acc_head = t.splits * p.o_acc_split;
  p.lse_acc_split = t.seqlen_q, p.lse_acc_head = i64(t.splits) * t.seqlen_q;
  p.out = a.out.data(), p.out_row = t.hdim_v + kRowPad, p.out_head = t.seqlen_q * p.out_row;
  p.lse = t.lse ? static_cast<float*>(a.lse.data()) : nullptr, p.lse_head = t.seqlen_q;
  p.out_scale = t.out_scale;
  for (int b = 0; b < t.batch; ++b) {
    for (int h = 0; h < t.nhead_q; ++h) {
      const int middle = a.q_length[b] / 2;
      for (const auto& [begin, end] : {std::pair{0, middle}, {middle, a.q_length[b]}}) {
        rows.combine[int(dtype)](p, {h, begin, end, b * t.nhead_q * p.o_acc_head, b * t.nhead_q * p.lse_acc_head,
                                     b * t.nhead_q * p.out_head, b * t.nhead_q * p.lse_head});
      }
    }
  }
}

Answer reference(const KvCase& t, const Arrays& a, int b, int h, int i) {
  const int head_k = h / (t.nhead_q / t.nhead_k);
  const auto scale = [&](const Guarded& pages, int which, int j) {
    if (t.page_scales) return pages.get(i64(a.tables[b][j / t.page_size]) * t.nhead_k + head_k);
    return t.descales ? a.descales.get(which) : 1.0;
  };
  const i64 first = (i64(b) * t.nhead_k + head_k) * t.seqlen_k;
  std::vector<double> q(t.hdim_q);
  for (int d = 0; d < t.hdim_q; ++d) q[d] = a.q.get(((i64(b) * t.seqlen_q + i) * t.nhead_q + h) * t.hdim_q + d);
  const double sink = t.sink ? a.sink.get(h) : -INFINITY;
  const Query query{b, h, i, a.q_length[b], a.k_length[b], sink, a.slopes.get(h)};
  const auto product = [&](int j) {
    double x = 0;
    for (int d = 0; d < t.hdim_q; ++d) x += q[d] * a.k_rows[(first + j) * t.hdim_q + d];
    return x * (double(scale_of(t)) * (t.descales ? a.descales.get(0) : 1.0) * scale(a.k_scales, 1, j));
  };
  const auto bias = [&](int j) { return a.bias.get((i64(h) * t.seqlen_q + i) * t.seqlen_k + j); };
  return answer_of(
      t, query, scores_of(t, query, product, bias), [&](int j) { return &a.v_rows[(first + j) * t.hdim_v]; },
      [&](int j) { return scale(a.v_scales, 2, j) * t.out_scale; });
}

// Splits without a key hold zeros and -inf; the sink logit is in split 0 and nowhere else.
void check_splits(const KvCase& t, const Arrays& a, Errors& errors) {
  for (int b = 0; b < t.batch; ++b) {
    const int per = std::max(1, (a.k_length[b] + t.splits - 1) / t.splits);
    for (int split = 0; split < t.splits; ++split) {
      if (split * per < a.k_length[b]) continue;
      for (int h = 0; h < t.nhead_q; ++h) {
        for (int i = 0; i < a.q_length[b]; ++i) {
          const i64 at = ((i64(b) * t.nhead_q + h) * t.splits + split) * t.seqlen_q + i;
          const double expected = t.sink && split == 0 ? a.sink.get(h) : -INFINITY, lse = a.lse_acc.get(at);
          if (lse != expected && !(std::abs(lse - expected) < 1e-5)) errors.broken = "lse of an empty split";
          for (int d = 0; d < t.hdim_v; ++d) {
            if (a.o_acc.get(at * t.hdim_v + d) != 0) errors.broken = "output of an empty split is not 0";
          }
        }
      }
    }
  }
}

}  // namespace

const char* name_of(KvDtype dtype) {
  static const char* const names[] = {"fp32", "fp16", "bf16", "fp8", "fp8bf16", "bf16_fp8", "bf16_bf8"};
  return names[int(dtype)];
}

std::string describe(const KvCase& t, KvDtype dtype) {
  static const char* const caches[] = {"dense", "linear pages of ", "vectorized pages of "};
  std::ostringstream s;
  s << name_of(dtype) << ' ' << describe(t) << ' ' << caches[int(t.cache)];
  if (t.cache != Cache::dense) s << t.page_size;
  s << " leftpad " << t.leftpad << " splits " << t.splits << (t.descales ? " descales" : "")
    << (t.page_scales ? " page scales" : "");
  return s.str();
}

Errors run(const fmha::KvEngine& engine, const fmha::KvEngine& rows, KvDtype dtype, const KvCase& t, void* scratch,
           unsigned seed) {
  std::mt19937 random(seed);
  const Arrays a(t, dtype, random, seed % 2 ? Flush::start : Flush::end);
  run_units(engine, dtype, t, a, scratch);
  Errors splits;
  if (t.splits > 0) {
    check_splits(t, a, splits);
    run_combine(rows, dtype, t, a);
  }

  Gathered gathered(a.out, a.lse, t.lse);
  for (int b = 0; b < t.batch; ++b) {
    for (int h = 0; h < t.nhead_q; ++h) {
      for (int i = 0; i < a.q_length[b]; ++i) {
        const i64 row = (i64(b) * t.nhead_q + h) * t.seqlen_q + i;
        gathered.add(reference(t, a, b, h, i), row * (t.hdim_v + kRowPad), row);
      }
    }
  }
  Errors errors = gathered.result();
  if (errors.broken.empty()) errors.broken = splits.broken;
  return errors;
}

}  // namespace tilekiln::test
