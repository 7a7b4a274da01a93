# SPDX-License-Identifier: MIT
"""CK's rules of a kernel: what its dispatcher accepts of one that people write in CK's words.

kernels/backends/ck/rules.yaml has what it knows of GPUs. On a CPU the same words are held to these rules and change
nothing (`UNUSED`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec
from msgspec import Struct

from codegen.schema import typed
from codegen.schema.errors import CodegenError, no_such
from codegen.schema.tree import Tree
from codegen.schema.yaml_io import Document

FILE = "kernels/backends/ck/rules.yaml"
UNUSED = ("wave", "warp", "pipeline", "block_per_cu", "num_wave_groups", "scheduler")
"""Words of a kernel that have no effect on a CPU, where a tile is a cache block and an engine has one schedule."""
_MFMA_STEP = 8
_COMBINE_BN1 = 32
_BWD_MAIN = "bwd_dq_dk_dv"


class _Arch(Struct, frozen=True, forbid_unknown_fields=True):
    dtypes: list[str]
    pipelines: list[str]
    cdna: bool = False
    trload: bool = False
    v3: bool = False


class _Dtypes(Struct, frozen=True, forbid_unknown_fields=True):
    forward: list[str]
    backward: list[str]


class RulesFile(Struct, frozen=True, forbid_unknown_fields=True):
    arches: dict[str, _Arch]
    families: list[str]
    dtypes: _Dtypes
    trload_hdims: list[int]


class Kernel(Struct, frozen=True, forbid_unknown_fields=True):
    """A kernel in CK's words. `tile` has six numbers (m0, n0, k0, n1, k1, k0max), of bwd_dq_dk_dv nine; `wave` and
    `warp` nine, three for each of three products."""

    family: str = "fwd"
    gfx_arch: str = "gfx950"
    data_type: str = "fp16"
    mode: str = "batch"
    vlayout: str = "r"
    hdim_q: int = 128
    hdim_v: int = 128
    bias: str = "no"
    logits: bool = False
    dropout: bool = False
    paged_kv: bool = False
    page_size: int = 1
    pipeline: str = "qr_async"
    tile: tuple[int, ...] = (128, 128, 32, 128, 32, 128)
    wave: tuple[int, ...] = (4, 1, 1, 4, 1, 1, 1, 1, 1)
    warp: tuple[int, ...] = (32, 32, 16, 32, 32, 16, 16, 16, 16)
    block_per_cu: int = -1
    num_wave_groups: int = 1

    @property
    def backward(self) -> bool:
        return self.family.startswith("bwd")


class Verdict(NamedTuple):
    errors: list[str]  # the rules it breaks, each a sentence
    warnings: list[str]

    def __str__(self) -> str:
        return "\n".join([*(f"error: {text}" for text in self.errors), *(f"warning: {text}" for text in self.warnings)])


def rules(root: Tree) -> RulesFile:
    return Document(root.places, FILE).load(RulesFile)


def read(text: str | bytes, source: str) -> Kernel:
    """A kernel as JSON. CodegenError for what it may not hold."""
    try:
        return typed.decode(text, Kernel)
    except msgspec.MsgspecError as error:
        known = ", ".join(Kernel.__struct_fields__)
        raise CodegenError(f"{source}: {error}; a kernel may have {known}") from error


def validate(kernel: Kernel, known: RulesFile) -> Verdict:
    """All that is wrong with a kernel, and what is doubtful."""
    return Verdict(
        [text for rule in ERRORS if (text := rule(kernel, known))],
        [text for rule in WARNINGS if (text := rule(kernel, known))],
    )


def _must(name: str, was: object, must: str) -> str:
    return f"{name}: was {was}, must be {must}"


def _one_of(name: str, was: str, choices: Sequence[str] | Mapping[str, object]) -> str:
    near = no_such(name, was, choices).partition("; ")[2]
    return _must(name, was, f"one of {', '.join(choices)}") + (f" ({near})" if near else "")


def _arch_known(k: Kernel, known: RulesFile) -> str:
    return "" if k.gfx_arch in known.arches else _one_of("gfx_arch", k.gfx_arch, known.arches)


def _family_known(k: Kernel, known: RulesFile) -> str:
    return "" if k.family in known.families else _one_of("family", k.family, known.families)


def _dtype_of_arch(k: Kernel, known: RulesFile) -> str:
    arch = known.arches.get(k.gfx_arch)
    if arch is None or k.data_type in arch.dtypes:
        return ""
    return _one_of(f"data_type on {k.gfx_arch}", k.data_type, arch.dtypes)


def _dtype_of_backward(k: Kernel, known: RulesFile) -> str:
    if not k.backward or k.data_type in known.dtypes.backward:
        return ""
    return _one_of("data_type of the backward", k.data_type, known.dtypes.backward)


def _dtype_of_forward(k: Kernel, known: RulesFile) -> str:
    if k.backward or k.data_type in known.dtypes.forward:
        return ""
    return _one_of("data_type of the forward", k.data_type, known.dtypes.forward)


def _pipeline_of_arch(k: Kernel, known: RulesFile) -> str:
    arch = known.arches.get(k.gfx_arch)
    if arch is None or k.family == "fwd_splitkv_combine" or k.pipeline in arch.pipelines:
        return ""
    return _one_of(f"pipeline on {k.gfx_arch}", k.pipeline, arch.pipelines)


def _trload_of_arch(k: Kernel, known: RulesFile) -> str:
    arch = known.arches.get(k.gfx_arch)
    if arch is None or arch.trload or not k.pipeline.startswith("qr_async_trload"):
        return ""
    having = ", ".join(name for name, one in known.arches.items() if one.trload)
    return _must("gfx_arch", k.gfx_arch, f"{having} for pipeline {k.pipeline}, whose loads from LDS transpose")


def _hdims_of_8(k: Kernel, known: RulesFile) -> str:
    wrong = [
        f"{name} {value}" for name, value in (("hdim_q", k.hdim_q), ("hdim_v", k.hdim_v)) if value % 8 or value < 1
    ]
    return _must("head dims", " and ".join(wrong), "multiples of 8 above 0") if wrong else ""


def _soft_cap_without_bias(k: Kernel, known: RulesFile) -> str:
    return _must("bias", k.bias, "no where logits (a soft cap) is true") if k.logits and k.bias != "no" else ""


def _trload_hdims(k: Kernel, known: RulesFile) -> str:
    if "trload" not in k.pipeline and "v3" not in k.pipeline:
        return ""
    if k.hdim_q == k.hdim_v and k.hdim_q in known.trload_hdims:
        return ""
    listed = " or ".join(f"{hdim} and {hdim}" for hdim in known.trload_hdims)
    return _must("hdim_q and hdim_v", f"{k.hdim_q} and {k.hdim_v}", f"{listed} for pipeline {k.pipeline}")


def _tile_lengths(k: Kernel) -> dict[str, int]:
    return {"tile": 9 if k.family == _BWD_MAIN else 6, "wave": 9, "warp": 9}


def _lengths(k: Kernel, known: RulesFile) -> str:
    wrong = [
        _must(n, f"{len(getattr(k, n))} numbers", f"{c}")
        for n, c in _tile_lengths(k).items()
        if len(getattr(k, n)) != c
    ]
    wrong += [_must(n, getattr(k, n), "numbers above 0") for n in _tile_lengths(k) if any(v < 1 for v in getattr(k, n))]
    return "; ".join(wrong)


def _mfma_count(k: Kernel, known: RulesFile) -> str:
    arch = known.arches.get(k.gfx_arch)
    if arch is None or not arch.cdna or k.pipeline != "qr" or k.hdim_q != 256 or _lengths(k, known):
        return ""
    blocks = math.prod(size // unit for size, unit in zip(k.tile[:3], k.warp[:3], strict=True))
    count = blocks // math.prod(k.wave[:2])
    return (
        _must("products of a wave (tile / warp / wave)", count, f"a multiple of {_MFMA_STEP}")
        if count % _MFMA_STEP
        else ""
    )


def _blocks(k: Kernel, known: RulesFile) -> str:
    return "" if k.block_per_cu > 0 or k.block_per_cu == -1 else _must("block_per_cu", k.block_per_cu, "above 0, or -1")


def _wave_groups(k: Kernel, known: RulesFile) -> str:
    return "" if k.num_wave_groups > 0 else _must("num_wave_groups", k.num_wave_groups, "above 0")


def _family_rule(family: str, *musts: tuple[str, Callable[[Kernel], bool], str]) -> Callable[[Kernel, RulesFile], str]:
    """A rule of one family: for each field a predicate, and the text of what it must be."""

    def rule(k: Kernel, known: RulesFile) -> str:
        if k.family != family:
            return ""
        return "; ".join(_must(name, getattr(k, name), text) for name, holds, text in musts if not holds(k))

    return rule


_ROW = ("vlayout", lambda k: k.vlayout == "r", "r, V row-major")
_PAGED = ("paged_kv", lambda k: k.paged_kv, "true")
_prefill = _family_rule(
    "batch_prefill",
    _ROW,
    _PAGED,
    ("page_size", lambda k: k.page_size > 0 and k.page_size & (k.page_size - 1) == 0, "a power of two"),
    ("mode", lambda k: k.mode == "group", "group"),
    ("pipeline", lambda k: k.pipeline == "qr_async", "qr_async"),
)
_append = _family_rule(
    "fwd_appendkv",
    ("mode", lambda k: k.mode == "batch", "batch"),
    ("pipeline", lambda k: k.pipeline == "appendkv", "appendkv"),
    _ROW,
)
_combine = _family_rule(
    "fwd_splitkv_combine",
    ("tile", lambda k: len(k.tile) < 4 or k.tile[3] == _COMBINE_BN1, f"one with n1 = {_COMBINE_BN1}"),
    ("hdim_v", lambda k: k.hdim_v >= _COMBINE_BN1 and not k.hdim_v % _COMBINE_BN1, f"a multiple of {_COMBINE_BN1}"),
)
_pagedkv = _family_rule("fwd_pagedkv", ("pipeline", lambda k: k.pipeline == "qr_pagedkv", "qr_pagedkv"), _PAGED, _ROW)
_SPLIT = ("qr", "qr_nwarp_sshuffle")
_splitkv = _family_rule("fwd_splitkv", ("pipeline", lambda k: k.pipeline in _SPLIT, " or ".join(_SPLIT)), _ROW)


def _v3_of_arch(k: Kernel, known: RulesFile) -> str:
    arch = known.arches.get(k.gfx_arch)
    if arch is None or arch.v3 or "v3" not in k.pipeline:
        return ""
    return f"pipeline {k.pipeline}: {k.gfx_arch} is not known to have it"


def _192x128(k: Kernel, known: RulesFile) -> str:
    if (k.hdim_q, k.hdim_v) != (192, 128) or not (k.dropout or k.bias != "no"):
        return ""
    return "head dims 192 and 128: no kernel of theirs takes a bias or dropout"


def _column_v(k: Kernel, known: RulesFile) -> str:
    return "" if k.family != "fwd" or k.vlayout == "r" else "vlayout c: few kernels read V column-major"


ERRORS: tuple[Callable[[Kernel, RulesFile], str], ...] = (
    _arch_known,
    _family_known,
    _dtype_of_arch,
    _dtype_of_backward,
    _dtype_of_forward,
    _pipeline_of_arch,
    _trload_of_arch,
    _hdims_of_8,
    _soft_cap_without_bias,
    _trload_hdims,
    _lengths,
    _mfma_count,
    _blocks,
    _wave_groups,
    _prefill,
    _append,
    _combine,
    _pagedkv,
    _splitkv,
)
WARNINGS: tuple[Callable[[Kernel, RulesFile], str], ...] = (_v3_of_arch, _192x128, _column_v)
