# SPDX-License-Identifier: MIT
"""A problem: what one call asks for. Its signature, its sizes, and what the kernel will be told at run time."""

from __future__ import annotations

from ._fields import DETAILS, SIZES, USUAL, VARIABLE_SEQLEN_K
from .words import OFF, listed, refusal, text, value_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import Any, ClassVar, Self

    from .._binding import ArgumentError
    from .words import Value

UNASKED = DETAILS | SIZES
"""Fields that ask for no feature."""


class Problem:
    """The values of fields, by name: `problem["hdim_q"]` is a number, a word such as "bf16" or "yes", or None.

        Problem("fmha_fwd", dtype="bf16", hdim_q=64, hdim_v=64, batch=1, nhead_q=8, nhead_k=8, seqlen_q=9, seqlen_k=9)

    takes any fields and checks none; `ProblemBuilder` and `GemmProblemBuilder` do. operator: "fmha_fwd", "gemm". The
    family is that of the main stage until somebody asks for another.
    """

    __slots__ = ("_values",)
    _values: dict[str, Value]

    def __init__(self, operator: str, **fields: Any) -> None:
        self._values = {"operator": operator, "family": operator}
        for name, value in fields.items():
            self._values[name] = value_of(value)

    @classmethod
    def of(cls, values: dict[str, Value]) -> Problem:
        """The problem of values that are in order; it keeps them."""
        made = cls.__new__(cls)
        made._values = values
        return made

    def set(self, field: str, value: Any) -> Self:
        """Any field, an axis of a family among them."""
        self._values[field] = value_of(value)
        return self

    def copy(self) -> Problem:
        """Another that says the same."""
        return Problem.of(self._values.copy())

    def __getitem__(self, field: str) -> Value:
        return self._values.get(field)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Problem) and dict(self) == dict(other)

    __hash__ = None  # type: ignore[assignment]  # it can change

    def __iter__(self) -> Iterator[tuple[str, Value]]:
        """Fields that say something, by name."""
        return iter(sorted((name, value) for name, value in self._values.items() if value is not None))

    def number(self, field: str) -> int:
        """The number of a field; 0 where it has none."""
        value = self._values.get(field)
        return value if isinstance(value, int) else 0

    @property
    def operator(self) -> str:
        """Name of the operator that is called."""
        return str(self._values["operator"])

    @property
    def family(self) -> str:
        """The stage that is asked for."""
        return str(self._values["family"])

    @property
    def effective_max_seqlen_q(self) -> int:
        """max_seqlen_q, or seqlen_q where that is not given."""
        return max(self.number("max_seqlen_q"), 0) or self.number("seqlen_q")

    @property
    def effective_max_seqlen_k(self) -> int:
        """max_seqlen_k, or seqlen_k where that is not given."""
        return max(self.number("max_seqlen_k"), 0) or self.number("seqlen_k")

    @property
    def has_variable_seqlen_k(self) -> bool:
        """Whether sequences have keys of different lengths."""
        return any(self._values.get(field) not in OFF for field in VARIABLE_SEQLEN_K)

    @property
    def num_ops(self) -> int:
        """Multiplications and additions, without what a mask hides.

        Attention: 2 batch nhead_q seqlen_q seqlen_k (hdim_q + hdim_v). A product: 2 batch m n k. A convolution: 2 batch
        groups channels outputs pixels taps. 0 when a size is not positive.
        """

        def size(field: str) -> int:
            return max(self.number(field), 0)

        if "m" in self._values:
            batch = 1 if self._values.get("batch") is None else size("batch")
            return 2 * batch * size("m") * size("n") * size("k")
        if "taps" in self._values:
            return (
                2 * size("batch") * size("groups") * size("channels") * size("outputs") * size("pixels") * size("taps")
            )
        lengths = max(self.effective_max_seqlen_q, 0) * max(self.effective_max_seqlen_k, 0)
        return 2 * size("batch") * size("nhead_q") * lengths * (size("hdim_q") + size("hdim_v"))

    def canonical_key(self) -> str:
        """For caches: every field that says something but the sizes, by name, each with 0x1f after it.

        Two problems have one key exactly when the same kernels answer them, sizes apart.
        """
        return "".join(
            f"{name}={value}\x1f" for name, value in self
            if name not in SIZES and value not in OFF and USUAL.get(name) != value
        )  # fmt: skip

    def __str__(self) -> str:
        """In the language of selections, sizes too."""
        fields = [f"{name}={value}" for name, value in self if name not in ("operator", "family")]
        return " ".join([self.operator, *fields])

    def __repr__(self) -> str:
        return f"<tilekiln.dispatcher.Problem {self}>"


class Builder:
    """Base of the builders: setters return the builder, `build` the problem."""

    __slots__ = ("_values",)
    BEGINS: ClassVar[Mapping[str, Value]]

    def __init__(self) -> None:
        self._values: dict[str, Any] = dict(self.BEGINS)

    def set(self, field: str, value: Any) -> Self:
        """Any field by name: min_seqlen_q, rotary_dim, has_block_table, is_gappy, an axis of a family."""
        self._values[field] = value_of(value)
        return self


def at_least(name: str, number: Any, least: int) -> int:
    """An integer of at least `least`. ArgumentError."""
    import operator

    try:
        if isinstance(number, bool):
            raise TypeError
        made = operator.index(number)
    except TypeError:
        raise refusal(name, repr(number), f"an integer of at least {least}") from None
    if made < least:
        raise refusal(name, made, f"at least {least}")
    return made


def word_of(name: str, word: str, words: Mapping[str, Mapping[str, Value]]) -> Mapping[str, Value]:
    """Values that a word of a setter sets. ArgumentError."""
    found = words.get(word)
    if found is None:
        raise one_of(name, word, words)
    return found


def missing(values: Mapping[str, Value], *required: tuple[str, str, str]) -> ArgumentError:
    """The refusal of a problem that lacks a field: of the first of (field, its name for people, what it must be)."""
    name, must = next((name, must) for field, name, must in required if not values.get(field))
    return refusal(name, "not given", must)


def one_of(name: str, word: object, words: Iterable[str]) -> ArgumentError:
    """The refusal of a word that is none of those there are."""
    from .._core.language import nearest

    every = list(words)
    near = nearest(str(word), every)
    return refusal(name, word, listed(every) + (f"; did you mean {near[0]}?" if near else ""))


__all__ = ["Builder", "Problem", "at_least", "missing", "one_of", "refusal", "text", "value_of", "word_of"]
