// SPDX-License-Identifier: MIT
#include "attention_case.h"

#include <algorithm>

#include "kernels/backends/philox.h"

namespace tilekiln::test {

Sequences sequences(const AttentionCase& t, int seqlen, int padding, std::mt19937& random) {
  Sequences s{std::vector<int>(t.batch, seqlen), std::vector<i64>(t.batch, 0), seqlen, 0};
  if (!t.group) return s;
  s.rows = 0, s.padding = padding;
  for (int b = 0; b < t.batch; ++b) {
    s.length[b] = int(random() % (seqlen + 1));
    s.start[b] = s.rows;
    s.rows += s.length[b] + padding;
  }
  return s;
}

Tensor::Tensor(const AttentionCase& t, Kind kind, const Sequences& s, int heads, int columns, Flush flush)
    : sequences(s),
      group(t.group),
      nhead(heads),
      width(columns),
      batch(s.rows * heads * columns),
      head(t.heads_inside ? columns : s.rows * columns),
      row(t.heads_inside ? i64(heads) * columns : columns),
      data(kind, (t.group ? 1 : t.batch) * batch, flush) {}

void Tensor::poison_padding() {
  for (int b = 0; b < int(sequences.length.size()); ++b) {
    for (int i = sequences.length[b]; i < sequences.length[b] + sequences.padding; ++i) {
      for (int h = 0; h < nhead; ++h) {
        for (int d = 0; d < width; ++d) data.set(at(b, h, i, d), NAN);
      }
    }
  }
}

void fill_heads(const AttentionCase& t, Guarded& slopes, Guarded& sink) {
  for (size_t i = 0; i < slopes.size; ++i) slopes.set(i, 0.1f * float(i + 1));
  for (size_t i = 0; i < sink.size; ++i) sink.set(i, t.sink_logit - float(i));
}

Scores scores_of(const AttentionCase& t, const Query& query, const std::function<double(int)>& product,
                 const std::function<double(int)>& bias) {
  const int keys = query.seqlen_k, here = query.row + (t.top_left ? 0 : keys - query.seqlen_q);
  Scores r{std::vector<double>(keys, -INFINITY), std::vector<double>(keys, 1), query.sink};
  for (int j = 0; j < keys; ++j) {
    const bool right = t.window_right < 0 || j <= here + t.window_right;
    const bool left = t.window_left < 0 || j >= here - t.window_left || j < t.sink_size;
    if (!left || !right) continue;
    double x = product(j);
    if (t.softcap > 0) {
      const double y = std::tanh(x / t.softcap);
      x = t.softcap * y, r.slope[j] = 1 - y * y;
    }
    if (t.bias == Bias::alibi) x -= query.alibi * std::abs(here - j);
    if (t.bias == Bias::elementwise) x += bias(j);
    r.s[j] = x;
    r.most = std::max(r.most, x);
  }
  if (r.most == -INFINITY) return r;
  r.sum = std::exp(query.sink - r.most);
  for (int j = 0; j < keys; ++j) r.sum += std::exp(r.s[j] - r.most);
  return r;
}

namespace {

uint8_t byte_of(const AttentionCase& t, int batch, int head, int row, int key) {
  return core::dropout_byte(t.seed, t.offset + 64ULL * (unsigned(batch) * t.nhead_q + head), row, key);
}

}  // namespace

double kept(const AttentionCase& t, const Query& query, int key) {
  if (!(t.dropout_p > 0)) return 1;
  const bool keep = byte_of(t, query.batch, query.head, query.row, key) <= core::dropout_threshold(t.dropout_p);
  return keep ? 1 / (1 - double(t.dropout_p)) : 0;
}

size_t touched(const Guarded& x) {
  size_t count = 0;
  for (size_t i = 0; i < x.size; ++i) count += !x.poisoned(i);
  return count;
}

void Gathered::add(const Answer& r, i64 out_at, i64 lse_at) {
  const double largest = out_.kind == Kind::fp8 ? 448.0 : INFINITY;
  for (size_t d = 0; d < r.out.size(); ++d, ++written_) {
    const double expected = std::clamp(r.out[d], -largest, largest), got = out_.get(out_at + d), error = got - expected;
    if (!(std::abs(got) < INFINITY)) errors_.broken = "out is not finite";
    if (r.magnitude[d] == 0 && got != 0) errors_.broken = "out of a row without keys is not 0";
    const double beyond = std::abs(error) - absolute_error(out_.kind);
    if (r.magnitude[d] > 0) errors_.element = std::max(errors_.element, beyond / r.magnitude[d]);
    error2_ += error * error, expected2_ += expected * expected;
  }
  if (!has_lse_) return;
  const double lse = lse_.get(lse_at);
  ++written_lse_;
  if (r.lse == -INFINITY || !(std::abs(lse) < INFINITY)) {
    if (lse != r.lse) errors_.broken = "lse of a row without keys is not -inf, or of another is";
  } else {
    errors_.lse = std::max(errors_.lse, std::abs(lse - r.lse));
  }
}

Errors Gathered::result() {
  errors_.rms = expected2_ > 0 ? std::sqrt(error2_ / expected2_) : std::sqrt(error2_);
  if (touched(out_) != written_ || touched(lse_) != written_lse_)
    errors_.broken = "a write outside the rows of out or lse";
  return errors_;
}

std::string wrong_bytes(const AttentionCase& t, const Sequences& q, const Sequences& k, const Guarded& randval) {
  size_t at = 0;
  for (int b = 0; b < t.batch && t.randval; ++b) {
    for (int h = 0; h < t.nhead_q; ++h) {
      for (int i = 0; i < t.seqlen_q; ++i) {
        for (int j = 0; j < t.seqlen_k + kRowPad; ++j, ++at) {
          const bool exists = i < q.length[b] && j < k.length[b];
          if (exists ? randval.get(at) != byte_of(t, b, h, i, j) : !randval.poisoned(at)) return "a random byte";
        }
      }
    }
  }
  return "";
}

std::string describe(const AttentionCase& t) {
  static const char* const biases[] = {"none", "elementwise", "alibi"};
  std::ostringstream s;
  s << t.name << ": batch " << t.batch << " nhead " << t.nhead_q << '/' << t.nhead_k << " seqlen " << t.seqlen_q << '/'
    << t.seqlen_k << " hdim " << t.hdim_q << '/' << t.hdim_v << " window (" << t.window_left << ", " << t.window_right
    << ')' << (t.top_left ? " top_left" : "") << " sink_size " << t.sink_size << (t.sink ? " sink" : "")
    << (t.group ? " group" : "") << (t.heads_inside ? " bshd" : " bhsd") << " bias " << biases[int(t.bias)]
    << " softcap " << t.softcap << " dropout " << t.dropout_p << (t.randval ? " randval" : "") << " scale "
    << scale_of(t);
  return s.str();
}

}  // namespace tilekiln::test
