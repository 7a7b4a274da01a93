// Calls over a KV cache from arguments to results: every shape of cache and index array, against a loop that looks up
// each key by itself; for every number of splits the same result. Built twice: over a plain engine, and
// (TILEKILN_TEST_LIBRARY) through the C ABI of a library.
#include <math.h>

#include <algorithm>
#include <functional>
#include <random>
#include <vector>

#include "check.h"
#include "kv_plain_engine.h"
#include "tilekiln/tilekiln.h"
#ifndef TILEKILN_TEST_LIBRARY
#include "tilekiln/runtime/fmha_kv.h"
#endif

namespace {

#ifdef TILEKILN_TEST_LIBRARY
constexpr bool library = true;
tilekiln_status run(const tilekiln_fmha_fwd_splitkv_args& args) { return tilekiln_fmha_fwd_splitkv(&args); }
tilekiln_status run(const tilekiln_fmha_batch_prefill_args& args) { return tilekiln_fmha_batch_prefill(&args); }
tilekiln_status run(const tilekiln_fmha_fwd_appendkv_args& args) { return tilekiln_fmha_fwd_appendkv(&args); }
const char* told() { return tilekiln_last_error(); }
#else
using namespace tilekiln;
using namespace tilekiln::fmha;

constexpr bool library = false;
int number_of_calls = 0;
// Tiles of several heights, heads of a key head together or apart.
template <class Launch>
tilekiln_status choose(KvCall& call, Launch&& launch) {
  static const Row rows[] = {{0, 16, 64, 0, 0, 0, 0}, {0, 4, 64, 0, 0, 0, 0}};
  static const KvEngine engines[] = {plain::engine(16), plain::engine(4)};
  const int which = number_of_calls++ % 2;
  call.choice = call.combine = {&rows[which], &engines[which], 0};
  call.shares_heads = number_of_calls % 3 == 0;
  return launch();
}
tilekiln_status run(const tilekiln_fmha_fwd_splitkv_args& args) {
  KvCall call;
  TILEKILN_TRY(check_splitkv(args, &call));
  return choose(call, [&] { return launch_kv(call); });
}
tilekiln_status run(const tilekiln_fmha_batch_prefill_args& args) {
  KvCall call;
  TILEKILN_TRY(check_batch_prefill(args, &call));
  return choose(call, [&] { return launch_kv(call); });
}
tilekiln_status run(const tilekiln_fmha_fwd_appendkv_args& args) {
  AppendCall call;
  TILEKILN_TRY(check_appendkv(args, &call));
  return choose(call.attention, [&] {
    call.choice = call.attention.choice;
    return launch_append(call);
  });
}
const char* told() { return error_text(); }
#endif

int ran = 0;
// Whether a call ran. A library need not hold an instance for every combination.
template <class Args>
bool runs(const Args& args, const char* what, int number) {
  const tilekiln_status status = run(args);
  if (library && status == TILEKILN_NO_KERNEL) return false;
  ++ran;
  if (CHECK(status == TILEKILN_OK)) return true;
  fprintf(stderr, "%s %d: %s\n", what, number, told());
  return false;
}

std::mt19937 random_bits(1);
int pick(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_bits); }
bool coin() { return pick(0, 1) != 0; }

std::vector<float> noise(size_t count) {
  std::vector<float> values(count);
  std::normal_distribution<float> normal;
  for (float& value : values) value = normal(random_bits);
  return values;
}

tilekiln_tensor tensor(const void* data, int32_t dtype, std::vector<int64_t> shape) {
  tilekiln_tensor t = {};
  t.data = const_cast<void*>(data);
  t.dtype = dtype;
  t.ndim = static_cast<int32_t>(shape.size());
  t.device_type = TILEKILN_CPU;
  int64_t stride = 1;
  for (int i = t.ndim - 1; i >= 0; --i) {
    t.shape[i] = shape[i];
    t.stride[i] = stride;
    stride *= shape[i];
  }
  return t;
}

