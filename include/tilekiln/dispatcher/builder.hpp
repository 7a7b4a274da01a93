// SPDX-License-Identifier: MIT
// Builders of problems, setter by setter. A wrong value is refused where it is given, what does not go together by build():
// std::invalid_argument, "field: was X, must be Y".
#pragma once
#include "tilekiln/dispatcher/setters.hpp"

namespace tilekiln::dispatcher {

// A problem of attention, by the setters that upstream's builder has, over the fields of this tree's families.
class ProblemBuilder : public setters::ProblemSetters<ProblemBuilder> {};

// A problem of a matrix product: dimensions, dtypes, layouts and strides.
class GemmProblemBuilder : public setters::GemmSetters<GemmProblemBuilder> {
 public:
  // gemm, or another operator of products: batched_gemm, flatmm, ...
  explicit GemmProblemBuilder(std::string_view operator_name = "gemm") : GemmSetters(operator_name) {}

  // m, n and k from the shapes of a and b as they are multiplied: (m, k) and (k, n).
  GemmProblemBuilder& from_ab(int64_t a_rows, int64_t a_columns, int64_t b_rows, int64_t b_columns) {
    if (a_columns != b_rows)
      detail::refuse("k", std::to_string(b_rows) + " rows of b", std::to_string(a_columns) + ", the columns of a");
    return dimensions(a_rows, b_columns, a_columns);
  }
  // Checks the shape of out too, which must be theirs.
  GemmProblemBuilder& from_shapes(int64_t a_rows, int64_t a_columns, int64_t b_rows, int64_t b_columns,
                                  int64_t out_rows, int64_t out_columns) {
    if (out_rows != a_rows)
      detail::refuse("m", std::to_string(out_rows) + " rows of out", std::to_string(a_rows) + ", the rows of a");
    if (out_columns != b_columns)
      detail::refuse("n", std::to_string(out_columns) + " columns of out", std::to_string(b_columns) + ", those of b");
    return from_ab(a_rows, a_columns, b_rows, b_columns);
  }
  // Dtype of a and b; of out, where "" is that of a, int32 of int8, bf16 of fp8 and bf8.
  GemmProblemBuilder& dtypes(std::string_view ab, std::string_view out = "") {
    static const detail::Words known = {"fp32", "fp16", "bf16", "int8", "fp8", "bf8"};
    static const detail::Words outs = {"fp32", "fp16", "bf16", "int32"};
    detail::one_of("dtype", ab, known);
    if (!out.empty()) detail::one_of("out_dtype", out, outs);
    return put({{field::dtype, ab}, {"out_dtype", out}});
  }
  // Layouts of a, b and out, a letter each: r (a row lies together) or c (a column does), as in "rcr".
  GemmProblemBuilder& layouts(std::string_view letters) {
    const char* const names[] = {"layout_a", "layout_b", "layout_out"};
    if (letters.size() != 3) detail::refuse("layouts", std::string(letters), "three letters of r and c, as in rcr");
    for (int i = 0; i < 3; ++i) {
      if (letters[i] != 'r' && letters[i] != 'c') detail::refuse(names[i], std::string(1, letters[i]), "r or c");
      problem_.set(names[i], letters[i] == 'r' ? "row" : "column");
    }
    return *this;
  }
  // Throws std::invalid_argument: dimensions that are missing, a stride that is too short for its rows.
  Problem build() const {
    Problem built = GemmSetters::build();
    // Only gemm has a choice; the others' results are of the dtype of a.
    if (built["out_dtype"].empty() && built.operator_name() == Value("gemm")) {
      const std::string ab = built[field::dtype].text();
      built.set("out_dtype", ab == "int8" ? "int32" : ab == "fp8" || ab == "bf8" ? "bf16" : ab);
    }
    stride(built, "stride_a", "layout_a", field::m, field::k);
    stride(built, "stride_b", "layout_b", field::k, field::n);
    stride(built, "stride_out", "layout_out", field::m, field::n);
    return built;
  }

 private:
  static void stride(Problem& problem, const char* name, const char* layout, Field rows, Field columns) {
    const int64_t least = problem.number(problem[layout] == Value("row") ? columns : rows);
    const int64_t given = problem.number(name);
    if (given != 0 && given < least) detail::refuse(name, std::to_string(given), "at least " + std::to_string(least));
    if (given == 0) problem.set(name, least);
  }
};

}  // namespace tilekiln::dispatcher
