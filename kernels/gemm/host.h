// SPDX-License-Identifier: MIT
// Host code that the operators of matrix products share: layouts, the problem of the engines, and its units.
#pragma once
#include <algorithm>
#include <utility>
#include <vector>

#include "kernels/gemm/engine.h"
#include "kernels/gemm/lists.h"
#include "kernels/runtime/array.h"
#include "kernels/runtime/choose.h"
#include "kernels/runtime/launch.h"

namespace tilekiln::matrix {

// Signatures name dtypes and activations as family.yaml does; the problem has them in the order of engine.h.
template <class Dtypes> constexpr void check_dtypes() {
  static_assert(static_cast<int>(Dtypes::fp32) == static_cast<int>(Dtype::fp32) &&
                static_cast<int>(Dtypes::fp16) == static_cast<int>(Dtype::fp16) &&
                static_cast<int>(Dtypes::bf16) == static_cast<int>(Dtype::bf16));
}
template <class Dtypes, class OutDtypes, class Activations>
constexpr void check_names() {
  check_dtypes<Dtypes>();
  static_assert(static_cast<int>(OutDtypes::fp32) == static_cast<int>(OutDtype::fp32) &&
                static_cast<int>(OutDtypes::fp16) == static_cast<int>(OutDtype::fp16) &&
                static_cast<int>(OutDtypes::bf16) == static_cast<int>(OutDtype::bf16));
#define ACTIVATION(name, x) static_assert(static_cast<int>(Activations::name) == static_cast<int>(Activation::name));
#include "kernels/gemm/activations.inc"
#undef ACTIVATION
}

// Checks that the bounds of clamp are in order.
template <class Args> tilekiln_status check_clamp(const Args& args) {
  if (args.clamp_min <= args.clamp_max) return TILEKILN_OK;
  return fail_argument("clamp_min", "was %g, must be at most %g, which is clamp_max",
                       static_cast<double>(args.clamp_min), static_cast<double>(args.clamp_max));
}

// A matrix in the last two dimensions of an array. One of at most one element has no stride to look at: it is of both layouts.
struct Matrix {
  explicit Matrix(const Array& array)
      : data(static_cast<char*>(array.data)),
        rows(array.shape[array.ndim - 2]),
        columns(array.shape[array.ndim - 1]),
        row(array.stride[array.ndim - 2]),
        column(array.stride[array.ndim - 1]) {}
  [[nodiscard]] bool may_be_row() const { return column == 1 || columns <= 1 || rows == 0; }
  [[nodiscard]] bool may_be_column() const { return row == 1 || rows <= 1 || columns == 0; }
  // Tells whether b counts as row-major. One that may be either, as of one column, has the layout of a linear layer.
  [[nodiscard]] bool is_row_b() const { return may_be_row() && !may_be_column(); }
  [[nodiscard]] Matrix transposed() const {
    Matrix other = *this;
    std::swap(other.rows, other.columns);
    std::swap(other.row, other.column);
    return other;
  }
  // Row-major where it may be either, unless its one column is contiguous: lanes run along rows.
  [[nodiscard]] bool is_row_out() const { return may_be_row() && !(columns == 1 && rows > 1 && may_be_column()); }