int64_t at(const tilekiln_tensor& t, int64_t a, int64_t b, int64_t c, int64_t d = 0) {
  return a * t.stride[0] + b * t.stride[1] + c * t.stride[2] + d * t.stride[3];
}

// Numbers as an array of fp32 or bf16; `values` are what it holds.
struct Data {
  std::vector<float> values;
  std::vector<uint16_t> halves;
  Data(std::vector<float> numbers, bool bf16) : values(std::move(numbers)) {
    if (!bf16) return;
    halves.resize(values.size());
    for (size_t i = 0; i < values.size(); ++i) {
      plain::store(halves.data(), static_cast<int64_t>(i), true, values[i]);
      values[i] = plain::load(halves.data(), static_cast<int64_t>(i), true);
    }
  }
  tilekiln_tensor tensor_of(std::vector<int64_t> shape) const {
    return halves.empty() ? tensor(values.data(), TILEKILN_FP32, std::move(shape))
                          : tensor(halves.data(), TILEKILN_BF16, std::move(shape));
  }
  float now(size_t i) const {
    return halves.empty() ? values[i] : plain::load(halves.data(), static_cast<int64_t>(i), true);
  }
};

// Attention of one row and head over the keys [0, keys): `visible`, `score` (the whole logit) and `value` say
// everything.
struct Result {
  std::vector<double> out;
  double lse;
};
Result attend(int keys, int hdim_v, const std::function<bool(int)>& visible, const std::function<double(int)>& score,
              const std::function<double(int, int)>& value, const float* sink) {
  double max = sink != nullptr ? *sink : -INFINITY, total = 0;
  std::vector<double> scores(static_cast<size_t>(keys));
  for (int j = 0; j < keys; ++j) {
    if (visible(j)) max = fmax(max, scores[static_cast<size_t>(j)] = score(j));
  }
  Result result = {std::vector<double>(static_cast<size_t>(hdim_v), 0), -INFINITY};
  for (int j = 0; j < keys; ++j) {
    if (!visible(j)) continue;
    const double weight = exp(scores[static_cast<size_t>(j)] - max);
    total += weight;
    for (int d = 0; d < hdim_v; ++d) result.out[static_cast<size_t>(d)] += weight * value(j, d);
  }
  if (sink != nullptr) total += exp(*sink - max);
  if (total == 0) return result;
  for (double& x : result.out) x /= total;
  result.lse = max + log(total);
  return result;
}

