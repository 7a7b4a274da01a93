# SPDX-License-Identifier: MIT
"""Kernel sets: the kernels that a program declares, for a build to make and for a registry to hold.

    decode = (
        KernelSet("decode", about="Our decoder's kernels.")
        .add(Signature("fwd").dtype("bf16").hdim(128).mask("causal").lse("any"), Algorithm(tile_m0=64))
        .add(Signature("fwd_splitkv").dtype("bf16").hdim(128).paged_kv("any"))
    )
    decode.write("decode.yaml")  # scons kernel_set=decode.yaml builds its library

TILEKILN_KERNEL_SET of C++ has the same words and gives the same YAML. A signature names what callers can see, in CK's
words or the axes'. An axis that it does not name is off (no, none) or as usual (mode=batch, row-major); dtype, head
dims and others that are never off must be named. "any", "*" and -1 name every value; so does an empty algorithm.
"""

from __future__ import annotations

import sys

from ._fields import (
    AUTO_FILL,
    AXES,
    BACKWARD_AXES,
    BACKWARD_DROPOUT,
    BACKWARD_FAMILIES,
    FAMILY_HEADS,
    FAMILY_PREFIX,
    PRODUCT_AXES,
    SIGNATURES,
    USUAL,
    WORDS,
)
from .choice import Choice
from .instance import FunctionInstance
from .key import Key
from .problem import one_of
from .words import OFF, no_such, refusal, value_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
    from collections.abc import Callable
    from typing import Any, NoReturn, Self

    from .._binding import ArgumentError
    from ..api.library import Library
    from .instance import Instance
    from .libraries import LibraryInstance
    from .words import Value

ANY = "any"
FAMILIES = {word: str(said["stage"]) for word, said in WORDS["kernel_family"].items()}
"""Families of attention, by CK's words for them."""


def place() -> str:
    """file:line of the program that declares."""
    frame = sys._getframe(1)
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith("tilekiln.dispatcher"):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def wrong(refused: ArgumentError) -> ArgumentError:
    """A refusal with the place of what is refused."""
    from .errors import FileError

    return FileError(f"{place()}: {refused}")


def or_any(value: Any) -> Value:
    """A value, "any" for what means that."""
    return ANY if value in (-1, "*") else value_of(value)


def _setter(axis: str, about: str, by: str = "set") -> Callable[..., Any]:
    """The setter of one axis, with its docstring; a feature is wanted unless told otherwise."""

    def setter(self: Any, value: Any = True) -> Any:
        return getattr(self, by)(axis, value)

    setter.__doc__ = about
    return setter


class Signature:
    """family: fwd, fwd_splitkv, bwd_dq_dk_dv, ..., or a family by its own name, such as gemm."""

    __slots__ = ("family", "values")

    def __init__(self, family: str = "fwd") -> None:
        self.family = family
        self.values: dict[str, Value] = {}
        bare = family.removeprefix(FAMILY_PREFIX)
        if bare in FAMILIES:
            self.family = FAMILIES[bare]
        elif family.startswith(FAMILY_HEADS):
            raise wrong(one_of("kernel_family", bare, FAMILIES))
        self.values.update(SIGNATURES.get(self.family, {}))

    def set(self, axis: str, value: Any) -> Self:
        """Any axis by its name."""
        self.values[axis] = or_any(value)
        return self

    def _word(self, setter: str, axis: str, value: Any) -> Self:
        value, words = or_any(value), WORDS[setter]
        if value != ANY:
            if str(value) not in words:
                raise wrong(one_of(setter, value, words))
            value = words[str(value)][axis]
        return self.set(axis, value)

    dtype = _setter("dtype", "fp32, fp16, bf16, ...")
    mode = _setter("mode", "batch or group.")

    def vlayout(self, letter: str) -> Self:
        """r or c. Kernels of c are there for none of the operators of attention."""
        return self.set("v_layout", {"r": "row", "c": "column"}.get(letter, letter))

    def hdim(self, q: int | str, v: int | str | None = None) -> Self:
        """Head dims; that of v is that of q where it is not given."""
        return self.set("hdim_q", q).set("hdim_v", q if v is None else v)

    def mask(self, value: str) -> Self:
        """no_mask, causal, window_generic, ..."""
        return self._word("mask_type", "mask", value)

    def bias(self, value: str) -> Self:
        """no_bias, elementwise or alibi."""
        return self._word("bias_type", "bias", value)

    def qscale(self, value: str) -> Self:
        """no_scale, pertensor, blockscale or kv_blockscale."""
        return self._word("qscale_type", "qscale", value)

    def rope(self, value: str) -> Self:
        """none, interleaved or half_rotated."""
        return self._word("rope_type", "rope", value)

    lse = _setter("lse", "Whether the log-sum-exp of every row is written.")
    logits = _setter("softcap", "Whether scores are capped by a tanh.")
    paged_kv = _setter("paged", "Whether keys and values lie in pages.")
    fp8_static_quant = _setter("fp8_static_quant", "Static quantisation of fp8, which has no kernels here.")
    skip = _setter("skip_min_seqlen_q", "Whether sequences of at most min_seqlen_q queries are left to another call.")
    sink = _setter("sink", "Whether attention sinks are honoured.")
    dbias = _setter("dbias", "Of the backward: whether the gradient of the bias is written.")
    deterministic = _setter("deterministic", "Of the backward: whether the bits are the same every time.")

    def dropout(self, wanted: bool | str = True) -> Self:
        """Whether probabilities are dropped."""
        backward = self.family in BACKWARD_FAMILIES
        return self.set("dropout", BACKWARD_DROPOUT["dropout"] if backward and wanted is True else wanted)

    def store_randval(self, wanted: bool = True) -> Self:
        """Of the backward: whether random bytes are stored; a forward kernel with dropout stores on request."""
        stores = wanted and self.family in BACKWARD_FAMILIES
        return self.set("dropout", BACKWARD_DROPOUT["store_randval"]) if stores else self

    def kv_cache(self, layout: str, lookup: str, page_size: int | str = ANY) -> Self:
        """vectorized or linear; vllm or sglang; tokens of a page."""
        self._word("layout", "layout", layout)
        self._word("lookup", "lookup", lookup)
        return self.set("page_size", page_size)


