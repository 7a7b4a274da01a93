// SPDX-License-Identifier: MIT
// Arguments of batched_contraction as a list of gemm's problems, and its units.
#include "kernels/generated/operators/batched_contraction_entries.h"

#include "kernels/gemm/batched_contraction/engine.h"
#include "kernels/gemm/schedule.h"

namespace tilekiln::op::batched_contraction {

using matrix::Contraction;
using matrix::i64;
using matrix::Problem;

namespace {

// A dimension of g, m, n or k: its steps in elements, 0 where an array has it not.
struct Dim { i64 length, a, b, out; };
struct Dims {
  Dim dim[TILEKILN_MAX_NDIM];
  int count = 0;

  // One more: joined to the last where all arrays go on evenly, or with nothing to do.
  void add(const Dim& one) {
    Dim* const last = count > 0 ? &dim[count - 1] : nullptr;
    if (one.length == 1) return;
    if (last != nullptr && last->a == one.a * one.length && last->b == one.b * one.length &&
        last->out == one.out * one.length)
      *last = {last->length * one.length, one.a, one.b, one.out};
    else
      dim[count++] = one;
  }
};

// The groups of dimensions of a call. `batch`, `k`: how many are of them.
void group(const Args& args, const Arrays& in, Dims& g, Dims& m, Dims& n, Dims& k) {
  const int batch = args.batch_dims, of_m = in.a.ndim - batch - args.k_dims, of_n = in.b.ndim - batch - args.k_dims;
  for (int i = 0; i < batch; ++i) g.add({in.a.shape[i], in.a.stride[i], in.b.stride[i], in.out.stride[i]});
  for (int i = batch; i < batch + of_m; ++i) m.add({in.a.shape[i], in.a.stride[i], 0, in.out.stride[i]});
  for (int i = batch; i < batch + of_n; ++i) n.add({in.b.shape[i], 0, in.b.stride[i], in.out.stride[i + of_m]});
  for (int i = 0; i < args.k_dims; ++i)
    k.add({in.a.shape[batch + of_m + i], in.a.stride[batch + of_m + i], in.b.stride[batch + of_n + i], 0});
  for (Dims* one : {&m, &n, &k})
    if (one->count == 0) one->dim[one->count++] = {1, 1, 1, 1};
}

// Dimensions of m, n and k whose matrices every engine takes, the largest product of them; false where there are none.
bool choose(const Dims& m, const Dims& n, const Dims& k, int (&best)[3]) {
  double most = -1;
  for (int i = 0; i < m.count; ++i)
    for (int j = 0; j < n.count; ++j)
      for (int l = 0; l < k.count; ++l) {
        const Dim &row = m.dim[i], &column = n.dim[j], &sum = k.dim[l];
        const bool fits = (row.a == 1 || sum.a == 1 || row.length <= 1 || sum.length <= 1) &&
                          (column.b == 1 || sum.b == 1 || column.length <= 1 || sum.length <= 1) &&
                          (row.out == 1 || column.out == 1 || row.length <= 1 || column.length <= 1);
        const i64 longest = std::max(std::max(row.length, column.length), sum.length);
        const double size =
            static_cast<double>(row.length) * static_cast<double>(column.length) * static_cast<double>(sum.length);
        if (fits && longest <= INT32_MAX && size > most) most = size, best[0] = i, best[1] = j, best[2] = l;
      }
  return most >= 0;
}

}  // namespace

tilekiln_status contracted(const Args& args, tilekiln_shape* shape) {
  const tilekiln_tensor &a = *args.a, &b = *args.b;
  for (const auto& [name, ndim] : {std::pair("a", a.ndim), std::pair("b", b.ndim)})
    if (ndim < args.batch_dims + args.k_dims)
      return fail_argument(name, "had %d dimensions, must have at least %d, batch_dims + k_dims", ndim,
                           args.batch_dims + args.k_dims);
  const auto same = [&](int at_a, int at_b, const char* what) -> tilekiln_status {
    if (a.shape[at_a] == b.shape[at_b]) return TILEKILN_OK;
    return fail_argument("b", "dimension %d was %lld long, must be %lld, dimension %d of a: it is %s", at_b,
                         static_cast<long long>(b.shape[at_b]), static_cast<long long>(a.shape[at_a]), at_a, what);
  };
  shape->ndim = a.ndim + b.ndim - args.batch_dims - 2 * args.k_dims;
  if (shape->ndim > TILEKILN_MAX_NDIM)
    return fail_argument("b", "had %d dimensions, makes %d of out with those of a, must make at most %d", b.ndim,
                         shape->ndim, TILEKILN_MAX_NDIM);
  for (int i = 0; i < args.batch_dims; ++i) TILEKILN_TRY(same(i, i, "of the batch"));
  for (int i = 0; i < args.k_dims; ++i) TILEKILN_TRY(same(a.ndim - 1 - i, b.ndim - 1 - i, "summed over"));
  std::copy(a.shape, a.shape + a.ndim - args.k_dims, shape->length);
  std::copy(b.shape + args.batch_dims, b.shape + b.ndim - args.k_dims, shape->length + a.ndim - args.k_dims);
  return TILEKILN_OK;
}

tilekiln_status matrices(const Args& args, Call& call) {
  Dims g, m, n, k;
  int best[3];
  group(args, call.in, g, m, n, k);
  if (choose(m, n, k, best)) return TILEKILN_OK;
  return fail_argument("out",
                       "has strides with which no dimensions of m, n and k make matrices: of a, b and out one of two "
                       "must have stride 1; copy the array that has none");
}

void fill(const Args& args, Call& call) {
  const Arrays& in = call.in;
  Contraction& to = call.to.problem;
  Dims g, m, n, k;
  int best[3];
  group(args, in, g, m, n, k);
  static_cast<void>(choose(m, n, k, best));  // checked
  const i64 bytes = dtype_bytes(in.a.dtype);
  const Dim row = m.dim[best[0]], column = n.dim[best[1]], sum = k.dim[best[2]];
  // Views of two dimensions, for the choice of layouts that gemm has.
  Array a = in.a, b = in.b, out = in.out;
  const auto view = [](Array& array, i64 rows, i64 columns, i64 row_step, i64 column_step) {
    array.ndim = 2, array.shape[0] = rows, array.shape[1] = columns, array.stride[0] = row_step,
    array.stride[1] = column_step;
  };
  view(a, row.length, sum.length, row.a, sum.a), view(b, sum.length, column.length, sum.b, column.b);
  view(out, row.length, column.length, row.out, column.out);
  const bool transposed = matrix::fill_operands(matrix::Matrix(a), matrix::Matrix(b), matrix::Matrix(out), &to.product);
  to.product.dtype = static_cast<matrix::Dtype>(call.signature.dtype);
  to.product.out_dtype = static_cast<matrix::OutDtype>(call.signature.dtype);
  to.product.alpha = args.alpha;
  int rest = 0, more = 0;
  to.products = to.sums = 1;
  const auto put = [&](const Dims& dims, int without) {
    for (int i = 0; i < dims.count; ++i) {
      if (i == without) continue;
      const Dim& one = dims.dim[i];
      to.products *= to.count[rest] = one.length;
      to.a[rest] = (transposed ? one.b : one.a) * bytes, to.b[rest] = (transposed ? one.a : one.b) * bytes;
      to.out[rest++] = one.out * bytes;
    }
  };
  put(g, -1), put(m, best[0]), put(n, best[1]);
  for (int i = 0; i < k.count; ++i) {
    if (i == best[2]) continue;
    to.sums *= to.steps[more] = k.dim[i].length;
    to.a_step[more] = (transposed ? k.dim[i].b : k.dim[i].a) * bytes;
    to.b_step[more++] = (transposed ? k.dim[i].a : k.dim[i].b) * bytes;
  }
  for (; rest < matrix::kRest; ++rest) to.count[rest] = 1;
  for (; more < matrix::kRest; ++more) to.steps[more] = 1;
  int64_t* const sizes = call.to.query.sizes;
  sizes[tilekiln::batched_contraction::sizes::m] = row.length;
  sizes[tilekiln::batched_contraction::sizes::n] = column.length;
  sizes[tilekiln::batched_contraction::sizes::k] = sum.length;
  if (args.alpha == 0 || to.sums == 0) to.product.k = 0, to.sums = 1, to.steps[0] = 1;
  if (to.product.k == 0) std::fill(to.steps, to.steps + matrix::kRest, 1), to.sums = 1;
}

tilekiln_status launch(StageCall<Contraction>& call) {
  const Contraction& all = call.problem;
  const auto& engine = *static_cast<const matrix::Engine*>(call.choice.engine);
  const matrix::Cut cut(all.product, engine, call.threads, std::max<i64>(1, all.products));
  const auto run = engine.run[static_cast<int>(all.product.dtype)];
  const i64 row = matrix::divide_up(cut.columns, matrix::kPanelLanes) * matrix::kPanelLanes;
  const i64 held = matrix::divide_up(engine.scratch_bytes, 64) * 64, partial = all.sums > 1 ? cut.rows * row * 4 : 0;
  const double work = matrix::work_of(all.product) * static_cast<double>(all.products) * static_cast<double>(all.sums);
  return launch_stage(
      call, call.choice, all, cut.units() * all.products, work, held + partial, [&](i64 number, void* scratch) {
        Problem p = all.product;
        const auto move = [](i64 index, const i64* lengths, auto&& by) {
          for (int d = matrix::kRest - 1; d >= 0 && index > 0; --d) by(d, index % lengths[d]), index /= lengths[d];
        };
        move(number / cut.units(), all.count, [&](int d, i64 at) {
          p.a = matrix::moved(p.a, at * all.a[d]), p.b = matrix::moved(p.b, at * all.b[d]);
          p.out = matrix::moved(p.out, at * all.out[d]);
        });
        const matrix::Unit unit = cut.unit(p, number % cut.units());
        if (all.sums == 1) return run(p, unit, scratch);
        auto* const sums = reinterpret_cast<float*>(static_cast<char*>(scratch) + held);
        for (i64 i = 0; i < all.sums; ++i) {
          Problem part = matrix::sums_of(p, {unit, 0, p.k, 0}, sums, row);
          move(i, all.steps, [&](int d, i64 at) {
            part.a = matrix::moved(part.a, at * all.a_step[d]), part.b = matrix::moved(part.b, at * all.b_step[d]);
          });
          if (i > 0) part.c = {sums, row, 1}, part.beta = 1;
          run(part, {0, unit.m1 - unit.m0, 0, unit.n1 - unit.n0}, scratch);
        }
        engine.add(p, unit, {sums, row, 0, 1, false}, scratch);
      });
}

}  // namespace tilekiln::op::batched_contraction