// Split-KV calls over every kind of cache.
void splitkv_case(int number) {
  const bool bf16 = library && coin();
  const bool group = coin(), paged = coin(), bhsd = coin(), gappy = group && paged && pick(0, 2) == 0;
  const int batch = pick(1, 4), nhead_k = pick(1, 3), nhead_q = nhead_k * pick(1, 5), D = 8 * pick(1, 2), Dv = 8;
  const int page_size = pick(1, 9), pool = 64, rows_of_cache = batch + pick(0, 2);
  const bool indexed = !group && coin(), padded = !group && coin(), lengths_of_q = !group && coin();
  const int seqlen_cache = pick(1, 40);
  std::vector<int32_t> seqlen_q, seqlen_k, first_key, row, start_q = {0}, start_k = {0};
  for (int b = 0; b < batch; ++b) {
    const int room = paged ? 40 : seqlen_cache;
    seqlen_k.push_back(pick(0, 3) == 0 ? room : pick(0, room));
    first_key.push_back(gappy ? pick(0, 20) : padded ? pick(0, seqlen_k.back()) : 0);
    seqlen_q.push_back(pick(0, 6));
    row.push_back(indexed ? pick(0, rows_of_cache - 1) : b);
    start_q.push_back(start_q.back() + seqlen_q.back());
    start_k.push_back(start_k.back() + seqlen_k.back());
  }
  const int rows_q = group ? start_q.back() : 6, cache_batch = indexed ? rows_of_cache : batch;
  const int64_t blocks = (40 + 20 + page_size - 1) / page_size;

  // q and out.
  const std::vector<int64_t> q_shape = group  ? std::vector<int64_t>{rows_q, nhead_q, D}
                                       : bhsd ? std::vector<int64_t>{batch, nhead_q, rows_q, D}
                                              : std::vector<int64_t>{batch, rows_q, nhead_q, D};
  std::vector<int64_t> out_shape = q_shape;
  out_shape.back() = Dv;
  const Data q_data(noise(static_cast<size_t>(batch * rows_q * nhead_q * D + 1)), bf16);
  const Data out_data(std::vector<float>(static_cast<size_t>(batch * rows_q * nhead_q * Dv + 1), 7), bf16);
  std::vector<float> lse_data(static_cast<size_t>(batch * rows_q * nhead_q + 1), 7);
  tilekiln_tensor q = q_data.tensor_of(q_shape), out = out_data.tensor_of(out_shape);
  const bool group_bhsd = group && bhsd;  // (nhead, total, hdim)
  if (group_bhsd) {
    for (auto* t : {&q, &out}) std::swap(t->shape[0], t->shape[1]), std::swap(t->stride[0], t->stride[1]);
  }
  tilekiln_tensor lse = group ? tensor(lse_data.data(), TILEKILN_FP32, {nhead_q, rows_q})
                              : tensor(lse_data.data(), TILEKILN_FP32, {batch, nhead_q, rows_q});

  // The cache.
  const int64_t outer = paged ? pool : group ? start_k.back() : cache_batch, tokens = paged ? page_size : seqlen_cache;
  std::vector<int64_t> k_shape, v_shape;
  if (group && !paged) {
    k_shape = bhsd ? std::vector<int64_t>{nhead_k, outer, D} : std::vector<int64_t>{outer, nhead_k, D};
  } else {
    k_shape = bhsd ? std::vector<int64_t>{outer, nhead_k, tokens, D} : std::vector<int64_t>{outer, tokens, nhead_k, D};
  }
  v_shape = k_shape;
  v_shape.back() = Dv;
  size_t elements = 1;
  for (int64_t length : k_shape) elements *= static_cast<size_t>(length);
  const Data k_data(noise(elements + 1), bf16), v_data(noise(elements + 1), bf16);
  const tilekiln_tensor k = k_data.tensor_of(k_shape), v = v_data.tensor_of(v_shape);
  const int table_rows = indexed ? rows_of_cache : batch;
  std::vector<int32_t> table(static_cast<size_t>(table_rows * blocks));
  for (int32_t& page : table) page = pick(0, pool - 1);
  const tilekiln_tensor block_table = tensor(table.data(), TILEKILN_INT32, {table_rows, blocks});
  // Key j of sequence b, and the element there.
  const auto key = [&](const Data& data, const tilekiln_tensor& t, int b, int head, int j, int d) -> double {
    int64_t place = first_key[size_t(b)] + j, first = row[size_t(b)];
    if (group && !paged) {
      const int64_t token = start_k[size_t(b)] + j;
      return data.values[size_t(bhsd ? at(t, head, token, d) : at(t, token, head, d))];
    }
    if (paged) first = table[size_t(row[size_t(b)] * blocks + place / page_size)], place %= page_size;
    return data.values[size_t(bhsd ? at(t, first, head, place, d) : at(t, first, place, head, d))];
  };

  tilekiln_fmha_fwd_splitkv_args args = tilekiln_fmha_fwd_splitkv_defaults();
  args.q = &q, args.k = &k, args.v = &v, args.out = &out;
  args.layout = bhsd ? TILEKILN_BHSD : TILEKILN_BSHD;
  if (coin()) args.lse = &lse;
  const tilekiln_tensor lengths_q = tensor(seqlen_q.data(), TILEKILN_INT32, {batch}),
                        lengths_k = tensor(seqlen_k.data(), TILEKILN_INT32, {batch});
  const tilekiln_tensor starts_q = tensor(start_q.data(), TILEKILN_INT32, {batch + 1}),
                        starts_k = tensor(start_k.data(), TILEKILN_INT32, {batch + 1});
  const tilekiln_tensor firsts = tensor(first_key.data(), TILEKILN_INT32, {batch}),
                        rows = tensor(row.data(), TILEKILN_INT32, {batch});
  if (group) args.cu_seqlens_q = &starts_q;
  if (lengths_q.shape[0] != 0 && lengths_of_q) args.seqlen_q = &lengths_q;
  if (group && !paged) {
    args.cu_seqlens_k = &starts_k;
  } else if (gappy) {
    args.seqlen_k = &lengths_k, args.seqstart_k = &firsts, args.is_gappy = 1;
  } else if (group && coin()) {
    (coin() ? args.cu_seqlens_k : args.seqstart_k) = &starts_k;
  } else {
    args.seqlen_k = &lengths_k;
  }
  if (paged) args.block_table = &block_table;
  if (indexed) args.cache_batch_idx = &rows;
  if (padded) args.cache_leftpad = &firsts;

  const auto slopes_data = noise(static_cast<size_t>(batch * nhead_q)), sink_data = noise(static_cast<size_t>(nhead_q));
  const Data bias_data(noise(static_cast<size_t>((group ? 1 : batch) * nhead_q * rows_q * 64 + 1)), bf16);
  const tilekiln_tensor slopes = tensor(slopes_data.data(), TILEKILN_FP32, {batch, nhead_q}),
                        sink = tensor(sink_data.data(), TILEKILN_FP32, {nhead_q});
  const tilekiln_tensor bias = bias_data.tensor_of(group ? std::vector<int64_t>{nhead_q, rows_q, 64}
                                                         : std::vector<int64_t>{batch, nhead_q, rows_q, 64});
  const int score = pick(0, 3);
  if (score == 1) args.bias = &bias;
  if (score == 2) args.alibi_slopes = &slopes;
  if (score == 3) args.softcap = 2;
  if (coin()) args.sink = &sink;
  if (pick(0, 2) == 0) args.causal = 1;
  if (pick(0, 2) == 0) args.window_left = pick(0, 10);
  if (coin()) args.mask_origin = TILEKILN_TOP_LEFT;
  if (coin()) args.sink_size = pick(0, 3);
  const int splits[] = {0, 1, 2, 3, 8, 128};
  args.num_splits = splits[pick(0, 5)];
  args.num_threads = pick(1, 3);

  if (!runs(args, "splitkv", number)) return;

  double worst = 0;
  std::vector<bool> written(out_data.values.size()), written_lse(lse_data.size());
  for (int b = 0; b < batch; ++b) {
    const int sq = group || lengths_of_q ? seqlen_q[size_t(b)] : rows_q;
    const int keys = seqlen_k[size_t(b)] - (padded ? first_key[size_t(b)] : 0);
    for (int h = 0; h < nhead_q; ++h) {
      for (int i = 0; i < sq; ++i) {
        const int64_t r = group ? start_q[size_t(b)] + i : i;
        const auto place = [&](const tilekiln_tensor& t, int d) {
          if (group) return bhsd ? at(t, h, r, d) : at(t, r, h, d);
          return bhsd ? at(t, b, h, r, d) : at(t, b, r, h, d);
        };
        const int shift = args.mask_origin == TILEKILN_TOP_LEFT ? 0 : keys - sq;
        const auto visible = [&](int j) {
          if (args.causal != 0 && j > i + shift) return false;
          return args.window_left < 0 || j >= i + shift - args.window_left || j < args.sink_size;
        };
        const auto logit = [&](int j) {
          double s = 0;
          for (int d = 0; d < D; ++d)
            s += double(q_data.values[size_t(place(q, d))]) * key(k_data, k, b, h / (nhead_q / nhead_k), j, d);
          s /= sqrt(double(D));
          if (score == 1) s += bias_data.values[size_t(group ? at(bias, h, r, j) : at(bias, b, h, r, j))];
          if (score == 2) s -= slopes_data[size_t(b * nhead_q + h)] * fabs(double(i + shift - j));
          return score == 3 ? 2 * tanh(s / 2) : s;
        };
        const Result expected = attend(
            keys, Dv, visible, logit, [&](int j, int d) { return key(v_data, v, b, h / (nhead_q / nhead_k), j, d); },
            args.sink != nullptr ? &sink_data[size_t(h)] : nullptr);
        for (int d = 0; d < Dv; ++d) {
          worst = fmax(worst, fabs(out_data.now(size_t(place(out, d))) - expected.out[size_t(d)]));
          written[size_t(place(out, d))] = true;
        }
        const size_t lse_at = size_t(group ? h * lse.stride[0] + r : at(lse, b, h, r));
        if (args.lse != nullptr) {
          const float got = lse_data[lse_at];
          worst = fmax(worst, std::isinf(expected.lse) ? (got == -INFINITY ? 0 : 1) : fabs(got - expected.lse));
          written_lse[lse_at] = true;
        }
      }
    }
  }
  if (!CHECK(worst < (bf16 ? 4e-2 : 2e-5)))
    fprintf(stderr, "case %d: worst %g, splits %d\n", number, worst, args.num_splits);
  bool untouched = true;
  for (size_t i = 0; i < written.size(); ++i) untouched = untouched && (written[i] || out_data.now(i) == 7);
  for (size_t i = 0; i < lse_data.size(); ++i) untouched = untouched && (written_lse[i] || lse_data[i] == 7);
  CHECK(untouched);
}