_PLACES = [f"{letter}{at}" for at in range(3) for letter in "mnk"]
_LENGTHS = (3, 6, 9)
_NAMED = frozenset(["tile_m", "tile_n", "tile_k", "tile_k0max", *(f"{kind}_{at}" for kind in ("tile", "wave", "warp")
                    for at in _PLACES)])  # fmt: skip


class Algorithm:
    """Numbers by name: Algorithm(tile_m0=64, wave_m0=4, warp_k1=16); what takes several has a setter. 0 is any."""

    __slots__ = ("values",)

    def __init__(self, **numbers: int) -> None:
        self.values: dict[str, Value] = {}
        for name, number in numbers.items():
            if name not in _NAMED:
                raise wrong(one_of("algorithm", name, sorted(_NAMED)))
            self._number(name, number)

    def _number(self, name: str, number: int) -> Self:
        if not isinstance(number, int) or number < -1:
            raise wrong(refusal(name, number, "at least 1, or 0 or -1 for any"))
        self.values[name] = number if number > 0 else None
        return self

    def set(self, axis: str, value: Any) -> Self:
        """Any axis of an algorithm by its name: tile_q, schedule, tile_m0, ..."""
        self.values[axis] = value_of(value)
        return self

    def tile(self, m0: int, n0: int, k0: int = 0, n1: int = 0, k1: int = 0, k0max: int = 0) -> Self:
        """Queries, keys, head dims of q a step; head dims of v, keys of the second; padded head dims."""
        names = ("tile_m0", "tile_n0", "tile_k0", "tile_n1", "tile_k1", "tile_k0max")
        for name, number in zip(names, (m0, n0, k0, n1, k1, k0max), strict=True):
            self._number(name, number)
        return self

    def tile_mnk(self, m: int, n: int, k: int) -> Self:
        """Rows and columns of a product's block, and what it takes of k at once."""
        return self._number("tile_m", m)._number("tile_n", n)._number("tile_k", k)

    def wave(self, *numbers: int) -> Self:
        """Waves of a block along each dimension of each product: 3, 6 or 9 numbers."""
        return self._shape("wave", numbers)

    def warp(self, *numbers: int) -> Self:
        """Rows, columns and depth that one wave multiplies at once, of 1, 2 or 3 products: 3, 6 or 9 numbers."""
        return self._shape("warp", numbers)

    def _shape(self, kind: str, numbers: tuple[int, ...]) -> Self:
        if len(numbers) not in _LENGTHS:
            raise wrong(refusal(kind, f"{len(numbers)} numbers", "3, 6 or 9"))
        for place, number in zip(_PLACES, numbers, strict=False):
            self._number(f"{kind}_{place}", number)
        return self

    def padding(self, s: bool, sk: bool, d: bool, dv: bool) -> Self:
        """Whether seqlen_q, seqlen_k, hdim_q and hdim_v may be ragged: no multiples of the tile."""
        return self.set("pad_s", s).set("pad_sk", sk).set("pad_d", d).set("pad_dv", dv)

    def alignments(self, q: int, v: int) -> Self:
        """Numbers that head dims of q and k, and of v, are multiples of, where the kernel pads none."""
        return self._number("hdim_q_alignment", q)._number("hdim_v_alignment", v)

    pipeline = _setter("pipeline", "qlanes, dlanes, ...; of a GPU qr, qr_async, ...")
    constraint = _setter("constraint", "A word of yours in the key.")
    block_per_cu = _setter("block_per_cu", "-1 leaves it to the pipeline.")
    selection_rank = _setter("selection_rank", "Lower is taken first.")
    num_wave_groups = _setter("num_wave_groups", "Groups of waves of a block.", "_number")
    max_splits_log2 = _setter("max_splits_log2", "The most splits, as a power of two.", "_number")
    max_seq_len_q = _setter("max_seq_len_q", "The most queries.", "_number")
    trload = _setter("trload", "Whether a GPU transposes as it loads.")

    def auto_fill(self) -> Self:
        """Gives what was left out by what was said: n1 is n0, k1 and k0max are k0, alignments are k0max."""
        for to, of in AUTO_FILL:
            have, want = self.values.get(to), self.values.get(of)
            if not (isinstance(have, int) and have > 0) and isinstance(want, int) and want > 0:
                self.values[to] = want
        return self

    def in_axes(self, family: str) -> dict[str, Value]:
        """In the words of the family's axes; those that no axis has stay CK's. FileError for two values of one axis."""
        axes = BACKWARD_AXES if family in BACKWARD_FAMILIES else AXES if family in FAMILIES.values() else PRODUCT_AXES
        said = [(axes.get(word, word), value) for word, value in self.values.items() if value is not None]
        pads = [word.removeprefix("pad_") for word, value in said if word.startswith("pad_") and value not in OFF]
        if any(word.startswith("pad_") for word, _ in said):
            said.append(("pads", f"p{''.join(pads)}" if pads else "npad"))
        values: dict[str, Value] = {}
        for axis, value in said:
            if axis.startswith("pad_"):
                continue
            own = "auto" if axis == "occupancy" and value == -1 else value
            if values.setdefault(axis, own) != own:
                two = f"{values[axis]} and {own}"
                raise wrong(refusal(axis, two, "one of them: two words of the algorithm name this axis"))
        return values