  char* data;
  i64 rows, columns, row, column;
};

// The operands of p and its sizes, out being row-major.
inline void fill_rows(const Matrix& a, const Matrix& b, const Matrix& out, Problem* p) {
  p->m = static_cast<int>(out.rows);
  p->n = static_cast<int>(out.columns);
  p->k = static_cast<int>(a.columns);
  p->a = a.data;
  p->b = b.data;
  p->a_columns = !a.may_be_row();
  p->b_columns = !b.may_be_row();
  p->lda = p->a_columns ? a.column : a.row;
  p->ldb = p->b_columns ? b.column : b.row;
  p->out = out.data;
  p->out_row = out.row;
}

// Fills operands for out of either layout: a column-major one is that of the transposed problem, b^T a^T. Returns whether it is.
inline bool fill_operands(const Matrix& a, const Matrix& b, const Matrix& out, Problem* p) {
  const bool transposed = !out.is_row_out();
  if (transposed)
    fill_rows(b.transposed(), a.transposed(), out.transposed(), p);
  else
    fill_rows(a, b, out, p);
  return transposed;
}

// Sets the activation of a call and its bounds.
template <class Args, class Signature> void fill_activation(const Args& args, const Signature& signature, Problem* p) {
  p->activation = static_cast<Activation>(signature.activation);
  p->clamp_min = args.clamp_min;
  p->clamp_max = args.clamp_max;
}

// A matrix that epilogues read, and an array of one number a row or column.
inline Extra extra(const Matrix& matrix, bool transposed) {
  return {matrix.data, transposed ? matrix.column : matrix.row, transposed ? matrix.row : matrix.column};
}
inline const float* numbers(const Array& array) {
  return array.given() ? reinterpret_cast<const float*>(array.data) : nullptr;
}

constexpr i64 dtype_size(Dtype dtype) {
  return dtype == Dtype::fp32 ? 4 : dtype == Dtype::fp16 || dtype == Dtype::bf16 ? 2 : 1;
}

inline i64 divide_up(i64 a, i64 b) { return (a + b - 1) / b; }

// The blocks of the cache that an algorithm names: rows and columns of out, 32-bit words along k. 0: the engine's.
struct Tile { i64 m = 0, n = 0, k = 0; };
inline void set_tile(const Tile& tile, Problem* p) {
  p->tile_m = static_cast<int>(tile.m), p->tile_k = static_cast<int>(tile.k);
}

// Cut of out into units. Results do not depend on it.
struct Cut {
  // Cuts for so many threads, which have so many further products to do. most: columns of a unit, 0: the engine's.
  Cut(const Problem& p, const Engine& engine, int threads, i64 products, i64 most = 0)
      : columns(most == 0 ? engine.most_columns : std::min<i64>(most, engine.most_columns)) {
    if (engine.block_rows > 0) {
      cut_in_blocks(p, engine.block_rows, threads, products);
      return;
    }
    if (engine.turned && engine.turned(p)) {
      const i64 share = threads > 1 ? divide_up(p.n, 4 * i64(threads)) : p.n;
      columns = std::clamp<i64>(divide_up(share, kPanelLanes) * kPanelLanes, columns, engine.turned_columns);
    }
    across = divide_up(p.n, columns);
    // Four units a thread, so that none waits long for the last.
    const i64 wanted = threads > 1 ? divide_up(4 * i64(threads), std::max<i64>(1, across * products)) : 1;
    constexpr i64 least_rows = 48;
    rows = divide_up(p.m, std::clamp<i64>(p.m / least_rows, 1, wanted));
    down = rows == 0 ? 0 : divide_up(p.m, rows);
  }
  [[nodiscard]] i64 units() const { return down * across; }
  [[nodiscard]] Unit unit(const Problem& p, i64 number) const {
    // Down first: neighbours share their columns of b.
    const i64 m = number % down * rows, n = number / down * columns;
    return {static_cast<int>(m), static_cast<int>(std::min<i64>(m + rows, p.m)), static_cast<int>(n),
            static_cast<int>(std::min<i64>(n + columns, p.n))};
  }

  i64 rows, columns, down, across;