// bf16 batch prefill: both layouts, both lookups.
void prefill_case(int number) {
  const bool vectorized = coin(), listed = coin();
  const int batch = pick(1, 4), nhead_k = pick(1, 2), nhead_q = nhead_k * pick(1, 3), D = 16, Dv = 8, pool = 32,
            vec = 8;
  const int page_size = vectorized ? 8 << pick(0, 2) : 1 << pick(0, 4);
  const bool flat = page_size == 1 && coin();  // 3 dimensions
  std::vector<int32_t> start_q = {0}, indptr = {0}, last, seqlen_k, indices;
  const int64_t blocks = 4;
  std::vector<int32_t> table;
  for (int b = 0; b < batch; ++b) {
    start_q.push_back(start_q.back() + pick(0, 9));
    const int pages = pick(0, 4);
    last.push_back(pages == 0 ? 99 : pick(1, page_size));
    seqlen_k.push_back(pages == 0 ? 0 : (pages - 1) * page_size + last.back());
    indptr.push_back(indptr.back() + pages);
    for (int i = 0; i < blocks; ++i) {
      table.push_back(i < pages ? pick(0, pool - 1) : -5);  // what is past the end is not read
      if (i < pages) indices.push_back(table.back());
    }
  }
  indices.push_back(-7);
  const int total = start_q.back();
  const auto bf16 = [](const std::vector<float>& values) {
    std::vector<uint16_t> result(values.size());
    for (size_t i = 0; i < values.size(); ++i) plain::store(result.data(), static_cast<int64_t>(i), true, values[i]);
    return result;
  };
  const auto q_data = bf16(noise(size_t(total * nhead_q * D + 1))),
             k_data = bf16(noise(size_t(pool * page_size * nhead_k * D)));
  const auto v_data = bf16(noise(size_t(pool * page_size * nhead_k * Dv))),
             bias_data = bf16(noise(size_t(total * 128 + 1)));
  std::vector<uint16_t> out_data(size_t(total * nhead_q * Dv + 1), 7);
  const tilekiln_tensor q = tensor(q_data.data(), TILEKILN_BF16, {total, nhead_q, D}),
                        out = tensor(out_data.data(), TILEKILN_BF16, {total, nhead_q, Dv});
  const tilekiln_tensor k = vectorized ? tensor(k_data.data(), TILEKILN_BF16, {pool, nhead_k, D / vec, page_size, vec})
                            : flat     ? tensor(k_data.data(), TILEKILN_BF16, {pool, nhead_k, D})
                                       : tensor(k_data.data(), TILEKILN_BF16, {pool, page_size, nhead_k, D});
  const tilekiln_tensor v = vectorized ? tensor(v_data.data(), TILEKILN_BF16, {pool, nhead_k, page_size / vec, Dv, vec})
                            : flat     ? tensor(v_data.data(), TILEKILN_BF16, {pool, nhead_k, Dv})
                                       : tensor(v_data.data(), TILEKILN_BF16, {pool, page_size, nhead_k, Dv});
  const tilekiln_tensor bias = tensor(bias_data.data(), TILEKILN_BF16, {total, 128}),
                        starts = tensor(start_q.data(), TILEKILN_INT32, {batch + 1});
  const tilekiln_tensor ptr = tensor(indptr.data(), TILEKILN_INT32, {batch + 1}),
                        list = tensor(indices.data(), TILEKILN_INT32, {int64_t(indices.size())});
  const tilekiln_tensor lasts = tensor(last.data(), TILEKILN_INT32, {batch}),
                        lengths = tensor(seqlen_k.data(), TILEKILN_INT32, {batch});
  const tilekiln_tensor block_table = tensor(table.data(), TILEKILN_INT32, {batch, blocks});
  tilekiln_fmha_batch_prefill_args args = tilekiln_fmha_batch_prefill_defaults();
  args.q = &q, args.k = &k, args.v = &v, args.out = &out, args.cu_seqlens_q = &starts;
  if (listed) {
    args.kv_indptr = &ptr, args.kv_page_indices = &list;
    if (page_size > 1 || coin()) args.kv_last_page_lens = &lasts;
  } else {
    args.block_table = &block_table, args.seqlen_k = &lengths;
  }
  args.causal = pick(0, 1);
  if (coin()) args.bias = &bias;
  args.num_threads = pick(1, 2);

  if (!runs(args, "prefill", number)) return;

  double worst = 0;
  for (int b = 0; b < batch; ++b) {
    const int sq = start_q[size_t(b + 1)] - start_q[size_t(b)], keys = seqlen_k[size_t(b)];
    const auto key = [&](bool is_k, int head, int j, int d) -> double {
      const int64_t page = table[size_t(b * blocks + j / page_size)], in = j % page_size;
      const int dims = is_k ? D : Dv;
      const int64_t index = !vectorized ? ((page * page_size + in) * nhead_k + head) * dims + d
                            : is_k
                                ? (((page * nhead_k + head) * (D / vec) + d / vec) * page_size + in) * vec + d % vec
                                : (((page * nhead_k + head) * (page_size / vec) + in / vec) * Dv + d) * vec + in % vec;
      return plain::load(is_k ? k_data.data() : v_data.data(), index, true);
    };
    for (int h = 0; h < nhead_q; ++h) {
      for (int i = 0; i < sq; ++i) {
        const int64_t r = start_q[size_t(b)] + i;
        const Result expected = attend(
            keys, Dv, [&](int j) { return args.causal == 0 || j <= i + keys - sq; },
            [&](int j) {
              double s = 0;
              for (int d = 0; d < D; ++d)
                s +=
                    double(plain::load(q_data.data(), at(q, r, h, d), true)) * key(true, h / (nhead_q / nhead_k), j, d);
              return s / sqrt(double(D)) +
                     (args.bias != nullptr ? plain::load(bias_data.data(), r * 128 + j, true) : 0);
            },
            [&](int j, int d) { return key(false, h / (nhead_q / nhead_k), j, d); }, nullptr);
        for (int d = 0; d < Dv; ++d)
          worst = fmax(worst, fabs(plain::load(out_data.data(), at(out, r, h, d), true) - expected.out[size_t(d)]));
      }
    }
  }
  if (!CHECK(worst < 2e-2)) fprintf(stderr, "prefill %d: worst %g\n", number, worst);
}