class Declaration:
    """One kernel, or several where a word is any. place: file:line, and which kernel of the set it is."""

    __slots__ = ("algorithm", "place", "signature", "target")

    def __init__(self, signature: Signature, algorithm: Algorithm, target: str, place: str) -> None:
        self.signature, self.algorithm, self.target, self.place = signature, algorithm, target, place

    def meets(self, key: Key) -> bool:
        """Whether a kernel is one of those declared."""
        if key.family != self.signature.family or (self.target != ANY and self.target != key.target):
            return False
        asked = self.signature.values
        for axis in {**asked, **key.signature}:
            want, have = asked.get(axis), key.signature.get(axis)
            if want in (ANY, have):
                continue
            usual = USUAL.get(axis)
            if (want not in OFF and want != usual) or (have not in OFF and have != usual):
                return False
        # A word that says nothing of this target's kernels has no effect there.
        said = self.algorithm.in_axes(key.family).items()
        return all(key.algorithm.get(axis) in (None, value) for axis, value in said)


class KernelSet:
    """The kernels of a name."""

    def __init__(self, name: str, about: str = "") -> None:
        self.name, self.about = name, about
        self.declarations: list[Declaration] = []

    def __len__(self) -> int:
        return len(self.declarations)

    def add(self, signature: Signature, algorithm: Algorithm | None = None, target: str = ANY) -> Self:
        """target: cpu-avx512, ck-gfx942 (or gfx942), ...; "*" or "any": what the build is for.

        ArgumentError for anything but a Signature, and an algorithm that says two values of one axis.
        """
        if not isinstance(signature, Signature):
            raise wrong(refusal("signature", repr(signature), "a Signature"))
        at = f"{place()}: kernel set {self.name}, kernel {len(self) + 1}"
        of = ANY if target in ("*", "", ANY) else f"ck-{target}" if target.startswith("gfx") else target
        algorithm = algorithm or Algorithm()
        algorithm.in_axes(signature.family)
        self.declarations.append(Declaration(signature, algorithm, of, at))
        return self

    def merge(self, other: KernelSet) -> Self:
        """The declarations of another as well."""
        self.declarations += other.declarations
        return self

    @property
    def needs_expansion(self) -> bool:
        """Whether a declaration stands for several kernels."""
        return any(
            one.target == ANY or one.algorithm.values.get("pipeline") is None or ANY in one.signature.values.values()
            for one in self.declarations
        )

    def to_yaml(self) -> str:
        """The set as a build reads it, with the place of each declaration, which errors name."""
        from json.encoder import encode_basestring as quoted

        lines = [f"kernel_set: {self.name}", f"about: {quoted(self.about or f'Kernels of the set {self.name}.')}"]
        lines.append("kernels:" if self.declarations else "kernels: []")
        for one in self.declarations:
            lines.append(f"  - family: {one.signature.family}")
            asked = {
                axis: value for axis, value in one.signature.values.items()
                if value not in OFF and value != USUAL.get(axis)
            }  # fmt: skip
            for word, values in (("signature", asked), ("algorithm", one.algorithm.in_axes(one.signature.family))):
                if values:
                    lines.append(f"    {word}: {{{', '.join(f'{axis}: {value}' for axis, value in values.items())}}}")
            if one.target != ANY:
                lines.append(f"    target: {one.target}")
            lines.append(f"    declared: {quoted(one.place)}")
        return "\n".join([*lines, ""])

    def write(self, path: str | os.PathLike[str]) -> None:
        """Writes the kernel set to a YAML file, as `scons kernel_set=PATH` takes it."""
        with open(path, "w", encoding="utf-8") as file:
            file.write(self.to_yaml())

    def of(self, library: Library) -> list[LibraryInstance]:
        """The kernels of a library that it declares, and those that run only for them, in plan order.

        FileError, file:line, for a word that the library's families do not have and a declaration that no kernel meets.
        """
        from .libraries import instances_of, operators_of

        every = instances_of(library, usable_only=True)
        targets, families = {one.key.target for one in every}, library.manifest["families"]
        taken: dict[int, LibraryInstance] = {}
        for declared in self.declarations:
            _check(declared, families)
            met = [one for one in every if declared.meets(one.key)]
            if not met and (declared.target == ANY or declared.target in targets):
                absent = "has no kernel of it; `scons kernel_set=` builds what is declared"
                _fail(declared, f"library {library.receipt} {absent}")
            taken.update((one.number, one) for one in met)
        main = {declared.signature.family for declared in self.declarations}
        stages = [of for of in operators_of(library).values() if of.main in main]
        companions = {family for of in stages for family in of.families if family != of.main}
        return [one for one in every if one.number in taken or one.key.family in companions]

    def listing(self) -> list[Instance]:
        """Every declaration as a kernel without code, to plan for a machine that is elsewhere: any answers all."""
        return [_listed(one) for one in self.declarations]


