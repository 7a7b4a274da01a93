# SPDX-License-Identifier: MIT
"""The words of `tilekiln bench OPERATOR size=... axis=...` as one call: lengths, dtypes, arrays, arguments."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Callable, Iterable, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np

from .._core import shape_rules
from .._core.native import ArgumentError
from .._generated.tables import OPERATORS
from ..reference.mla import FP8_ROW, ROW
from .declaration import CALLS, Call, Form, leaves_of

LENGTHS = {
    "rows": 1024, "columns": 4096, "tokens": 1024, "experts": 64, "topk": 8, "hidden": 512, "inter": 256,
    "m": 512, "n": 512, "k": 512, "groups": 8,
    "batch": 1, "seqlen_q": 512, "seqlen_k": 512, "seqlen_new": 1, "total_q": 512, "total_k": 512,
    "nhead_q": 8, "nhead_k": 8, "hdim_q": 128, "hdim_v": 128, "pages": 32, "page_size": 16,
    "height": 28, "width": 28, "channels": 64, "vocabulary": 151936,
}  # fmt: skip
"""Default lengths, by their word."""
LENGTHS_OF = {
    "gemm_multi_d": {},
    "img2col": {"batch": 8},
    "fmha_fwd_appendkv": {"seqlen_q": 1},
    "sample": {"rows": 8},
    "batched_gemm": {"batch": 16},
    "pooling": {"batch": 8},
    "pooling_bwd": {"windows_1": 32, "windows_2": 32},
}
SHAPES = {
    "permute": (8, 64, 32, 128),
    "batched_transpose": (8, 64, 56, 56),
    "copy": (1024, 4096),
    "reduce": (1024, 4096),
    "elementwise": (1024, 4096),
    "batched_contraction": (512, 512),
}
"""Of x, where the declaration leaves its shape open."""
EXAMPLES: dict[str, Any] = {"causal": True, "dropout_p": 0.1, "softcap": 30.0, "min_seqlen_q": 1}
"""Values of arguments that an axis asks for."""
ARGUMENTS: dict[str, dict[str, Any]] = {
    "permute": {"axes": (0, 2, 1, 3)},
    "reduce": {"axes": (1,)},
    "elementwise": {"operation": "silu"},
    "img2col": {"filter": (3, 3), "padding": (1, 1)},
    "pooling": {"window": (3,), "stride": (2,), "padding": (1,)},
    "pooling_bwd": {"window": (3,), "stride": (2,), "padding": (1,), "operation": "mean"},
    "topk_softmax": {"topk": 8},
    "topk_gating": {"topk": 8},
    "moe_sorting": {"experts": 64},
}
CALLED = {
    "attention": "fmha_fwd",
    "attention_backward": "fmha_bwd",
    "decode": "fmha_fwd_splitkv",
    "matmul": "gemm",
    "linear": "gemm",
    "experts": "fused_moe",
}
"""Functions of the package that are no operators, and the operator that most of their calls are."""
FOLLOWS = ("B1", "G1", "Mb", "Rd", "Dc", "Pc", "Vec", "P", "W", "L", "V")
"""Letters whose length follows from the others, unless a word below names them."""

TOKENS, HEADS = ("Sq", "Sk", "Sn", "Ps", "Tq", "Tk"), ("H", "Hk")
"""Letters of the two dimensions that layout bhsd exchanges."""


class Settings:
    """One call of an operator as the command line says it."""

    def __init__(self, operator: str, words: Mapping[str, str]) -> None:
        if operator not in CALLS:
            called = f"; {operator} calls {CALLED[operator]}" if operator in CALLED else ""
            raise ArgumentError(_no_such("operator", operator, CALLS) + called)
        self.operator = operator
        self.call: Call = CALLS[operator]
        self.packed = operator.startswith("flatmm")
        names = {letter: word for letter, word in self.call.lengths.items() if self._free(letter, word)}
        if self.packed:
            names["N"] = "n"
            names.pop("G", None)
        self.letters = {word: letter for letter, word in names.items()}
        own = LENGTHS_OF.get(operator, {})
        self.lengths = {letter: own.get(word, LENGTHS.get(word, 64)) for letter, word in names.items()}
        self.shape: tuple[int, ...] = SHAPES.get(operator, ())
        self.dtypes: dict[str, str] = {}
        self.arguments: dict[str, Any] = dict(ARGUMENTS.get(operator, {}))
        self.strides: dict[str, int] = {}
        self.columns_first: set[str] = set()
        self.mode = ""
        self.weight: Any = None  # of flatmm, before it is packed
        self.ones: dict[str, tuple[int, ...]] = {}  # first lengths of arrays that may be shared, by array
        self.indices: dict[str, Any] = {}  # numbers of index arrays, by array, where they are not those of a bench
        self.laid: dict[str, tuple[int, ...]] = {}  # orders of dimensions in memory, by array, where not their own
        self.draw: Callable[..., Any] = standard_normal
        self.wanted = {name for name, one in self.call.arrays.items() if one.required and one.kind != "result"}
        if operator == "fmha_fwd_appendkv":
            self.wanted.add("q")
        for word, value in words.items():
            self._set(word, value)
        self._complete(words)

    # ---- what may be said
    def _free(self, letter: str, word: str) -> bool:
        if word in ("pages", "page_size"):
            return True
        if letter in FOLLOWS and not (letter == "P" and not self.packed):
            return False
        return word.isidentifier() and word not in ("max_seqlen_k", "max_blocks", "positions", "entries")

    @property
    def axes(self) -> list[str]:
        """Those that a caller sets."""
        return [axis for axis in self.call.axes if self.call.axis_choices(axis)]

    @property
    def optional(self) -> list[str]:
        """Arrays that may be asked for by name."""
        return [name for name, one in self.call.arrays.items() if not one.required and one.kind != "written"]

    def _set(self, word: str, value: str) -> None:
        array, dot, what = word.partition(".")
        if word in self.letters:
            self.lengths[self.letters[word]] = _integer(word, value, 0)
        elif word == "shape" and self.shape:
            self.shape = _integers(word, value)
        elif dot and what == "stride" and array in self.call.arrays:
            self.strides[array] = _integer(word, value, 1)
        elif dot and what == "order" and array in self.call.arrays:
            if value not in ("row", "column"):
                raise ArgumentError(f"{word}: was {value!r}, must be row or column")
            self.columns_first |= {array} if value == "column" else set()
        elif word in self.call.axes:
            self._set_axis(word, value)
        elif word == "dtype":
            self._set_first_dtype(value)
        elif word in self.call.dtype_words:
            self.arguments[word] = self.dtypes[self.call.dtype_words[word]] = value
        elif word in self.call.numbers:
            self.arguments[word] = _number(word, value, self.call.numbers[word])
        elif word in self.optional:
            if _yes(word, value):
                self._want(word)
            else:
                self.wanted.discard(word)
        else:
            known = [*self.letters, *(["shape"] if self.shape else []), *self.axes, "dtype", *self.call.numbers]
            known += self.optional
            known += [f"{name}.{what}" for name in self.call.arrays for what in ("stride", "order")]
            raise ArgumentError(_no_such(f"size, axis or argument of {self.operator}", word, known))

    def _set_first_dtype(self, value: str) -> None:
        name = next(name for name, one in self.call.arrays.items() if one.dtypes and one.required)
        known = self.call.arrays[name].dtypes
        if value not in known:
            raise ArgumentError(f"dtype: was {value!r}, must be {_listed(known)}")
        self.dtypes[name] = value

    def _set_axis(self, axis: str, value: str) -> None:
        said, choices = self.call.axes[axis], self.call.axis_choices(axis)
        if not choices:
            raise ArgumentError(f"{axis}: was {value!r}; it follows from the arrays, their lengths and order")
        if value not in choices:
            raise ArgumentError(f"{axis}: was {value!r}, must be {_listed(choices)}")
        if said == "form":
            self.mode = value
        elif isinstance(said, str):
            if said not in self.call.numbers:
                if value == "yes":
                    self._want(said)
            elif isinstance(self.call.numbers[said], tuple):
                self.arguments[said] = value
            elif value == "yes":
                self.arguments[said] = EXAMPLES.get(said, True)
        elif any(isinstance(one, dict) for one in said.values()):
            for name, dtype in next(dtypes for leaf, dtypes in leaves_of(said) if leaf == value).items():
                self.dtypes[name] = dtype
                for word, result in self.call.dtype_words.items():
                    if result == name:
                        self.arguments[word] = dtype
        elif value != "none":
            sources = [said[value]] if isinstance(said[value], str) else said[value]
            for name in sources if all(one in self.call.arrays for one in sources) else sources[:1]:
                self._want(name)

    def _want(self, name: str) -> None:
        """An array, or an argument that an array or an axis needs."""
        if name not in self.call.arrays:
            self.arguments.setdefault(name, EXAMPLES.get(name, True))
            return
        one = self.call.arrays[name]
        if one.kind == "result":
            if one.asked_by:
                self.arguments[one.asked_by] = True
        else:
            self.wanted.add(name)
        if one.needs and one.needs not in self.wanted and not self._required(one.needs):
            self._want(one.needs)

    def _required(self, name: str) -> bool:
        return name in self.call.arrays and self.call.arrays[name].required

    # ---- what follows
    def _complete(self, words: Iterable[str]) -> None:
        lengths = self.lengths
        if self.operator == "fmha_batch_prefill":
            self.wanted |= {"seqlen_k", "block_table"} if "kv_indptr" not in self.wanted else set()
            if "kv_indptr" in self.wanted:
                self.wanted |= {"kv_page_indices", "kv_last_page_lens"}
        if self.form.mode == "group":
            self.wanted |= {"seqstart_q", "seqstart_k" if "Tk" in self.form.shapes["k"].split() else "seqlen_k"}
        if "block_table" in self.wanted and "seqlen_k" in self.call.arrays:
            self.wanted.add("seqlen_k")
        if "Bc" in lengths and "batch_cache" not in words:
            lengths["Bc"] = lengths["B"]
        if self.operator in ("fmha_fwd", "fmha_bwd"):  # a cache is longer than what asks it
            for q, k, letter_q, letter_k in (("seqlen_q", "seqlen_k", "Sq", "Sk"), ("total_q", "total_k", "Tq", "Tk")):
                if q in words and k not in words:
                    lengths[letter_k] = lengths[letter_q]
        if "nhead_q" in words and "nhead_k" not in words and "Hk" in lengths:
            lengths["Hk"] = lengths["H"]
        if "hdim_q" in words and "hdim_v" not in words and "Dv" in lengths:
            lengths["Dv"] = lengths["D"]
        for one in ("B", "G"):
            if one in lengths:
                lengths[f"{one}1"] = lengths[one] + 1
        if "P" in lengths and "B" in lengths:
            if lengths["P"] < lengths["B"]:
                raise ArgumentError(f"pages: was {lengths['P']}, must be at least {lengths['B']}, the batch")
            lengths["Mb"] = lengths["P"] // lengths["B"]
        if "rotary_cos" in self.wanted:
            lengths["R"], lengths["Rd"] = self.keys, lengths["D"] // 2
            self.wanted.add("rotary_sin")
        if self.operator == "rotary":
            lengths["L"], lengths["W"] = lengths["S"] + int(self.arguments.get("start", 0)), lengths["D"] // 2
        if self.operator == "fmha_mla_decode":
            fp8 = self.dtypes.get("cache") == "fp8"
            if fp8 and "hdim_q" not in words:
                lengths["D"] = ROW
            lengths["W"] = FP8_ROW if fp8 else lengths["D"]
        if self.operator == "fused_moe" and "gate_up_rows" not in words:
            lengths["N"] = 2 * lengths["I"]
        if self.operator in ("moe_smoothquant", "fused_moe") and lengths["K"] > lengths["E"]:
            raise ArgumentError(f"topk: was {lengths['K']}, must be at most {lengths['E']}, the experts")
        for name in (*self.strides, *self.columns_first):
            if name not in self.wanted or (self.packed and name == "b"):
                listed = _listed(sorted(self.wanted))
                raise ArgumentError(f"{name}: has no stride or order here, must be one of {listed}")

    @property
    def form(self) -> Form:
        """The form of the operator that takes the arrays of this call."""
        choosing = {name for form in self.call.forms for name in form.given} & self.wanted
        fits = [form for form in self.call.forms if set(form.given) == choosing and self.mode in ("", form.mode)]
        return fits[0]

    @property
    def paged(self) -> bool:
        return "P" in self.form.shapes.get("k", "").split()

    @property
    def keys(self) -> int:
        """Of the longest sequence of attention."""
        if self.paged:
            return self.lengths["Mb"] * self.lengths["Ps"]
        return self.lengths["Sk"] if "Sk" in self.form.shapes["k"].split() else self.lengths["Tk"]

    def dtype(self, name: str) -> str:
        """Of an array."""
        if name not in self.dtypes:
            one = self.call.arrays[name]
            like = self.dtype(one.dtype_of) if one.dtype_of else ""
            choices = (one.when or {}).get(like)
            self.dtypes[name] = choices[0] if choices else like or one.dtypes[0]
        return self.dtypes[name]

    def shape_of(self, name: str) -> tuple[int, ...]:
        letters = self.form.shapes.get(name)
        if letters is None:
            rule = next((one.shape_by for one in OPERATORS[self.operator].results if one.shape_by), "")
            if rule.endswith("state"):  # of each batch: cu_seqlens is absent here
                arrays = {"q", "v", "x", "weight"} & {*self.form.shapes}
                there = {array: SimpleNamespace(shape=self.shape_of(array)) for array in arrays}
                return tuple(getattr(shape_rules, rule)({**there, "cu_seqlens": None}))
            return self.shape if name == "x" and self.shape else (1,)
        order = letters.split()
        if self.arguments.get("layout") == "bhsd":
            for at, pair in enumerate(itertools.pairwise(order)):
                if pair[0] in TOKENS and pair[1] in HEADS:
                    order[at : at + 2] = pair[1], pair[0]
        shape = tuple(int(one) if one.isdecimal() else self._length(one) for one in order)
        first = self.ones.get(name, ())
        return (*first, *shape[len(first) :])

    def _length(self, letter: str) -> int:
        if self.call.lengths.get(letter) == "max_seqlen_k":
            return self.keys
        return self.lengths[letter]

    def sizes_in_words(self) -> str:
        """Sizes and first dtype, for a line of the report."""
        used = {one for name in self.wanted for one in self.form.shapes.get(name, "").split()}
        shown = [
            f"{word}={self.lengths[letter]}" for word, letter in self.letters.items() if letter in used or self.packed
        ]
        if self.shape:
            shown = [f"shape={'x'.join(map(str, self.shape))}"]
        return " ".join(shown)


def standard_normal(random: np.random.Generator, shape: tuple[int, ...]) -> Any:
    """Numbers of the arrays of a call, unless `draw` is another function."""
    return random.standard_normal(shape, np.float32)


def _listed(words: Iterable[str]) -> str:
    *most, last = map(str, words)
    return f"{', '.join(most)} or {last}" if most else last


def _no_such(what: str, name: str, known: Iterable[str]) -> str:
    names = list(known)
    near = difflib.get_close_matches(name, names, 1)
    hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(dict.fromkeys(names))}"
    return f"there is no {what} {name!r}; {hint}"


def _integer(word: str, value: str, least: int) -> int:
    if not value.isdecimal() or int(value) < least or int(value) >= 2**31:
        raise ArgumentError(f"{word}: was {value!r}, must be an integer of {least} or more")
    return int(value)


def _integers(word: str, value: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in value.split("x"))
    except ValueError:
        raise ArgumentError(f"{word}: was {value!r}, must be integers with x between them, such as 8x64x56") from None


def _yes(word: str, value: str) -> bool:
    if value not in ("yes", "no"):
        raise ArgumentError(f"{word}: was {value!r}, must be yes or no")
    return value == "yes"


def _number(word: str, value: str, kind: Any) -> Any:
    if kind == "flag":
        return _yes(word, value)
    if kind in ("dims", "int32", "uint64"):
        return _integers(word, value)
    if isinstance(kind, tuple) or kind == "instance":
        return int(value) if value.isdecimal() else value
    try:
        return int(value) if kind == "int" else float(value)
    except ValueError:
        raise ArgumentError(f"{word}: was {value!r}, must be a number") from None