 private:
  // Units as large as a packed block of a, halved until there are three a thread.
  void cut_in_blocks(const Problem& p, i64 block, int threads, i64 products) {
    const auto to_blocks = [&](i64 size) { return divide_up(size, block) * block; };
    const auto to_panels = [](i64 size) { return divide_up(size, kPanelLanes) * kPanelLanes; };
    constexpr i64 wide = 256, high = 128;  // worth keeping
    const i64 wanted = threads > 1 ? divide_up(3 * i64(threads), std::max<i64>(1, products)) : 1;
    rows = std::clamp<i64>(to_blocks(p.m), block, p.tile_m > block ? p.tile_m : 2 * wide);
    columns = std::clamp<i64>(to_panels(p.n), kPanelLanes, to_panels(columns));
    for (;;) {
      // Units of like size.
      down = divide_up(p.m, rows), across = divide_up(p.n, columns);
      if (down > 0) rows = std::min(rows, to_blocks(divide_up(p.m, down)));
      if (across > 0) columns = std::min(columns, to_panels(divide_up(p.n, across)));
      if (units() >= wanted || (rows <= block && columns <= kPanelLanes)) return;
      if (columns > wide || (rows <= high && columns > kPanelLanes))
        columns = to_panels(columns / 2);
      else
        rows = to_blocks(rows / 2);
    }
  }
};

// Multiply-adds, and a few more where there are few rows: memory gives an element of b in the time of some eight.
inline double work_of(const Problem& p) {
  constexpr int elements = 8;
  return static_cast<double>(p.m == 0 ? 0 : std::max(p.m, elements)) * p.n * (p.k + 1.0);
}

inline const void* moved(const void* data, i64 bytes) { return static_cast<const char*>(data) + bytes; }
inline void* moved(void* data, i64 bytes) { return static_cast<char*>(data) + bytes; }

// Rows of a that are widened before units run, so many at a time: a row-major a whose elements are not words, and that several units
// along n would each widen again: 23 % of an fp8 product of 2048.
struct WideRows {
  WideRows(const Problem& p, const Engine& engine, i64 across) {
    const Widen& widen = engine.widen[static_cast<int>(p.dtype)];
    constexpr i64 fewest = 16, usual = i64{32} << 20, most = i64{256} << 20;  // rows, bytes
    if (widen.rows == nullptr || p.a_columns || across < 2 || p.m < fewest || p.k == 0) return;
    // A line more, so that rows do not lie a power of two apart.
    const i64 row = divide_up(divide_up(p.k, widen.elements) * 4, kWideRow) * kWideRow + kWideRow;
    const i64 some = std::min<i64>(p.m, std::max<i64>(usual / row, 960));
    if (some * row <= most) bytes = row, rows = some;
  }
  i64 rows = 0, bytes = 0;  // none: a is not widened beforehand; bytes: of one
};

// A product of which a is widened beforehand.
[[nodiscard]] inline tilekiln_status run_widened(const Run& call, const Choice& choice, const Problem& whole,
                                                 i64 columns, const WideRows& wide) {
  const Engine& engine = *static_cast<const Engine*>(choice.engine);
  const auto run = engine.run[static_cast<int>(whole.dtype)];
  const auto widen = engine.widen[static_cast<int>(whole.dtype)].rows;
  constexpr i64 together = 16;  // rows of a unit
  CallMemory memory;
  TILEKILN_TRY(memory.get(call, static_cast<size_t>(wide.rows * wide.bytes)));
  char* const words = memory.as<char>();
  for (i64 first = 0; first < whole.m; first += wide.rows) {
    const int rows = static_cast<int>(std::min<i64>(wide.rows, whole.m - first));
    const void* const from = moved(whole.a, first * whole.lda * dtype_size(whole.dtype));
    TILEKILN_TRY(launch_stage(
        call, choice, whole, divide_up(rows, together), static_cast<double>(rows) * whole.k, 0, [&](i64 number, void*) {
          const i64 row = number * together;
          widen(words + row * wide.bytes, wide.bytes, moved(from, row * whole.lda * dtype_size(whole.dtype)), whole.lda,
                static_cast<int>(std::min<i64>(together, rows - row)), whole.k);
        }));
    Problem p = whole;
    p.a = words, p.lda = wide.bytes / 4, p.a_words = true, p.a_first = static_cast<int>(first);
    Problem part = p;
    part.m = rows;
    const Cut cut(part, engine, call.threads, 1, columns);
    TILEKILN_TRY(
        launch_stage(call, choice, p, cut.units(), work_of(part), engine.scratch_bytes, [&](i64 number, void* scratch) {
          Unit unit = cut.unit(part, number);
          unit.m0 += static_cast<int>(first), unit.m1 += static_cast<int>(first);
          run(p, unit, scratch);
        }));
  }
  return TILEKILN_OK;
}

// Packs b by all threads, where several units along m would each do it again: `p` is that of the panels then, which lie in `memory`.
[[nodiscard]] inline tilekiln_status share_panels(const Run& call, const Choice& choice, i64 down, Problem* p,
                                                  CallMemory* memory) {
  const PackColumns& pack = static_cast<const Engine*>(choice.engine)->pack[static_cast<int>(p->dtype)];
  constexpr i64 fewest = 3, most = i64{64} << 20;  // units, bytes: so much memory is kept for the next call
  constexpr double each = 32;                      // multiply-adds take the time of an element
  if (pack.panel == nullptr || p->b_panels != 0 || p->products != 0 || p->k == 0 || down < fewest) return TILEKILN_OK;
  const i64 count = divide_up(p->n, kPanelLanes), bytes = divide_up(p->k, pack.elements) * kPanelLanes * 4;
  if (count * bytes < pack.least || count * bytes > most) return TILEKILN_OK;
  TILEKILN_TRY(memory->get(call, static_cast<size_t>(count * bytes)));
  char* const panels = memory->as<char>();
  TILEKILN_TRY(launch_stage(call, choice, *p, count, each * p->n * p->k, 0, [&](i64 number, void*) {
    pack.panel(panels + number * bytes, *p, static_cast<int>(number * kPanelLanes));
  }));
  p->b = panels, p->b_panels = pack.elements;
  return TILEKILN_OK;
}

// The function of an engine that computes units of a product.
inline auto function_of(const Engine& engine, const Problem& p) {
  return p.products == 0 ? engine.run[static_cast<int>(p.dtype)] : engine.of_parts[p.products == 3 ? 0 : 1];
}

// One product, by the engine that was chosen.
[[nodiscard]] inline tilekiln_status run_product(const Run& call, const Choice& choice, const Problem& whole,
                                                 const Tile& tile) {
  if (__builtin_expect(!call.backend->takes_units, 0)) return launch_kernel(call, choice, Batch{whole, 1, 0, 0, 0, 0});
  const Engine& engine = *static_cast<const Engine*>(choice.engine);
  Problem p = whole;
  set_tile(tile, &p);
  const Cut cut(p, engine, call.threads, 1, tile.n);
  const WideRows wide(p, engine, cut.across);
  if (wide.rows > 0) return run_widened(call, choice, p, tile.n, wide);
  CallMemory panels;
  TILEKILN_TRY(share_panels(call, choice, cut.down, &p, &panels));
  const auto run = function_of(engine, p);
  return launch_stage(call, choice, p, cut.units(), work_of(p), engine.scratch_bytes,
                      [&](i64 number, void* scratch) { run(p, cut.unit(p, number), scratch); });
}

// Products of any sizes, by one launch: the units of all of them, numbered product after product. get(i): the i-th;
// most: columns of a unit, 0: the engine's.
template <class Get>
[[nodiscard]] tilekiln_status run_products(const Run& call, const Choice& choice, const Problem& first, size_t count,
                                           Get&& get, i64 most) {
  const Engine& engine = *static_cast<const Engine*>(choice.engine);
  const auto cut_of = [&](const Problem& p) { return Cut(p, engine, call.threads, static_cast<i64>(count), most); };
  std::vector<i64> ends(count);
  i64 units = 0;
  double work = 0;
  for (size_t i = 0; i < count; ++i) {
    const Problem p = get(i);
    ends[i] = units += cut_of(p).units();
    work += work_of(p);
  }
  const auto run = engine.run[static_cast<int>(first.dtype)];
  return launch_stage(call, choice, first, units, work, engine.scratch_bytes, [&](i64 number, void* scratch) {
    const auto i = static_cast<size_t>(std::upper_bound(ends.begin(), ends.end(), number) - ends.begin());
    const Problem p = get(i);
    run(p, cut_of(p).unit(p, number - (i == 0 ? 0 : ends[i - 1])), scratch);
  });
}

}  // namespace tilekiln::matrix