// Appends in fp32: the cache byte by byte, q, and the attention that follows.
void append_case(int number) {
  const bool paged = coin(), indexed = coin(), rope = coin(), attends = coin();
  const int batch = pick(1, 4), nhead_k = pick(1, 2), nhead_q = nhead_k * pick(1, 3), D = 16, sq = pick(0, 4),
            sn = pick(0, 20);
  const int page_size = pick(1, 8), room = 40, rows_of_cache = batch + 2;
  const int64_t blocks = (room + page_size - 1) / page_size;
  std::vector<int32_t> length, row;
  std::vector<int32_t> order(static_cast<size_t>(rows_of_cache)), table(size_t(rows_of_cache * blocks), -3);
  for (int i = 0; i < rows_of_cache; ++i) order[size_t(i)] = i;
  std::shuffle(order.begin(), order.end(), random_bits);
  constexpr int pool = 500;
  std::vector<int32_t> pages(pool);
  for (int i = 0; i < pool; ++i) pages[size_t(i)] = i;
  std::shuffle(pages.begin(), pages.end(), random_bits);
  int next = 0;
  for (int b = 0; b < batch; ++b) {
    length.push_back(pick(0, room - sn));
    row.push_back(indexed ? order[size_t(b)] : b);
    for (int i = 0; i * page_size < length.back() + sn; ++i)
      table[size_t(row.back() * blocks + i)] = pages[size_t(next++)];
  }
  const int cache_rows = indexed ? rows_of_cache : batch, outer = paged ? pool : cache_rows,
            tokens = paged ? page_size : room;
  const auto q_before = noise(size_t(batch * sq * nhead_q * D + 1)), knew = noise(size_t(batch * sn * nhead_k * D + 1)),
             vnew = noise(knew.size());
  const auto k_before = noise(size_t(outer * tokens * nhead_k * D)), v_before = noise(k_before.size());
  auto q_data = q_before, k_data = k_before, v_data = v_before;
  const int half = pick(1, D / 2), positions = 64;
  const auto cos = noise(size_t(positions * half)), sin = noise(cos.size());
  std::vector<float> out_data(q_data.size(), 7);
  const tilekiln_tensor q = tensor(q_data.data(), TILEKILN_FP32, {batch, sq, nhead_q, D}),
                        out = tensor(out_data.data(), TILEKILN_FP32, {batch, sq, nhead_q, D});
  const tilekiln_tensor k = tensor(k_data.data(), TILEKILN_FP32, {outer, tokens, nhead_k, D}),
                        v = tensor(v_data.data(), TILEKILN_FP32, {outer, tokens, nhead_k, D});
  const tilekiln_tensor kn = tensor(knew.data(), TILEKILN_FP32, {batch, sn, nhead_k, D}),
                        vn = tensor(vnew.data(), TILEKILN_FP32, {batch, sn, nhead_k, D});
  const tilekiln_tensor c = tensor(cos.data(), TILEKILN_FP32, {positions, half}),
                        s = tensor(sin.data(), TILEKILN_FP32, {positions, half});
  const tilekiln_tensor lengths = tensor(length.data(), TILEKILN_INT32, {batch}),
                        rows = tensor(row.data(), TILEKILN_INT32, {batch});
  const tilekiln_tensor block_table = tensor(table.data(), TILEKILN_INT32, {cache_rows, blocks});
  tilekiln_fmha_fwd_appendkv_args args = tilekiln_fmha_fwd_appendkv_defaults();
  args.q = &q, args.k = &k, args.v = &v, args.knew = &kn, args.vnew = &vn, args.seqlen_k = &lengths;
  if (attends) args.out = &out;
  if (rope) args.rotary_cos = &c, args.rotary_sin = &s;
  args.rotary_interleaved = pick(0, 1);
  if (paged) args.block_table = &block_table;
  if (indexed) args.cache_batch_idx = &rows;
  args.causal = pick(0, 1);
  args.num_splits = pick(0, 3);
  args.num_threads = pick(1, 2);

  if (!runs(args, "append", number)) return;

  auto k_expected = k_before, v_expected = v_before, q_expected = q_before;
  const auto rotated = [&](const float* x, int d, int position) {
    const float* const co = &cos[size_t(position * half)];
    const float* const si = &sin[size_t(position * half)];
    if (!rope || d >= 2 * half) return x[d];
    const bool inter = args.rotary_interleaved != 0;
    const int i = inter ? d / 2 : d % half;
    const bool first = inter ? d % 2 == 0 : d < half;
    const float x0 = x[inter ? 2 * i : i], x1 = x[inter ? 2 * i + 1 : i + half];
    return first ? x0 * co[i] - x1 * si[i] : x1 * co[i] + x0 * si[i];
  };
  const auto cell = [&](int b, int j, int h) {
    if (!paged) return ((int64_t(row[size_t(b)]) * tokens + j) * nhead_k + h) * D;
    return ((int64_t(table[size_t(row[size_t(b)] * blocks + j / page_size)]) * page_size + j % page_size) * nhead_k +
            h) *
           D;
  };
  for (int b = 0; b < batch; ++b) {
    for (int j = 0; j < sn; ++j) {
      for (int h = 0; h < nhead_k; ++h) {
        const size_t from = size_t(((b * sn + j) * nhead_k + h) * D);
        for (int d = 0; d < D; ++d) {
          k_expected[size_t(cell(b, length[size_t(b)] + j, h) + d)] = rotated(&knew[from], d, length[size_t(b)] + j);
          v_expected[size_t(cell(b, length[size_t(b)] + j, h) + d)] = vnew[from + size_t(d)];
        }
      }
    }
    for (int i = 0; i < sq; ++i) {
      for (int h = 0; h < nhead_q; ++h) {
        const size_t from = size_t(((b * sq + i) * nhead_q + h) * D);
        for (int d = 0; d < D; ++d)
          q_expected[from + size_t(d)] = rotated(&q_before[from], d, length[size_t(b)] + (args.causal != 0 ? i : 0));
      }
    }
  }
  const auto same = [](const std::vector<float>& a, const std::vector<float>& b) {
    double worst = 0;
    for (size_t i = 0; i < a.size(); ++i) worst = fmax(worst, fabs(a[i] - b[i]));
    return worst < 1e-5;
  };
  CHECK(same(k_data, k_expected) && same(v_data, v_expected) && same(q_data, q_expected));
  double worst = 0;
  for (int b = 0; b < batch && attends; ++b) {
    const int keys = length[size_t(b)] + sn;
    for (int i = 0; i < sq; ++i) {
      for (int h = 0; h < nhead_q; ++h) {
        const size_t from = size_t(((b * sq + i) * nhead_q + h) * D);
        const int hk = h / (nhead_q / nhead_k);
        const Result expected = attend(
            keys, D, [&](int j) { return args.causal == 0 || j <= i + keys - sq; },
            [&](int j) {
              double score = 0;
              for (int d = 0; d < D; ++d)
                score += double(q_expected[from + size_t(d)]) * k_expected[size_t(cell(b, j, hk) + d)];
              return score / 4;
            },
            [&](int j, int d) { return v_expected[size_t(cell(b, j, hk) + d)]; }, nullptr);
        for (int d = 0; d < D; ++d) worst = fmax(worst, fabs(out_data[from + size_t(d)] - expected.out[size_t(d)]));
      }
    }
  }
  if (!CHECK(worst < 1e-4)) fprintf(stderr, "append %d: worst %g\n", number, worst);
}

}  // namespace

int main() {
  for (int i = 0; i < 400; ++i) splitkv_case(i);
  for (int i = 0; i < 200; ++i) prefill_case(i);
  for (int i = 0; i < 200; ++i) append_case(i);
  CHECK(ran > (library ? 200 : 799));
  return check_result();
}
