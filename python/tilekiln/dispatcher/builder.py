# SPDX-License-Identifier: MIT
"""Builders of problems: attention's is declared (kernels/dispatcher.yaml), a product's has shapes besides."""

from __future__ import annotations

from ._setters import GemmSetters, ProblemSetters
from .problem import Problem, at_least, one_of, refusal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Self

_MATRICES = (
    ("stride_a", "layout_a", "m", "k"),
    ("stride_b", "layout_b", "k", "n"),
    ("stride_out", "layout_out", "m", "n"),
)
_LAYOUTS = {"r": "row", "c": "column"}
_DTYPES = ("fp32", "fp16", "bf16", "int8", "fp8", "bf8")
_OUT_DTYPES = ("", "fp32", "fp16", "bf16", "int32")
_OUT_OF = {"int8": "int32", "fp8": "bf16", "bf8": "bf16"}


class ProblemBuilder(ProblemSetters):
    """A problem of attention, by upstream's setters over the fields of this tree's families."""

    __slots__ = ()


class GemmProblemBuilder(GemmSetters):
    """A problem of a matrix product: dimensions, dtypes, layouts and strides.

    operator: gemm, or another operator of products: batched_gemm, flatmm, ...
    """

    __slots__ = ()

    def __init__(self, operator: str = "gemm") -> None:
        super().__init__()
        self._values["operator"] = operator

    def from_ab(self, a_rows: int, a_columns: int, b_rows: int, b_columns: int) -> Self:
        """From the shapes of a and b as they are multiplied: (m, k) and (k, n). ArgumentError where k differs."""
        if a_columns != b_rows:
            raise refusal("k", f"{b_rows} rows of b", f"{a_columns}, the columns of a")
        return self.dimensions(a_rows, b_columns, a_columns)

    def from_shapes(
        self, a_rows: int, a_columns: int, b_rows: int, b_columns: int, out_rows: int, out_columns: int
    ) -> Self:
        """With the shape of out; ArgumentError where it is not theirs."""
        if out_rows != a_rows:
            raise refusal("m", f"{out_rows} rows of out", f"{a_rows}, the rows of a")
        if out_columns != b_columns:
            raise refusal("n", f"{out_columns} columns of out", f"{b_columns}, those of b")
        return self.from_ab(a_rows, a_columns, b_rows, b_columns)

    def dtypes(self, ab: str, out: str = "") -> Self:
        """Of a and b; of out, where "" is that of a, int32 of int8, bf16 of fp8 and bf8. ArgumentError for others."""
        if ab not in _DTYPES:
            raise one_of("dtype", ab, _DTYPES)
        if out not in _OUT_DTYPES:
            raise one_of("out_dtype", out, _OUT_DTYPES[1:])
        self._values["dtype"] = ab
        self._values["out_dtype"] = out or None
        return self

    def layouts(self, letters: str) -> Self:
        """Of a, b and out, a letter each: r (a row lies together) or c (a column does). ArgumentError for others."""
        if len(letters) != len(_MATRICES):
            raise refusal("layouts", letters, "three letters of r and c, as in rcr")
        for (_, layout, _, _), letter in zip(_MATRICES, letters, strict=True):
            if letter not in _LAYOUTS:
                raise refusal(layout, letter, "r or c")
            self._values[layout] = _LAYOUTS[letter]
        return self

    def build(self) -> Problem:
        """The problem. ArgumentError for dimensions that are missing, and a stride that is too short for its rows."""
        problem = super().build()
        values = problem._values
        if values.get("out_dtype") is None and values["operator"] == "gemm":
            values["out_dtype"] = _OUT_OF.get(str(values["dtype"]), values["dtype"])
        for stride, layout, rows, columns in _MATRICES:
            least = problem.number(columns if values[layout] == "row" else rows)
            values[stride] = at_least(stride, problem.number(stride) or least, least)
        return problem