def _fail(declared: Declaration, message: str) -> NoReturn:
    from .errors import FileError

    raise FileError(f"{declared.place}: {message}")


def _check(declared: Declaration, families: dict[str, dict[str, list[str]]]) -> None:
    family = declared.signature.family
    if family not in families:
        _fail(declared, no_such("family", family, families))
    for axis, value in declared.signature.values.items():
        if axis not in families[family]["signature"] and value not in OFF and value != USUAL.get(axis):
            _fail(declared, no_such(f"axis of {family}", axis, families[family]["signature"]))


def _listed(declared: Declaration) -> Instance:
    asked, numbers = declared.signature.values, declared.algorithm.values
    signature: dict[str, Value] = {axis: None if value == ANY else value for axis, value in asked.items()}
    holds = [axis for axis in ("hdim_q", "hdim_v") if isinstance(signature.get(axis), int)]
    algorithm: dict[str, Value] = {word: value for word, value in numbers.items() if value is not None}
    rows, rank = algorithm.get("tile_m0"), algorithm.get("selection_rank")
    fit = [("seqlen_q", "tile_m0", rows)] if isinstance(rows, int) else []
    choice = Choice(holds, fit, rank=rank if isinstance(rank, int) else 0)
    target = "" if declared.target == ANY else declared.target
    return FunctionInstance(Key.of(declared.signature.family, signature, algorithm, target, ""), None, choice)
