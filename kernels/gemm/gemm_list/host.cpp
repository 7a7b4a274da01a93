// SPDX-License-Identifier: MIT
// Arguments of gemm_list as the plain data of gemm's engines, and its units.
#include "kernels/generated/operators/gemm_list_entries.h"

#include <algorithm>
#include <vector>

#include "kernels/gemm/host.h"

namespace tilekiln::op::gemm_list {

using matrix::i64;
using matrix::Listed;
using matrix::Problem;

namespace {

// The columns of problems.
enum Column { M, N, K, A, Lda, B, Ldb, Out, LdOut, Bias, kColumns };
constexpr const char* kNames[kColumns] = {"m", "n", "k", "a", "lda", "b", "ldb", "out", "ld_out", "bias"};

struct Row {
  Row(const Array& problems, i64 row) : number(row) {
    const auto* const from = reinterpret_cast<const int64_t*>(problems.data) + row * problems.stride[0];
    for (int i = 0; i < kColumns; ++i) is[i] = from[i * problems.stride[1]];
  }
  i64 number;
  i64 is[kColumns];
};

long long shown(i64 number) { return static_cast<long long>(number); }

tilekiln_status check_sizes(const Row& row) {
  for (const Column one : {M, N, K}) {
    if (row.is[one] < 0 || row.is[one] > 2147483647)
      return fail_argument("problems", "%s of problem %lld was %lld, must be from 0 to 2147483647", kNames[one],
                           shown(row.number), shown(row.is[one]));
  }
  if (row.is[M] > 1 && row.is[N] > 0 && row.is[LdOut] < row.is[N] && row.is[LdOut] > -row.is[N])
    return fail_argument("problems", "ld_out of problem %lld was %lld, must be at least its n, %lld, or at most -n",
                         shown(row.number), shown(row.is[LdOut]), shown(row.is[N]));
  return TILEKILN_OK;
}

// `lines` lines of `length` elements of an array, `stride` apart, and their addresses.
struct Part {
  const Array* of;
  char* data;
  i64 lines, length, stride;
  uint64_t first, last;  // as of an array
  [[nodiscard]] Array array() const {
    Array one = *of;
    one.data = data;
    one.ndim = 2;
    one.shape[0] = lines, one.shape[1] = length;
    one.stride[0] = stride, one.stride[1] = 1;
    one.first = first, one.last = last;
    return one;
  }
};

tilekiln_status find_part(const Row& row, Column at, i64 stride, i64 lines, i64 length, const Array& array,
                          Part* part) {
  *part = {&array, array.data, lines, length, stride, 0, 0};
  if (lines == 0 || length == 0) return TILEKILN_OK;
  const __int128 start = row.is[at], more = static_cast<__int128>(stride) * (lines - 1);
  const __int128 least = start + (more < 0 ? more : 0), most = start + (more < 0 ? 0 : more) + length - 1;
  if (least < 0 || most >= array.shape[0]) {
    const __int128 outside = least < 0 ? least : most;
    const i64 where = outside > INT64_MAX ? INT64_MAX : outside < INT64_MIN ? INT64_MIN : static_cast<i64>(outside);
    return fail_argument(
        "problems", "%s of problem %lld was %lld and reaches element %lld, must stay in %s, whose length is %lld",
        kNames[at], shown(row.number), shown(row.is[at]), shown(where), array.name, shown(array.shape[0]));
  }
  const i64 size = dtype_bytes(array.dtype);
  part->data += row.is[at] * size;
  part->first = array.first + static_cast<uint64_t>(least) * static_cast<uint64_t>(size);
  part->last = array.first + static_cast<uint64_t>(most + 1) * static_cast<uint64_t>(size);
  return TILEKILN_OK;
}

// No out of a problem may share memory with what is read, or with another. Both are walked from low addresses to high; `open` are
// those that have not ended where an out begins.
tilekiln_status check_apart(std::vector<Part>& read, std::vector<Part>& written) {
  const auto sooner = [](const Part& a, const Part& b) { return a.first < b.first; };
  std::sort(read.begin(), read.end(), sooner);
  std::sort(written.begin(), written.end(), sooner);
  std::vector<const Part*> open;
  const auto close = [&](uint64_t at) { std::erase_if(open, [&](const Part* one) { return one->last <= at; }); };
  for (const Part& out : written) {
    close(out.first);
    for (const Part* other : open) {
      if (overlap(out.array(), other->array()))
        return fail_argument("out", "shares memory between problems, must have its own for each");
    }
    open.push_back(&out);
  }
  open.clear();
  size_t next = 0;
  for (const Part& out : written) {
    for (; next < read.size() && read[next].first < out.last; ++next) {
      if (read[next].last > out.first) open.push_back(&read[next]);
    }
    close(out.first);
    for (const Part* other : open) {
      if (overlap(out.array(), other->array()))
        return fail_argument("out", "shares memory with %s, must have its own", other->of->name);
    }
  }
  return TILEKILN_OK;
}

}  // namespace

// Shape of a new out: what was asked for, else what it has.
tilekiln_status listed(const Args& args, tilekiln_shape* shape) {
  shape->ndim = 1;
  shape->length[0] = args.out != nullptr && args.out->ndim == 1 ? args.out->shape[0] : args.out_length;
  return TILEKILN_OK;
}

// One dimension of any length.
tilekiln_status flat(const Args& args, tilekiln_shape* shape) {
  shape->ndim = 1;
  shape->length[0] = args.bias->ndim == 1 ? args.bias->shape[0] : 0;
  return TILEKILN_OK;
}

tilekiln_status features(const Args& args, Call& call) {
  TILEKILN_TRY(matrix::check_clamp(args));
  if (call.signature.dtype == tilekiln::gemm_list::Dtype::int8 && args.alpha != 1)
    return fail_argument("alpha", "was %g, must be 1 when a is int8", static_cast<double>(args.alpha));
  const Arrays& in = call.in;
  for (const Array* const one : {&in.a, &in.b, &in.out, &in.bias}) {
    if (one->given()) TILEKILN_TRY(check_last_contiguous(*one));
  }
  std::vector<Listed>& list = call.to.problem.problems;
  list.reserve(static_cast<size_t>(call.Q));
  std::vector<Part> read, written;
  const bool a_columns = call.signature.layout_a == tilekiln::gemm_list::LayoutA::column;
  const bool b_columns = call.signature.layout_b == tilekiln::gemm_list::LayoutB::column;
  for (i64 number = 0; number < call.Q; ++number) {
    const Row row(in.problems, number);
    TILEKILN_TRY(check_sizes(row));
    const i64 m = row.is[M], n = row.is[N], k = args.alpha == 0 ? 0 : row.is[K];
    if (m == 0 || n == 0) continue;
    Part a, b, out, bias;
    TILEKILN_TRY(find_part(row, A, row.is[Lda], a_columns ? k : m, a_columns ? m : k, in.a, &a));
    TILEKILN_TRY(find_part(row, B, row.is[Ldb], b_columns ? n : k, b_columns ? k : n, in.b, &b));
    TILEKILN_TRY(find_part(row, Out, row.is[LdOut], m, n, in.out, &out));
    written.push_back(out);
    if (k > 0) read.push_back(a), read.push_back(b);
    if (in.bias.given()) {
      TILEKILN_TRY(find_part(row, Bias, n, 1, n, in.bias, &bias));
      read.push_back(bias);
    }
    list.push_back({static_cast<int>(m), static_cast<int>(n), static_cast<int>(k), a.data, b.data, out.data,
                    in.bias.given() ? reinterpret_cast<const float*>(bias.data) : nullptr, row.is[Lda], row.is[Ldb],
                    row.is[LdOut]});
  }
  const Array& p = in.problems;
  if (!p.empty()) read.push_back({&p, p.data, 1, (static_cast<i64>(p.last - p.first)) / 8, 0, p.first, p.last});
  return check_apart(read, written);
}

// Everything is checked: what all problems share.
void fill(const Args& args, Call& call) {
  matrix::check_names<tilekiln::gemm_list::Dtype, tilekiln::gemm_list::Dtype, tilekiln::gemm_list::Activation>();
  Problem& p = call.to.problem.first;
  p.dtype = static_cast<matrix::Dtype>(call.signature.dtype);
  constexpr matrix::OutDtype outs[] = {matrix::OutDtype::fp32, matrix::OutDtype::fp16, matrix::OutDtype::bf16,
                                       matrix::OutDtype::int32, matrix::OutDtype::bf16};
  static_assert(static_cast<int>(tilekiln::gemm_list::Dtype::int8) == 3 &&
                static_cast<int>(tilekiln::gemm_list::Dtype::fp8) == 4);
  p.out_dtype = outs[static_cast<int>(call.signature.dtype)];
  matrix::fill_activation(args, call.signature, &p);
  p.a_columns = call.signature.layout_a == tilekiln::gemm_list::LayoutA::column;
  p.b_columns = call.signature.layout_b == tilekiln::gemm_list::LayoutB::column;
  p.alpha = args.alpha;
  call.to.query.sizes[tilekiln::gemm_list::sizes::problems] = call.Q;
}

// The units of all problems, numbered problem after problem; on a backend with kernels a launch a problem.
tilekiln_status launch(StageCall<matrix::List>& call) {
  namespace at = tilekiln::gemm_list::fields;
  const uint32_t* const how = call.choice.how->fields;
  const matrix::Tile tile = {how[at::tile_m], how[at::tile_n], how[at::tile_k]};
  const matrix::List& list = call.problem;
  const auto product = [&](size_t index) {
    const Listed& one = list.problems[index];
    Problem p = list.first;
    matrix::set_tile(tile, &p);
    p.m = one.m, p.n = one.n, p.k = one.k;
    p.a = one.a, p.b = one.b, p.out = one.out, p.bias = one.bias;
    p.lda = one.lda, p.ldb = one.ldb, p.out_row = one.out_row;
    return p;
  };
  if (__builtin_expect(!call.backend->takes_units, 0)) {
    for (size_t i = 0; i < list.problems.size(); ++i)
      TILEKILN_TRY(launch_kernel(call, call.choice, matrix::Batch{product(i), 1, 0, 0, 0, 0}));
    return TILEKILN_OK;
  }
  return matrix::run_products(call, call.choice, list.first, list.problems.size(), product, tile.n);
}

}  // namespace tilekiln::op::gemm_list
