# SPDX-License-Identifier: MIT
"""Faults written into the PTX of kernels on purpose: (kernel, library, problems, a function of the text)."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple


class Mutation(NamedTuple):
    kernel: str  # "fmha_fwd_d64"
    problems: str  # of run_cases.py
    change: Callable[[str], str]
    sees: str  # kinds of faults that may see it, or WRONG
    cases: int = 12  # problems a seed: more where few meet the place


def swap(pattern: str, to: str, nth: int = -1, least: int = 1) -> Callable[[str], str]:
    """Replaces what matches: all, or the nth alone."""

    def change(text: str) -> str:
        found = list(re.finditer(pattern, text, re.M))
        assert len(found) >= least, pattern
        for match in reversed(found if nth < 0 else found[nth : nth + 1]):
            text = text[: match.start()] + match.expand(to) + text[match.end() :]
        return text

    return change


def not_rescaled(text: str) -> str:
    """Sums that a factor multiplies one after the other stay as they are: the first such run of 16 and more."""
    products = list(re.finditer(r"mul\.f32 (%f\d+), (%f\d+), (%f\d+);", text))
    runs: dict[str, list[re.Match[str]]] = {}
    for match in products:
        runs.setdefault(match[3], []).append(match)
    chosen = {id(match) for run in runs.values() if len(run) >= 16 for match in run}
    assert chosen
    for match in reversed(products):
        if id(match) in chosen:
            text = text[: match.start()] + f"mov.f32 {match[1]}, {match[2]};" + text[match.end() :]
    return text


def edge(text: str) -> str:
    """Comparisons of columns with the mask's edge: by one."""
    return re.sub(
        r"(setp\.(?:lt|gt|le|ge)\.s32 %p\d+, %r\d+, )(\d+);",
        lambda match: f"{match[1]}{int(match[2]) + 1};" if int(match[2]) >= 8 else match[0],
        text,
    )


def one_more(text: str) -> str:
    """Groups of copies that may be under way behind a wait: one more."""
    return re.sub(r"cp\.async\.wait_group (\d+);", lambda match: f"cp.async.wait_group {int(match[1]) + 1};", text)


def without_barrier(text: str) -> str:
    """The barriers behind waits for groups of copies."""
    return swap(r"(cp\.async\.wait_group \d+;[^;]*?)bar\.sync 0;", r"\1")(text)


def in_kernel(name: str, change: Callable[[str], str]) -> Callable[[str], str]:
    """The same in one kernel of several."""

    def within(text: str) -> str:
        begin = text.index(f".entry {name}(")
        end = text.find(".entry ", begin + 7)
        end = len(text) if end < 0 else end
        return text[:begin] + change(text[begin:end]) + text[end:]

    return within


FORWARD, BACKWARD = ("fmha_fwd_d64", "fmha_fwd:bf16:64x64"), ("fmha_bwd_d64", "fmha_bwd_dq_dk_dv:bf16:64x64")
DECODE, GEMM = ("fmha_decode_d64", "fmha_fwd_splitkv:bf16:64x64"), ("gemm_row_column", "gemm:bf16")
AMPERE, FP8 = ("fmha_fwd_ampere_d64", "fmha_fwd:bf16:64x64"), ("fmha_fwd_fp8_d128", "fmha_fwd:fp8bf16:128x128")
GEMM_AMPERE, ROWS = ("gemm_ampere_row_column", "gemm:bf16"), ("softmax", "softmax:bf16")
AMPERE_WIDE = ("fmha_bwd_ampere_d256", "fmha_bwd_dq_dk_dv:bf16:256x256")
ONE_PAIR = swap(r"(shfl\.sync\.bfly\.b32 [^;]*), %r\d+, (%r\d+), (%r\d+);", r"\1, 0, \2, \3;")
WAIT = r"\{\.reg \.pred p; again\d+: mbarrier\.try_wait\.parity\.shared::cta\.b64 p, \[(%r\d+)\], (%r\d+);[^}]*\}"
SWIZZLE_128 = str(1 << 62 | 64 << 32 | 1 << 16)

MUTATIONS: dict[str, Mutation] = {
    "a descriptor swizzled by 64 bytes": Mutation(
        *FORWARD, swap(SWIZZLE_128, str(1 << 63 | 64 << 32 | 1 << 16)), "WRONG"
    ),
    "a descriptor without a swizzle": Mutation(
        *FORWARD, swap(SWIZZLE_128, str(64 << 32 | 1 << 16)), "WRONG RACE POISON OOB"
    ),
    "a descriptor with half the stride": Mutation(
        *FORWARD, swap(SWIZZLE_128, str(1 << 62 | 32 << 32 | 1 << 16)), "WRONG"
    ),
    "the transpose of v is forgotten": Mutation(
        *FORWARD, swap(r"(p|t), 1, 1, 1;", r"\1, 1, 1, 0;"), "WRONG RACE OOB POISON"
    ),
    "fewer bytes expected than a box has": Mutation(
        *FORWARD,
        swap(r"(mbarrier\.arrive\.expect_tx\.shared::cta\.b64 _, \[%r\d+\]), %r\d+;", r"\1, 4096;"),
        "MBARRIER DEADLOCK RACE",
    ),
    "a box of the wrong rows": Mutation(
        *FORWARD,
        swap(r"(cp\.async\.bulk\.tensor\.5d[^{]*\{%r\d+, )(%r\d+), (%r\d+), (%r\d+)", r"\1\3, \2, \4"),
        "WRONG RACE",
    ),
    "phases are always 0": Mutation(
        *FORWARD,
        swap(r"(try_wait\.parity\.shared::cta\.b64 p, \[%r\d+\]), %r\d+;", r"\1, 0;"),
        "DEADLOCK RACE POISON WRONG",
    ),
    "a wait for a phase is missing": Mutation(*FORWARD, swap(WAIT, "", 4), "RACE POISON"),
    "waits do not ask again": Mutation(
        *FORWARD, swap(r"@p bra (done\d+); bra again\d+;", r"@p bra \1;"), "RACE POISON"
    ),
    "barriers are not fenced after their beginning": Mutation(
        *FORWARD, swap(r"fence\.mbarrier_init\.release\.cluster;", ""), "PROXY"
    ),
    "no barrier behind the beginning of mbarriers": Mutation(*FORWARD, swap(r"bar\.sync 0;", "", 0), "RACE MBARRIER"),
    "no wgmma.fence": Mutation(*FORWARD, swap(r"wgmma\.fence\.sync\.aligned;", ""), "FENCE"),
    "no wait for a product": Mutation(*FORWARD, swap(r"wgmma\.wait_group\.sync\.aligned \d;", "", 1), "PRODUCT RACE"),
    "a wait for one product less": Mutation(
        *FORWARD, swap(r"wgmma\.wait_group\.sync\.aligned 0;", "wgmma.wait_group.sync.aligned 1;", 1), "PRODUCT RACE"
    ),
    "a stage is never given back": Mutation(
        *FORWARD, swap(r"@p mbarrier\.arrive\.shared::cta\.b64 _, \[%r\d+\];", ""), "DEADLOCK"
    ),
    "a mask's edge is off by one": Mutation(*FORWARD, edge, "WRONG"),
    "O is not rescaled": Mutation(*FORWARD, not_rescaled, "WRONG"),
    "the row's maximum is of one lane pair": Mutation(
        *FORWARD, swap(r"(shfl\.sync\.bfly\.b32 [^;]*), %r\d+, (%r\d+), (%r\d+);", r"\1, 0, \2, \3;"), "WRONG"
    ),
    "LSE in base 2": Mutation(*FORWARD, swap("0f3F317218", "0f3F800000"), "WRONG"),
    "more registers than there are": Mutation(
        *FORWARD, swap(r"setmaxnreg\.inc\.sync\.aligned\.u32 \d+;", "setmaxnreg.inc.sync.aligned.u32 240;"), "REGISTERS"
    ),
    "turns are never passed on": Mutation(*FORWARD, swap(r"bar\.arrive [^;]*;", ""), "DEADLOCK BARRIER"),
    "dS is not fenced for the async proxy": Mutation(
        *BACKWARD, swap(r"fence\.proxy\.async(\.shared::cta)?;", ""), "PROXY"
    ),
    "dS is not transposed": Mutation(
        *BACKWARD, swap(r"(p|t), 1, 1, 1, 1;", r"\1, 1, 1, 0, 1;"), "WRONG RACE OOB POISON"
    ),
    "LSE comes after it is read": Mutation(*BACKWARD, swap(WAIT, "", 2), "RACE POISON WRONG"),
    "rows of dS in another order": Mutation(
        *BACKWARD, swap(r"(stmatrix[^{]*)\{(%r\d+), (%r\d+)", r"\1{\3, \2"), "WRONG"
    ),
    "no wait for copies of keys": Mutation(*DECODE, swap(r"cp\.async\.wait_group \d+;", ""), "POISON"),
    "copies of keys are waited for one too late": Mutation(*DECODE, one_more, "POISON"),
    "v is not transposed": Mutation(*DECODE, swap(r"m8n8\.x4\.trans", "m8n8.x4"), "WRONG"),
    "k is not advanced in a stage": Mutation(*GEMM, swap(r"add\.s64 a, (%rd\d+), 2;", r"mov.b64 a, \1;"), "WRONG"),
    "ampere: copies are waited for one too late": Mutation(*AMPERE, one_more, "POISON"),
    "ampere: no barrier behind the wait for copies": Mutation(*AMPERE, without_barrier, "RACE POISON"),
    "ampere: a matrix of keys lies 16 bytes further": Mutation(
        *AMPERE, swap(r"(ldmatrix\.sync\.aligned\.m8n8\.x4\.shared\.b16 [^\[]*\[%r\d+)\]", r"\1+16]", 4), "WRONG RACE"
    ),
    "ampere: v is not transposed": Mutation(*AMPERE, swap(r"m8n8\.x4\.trans", "m8n8.x4"), "WRONG"),
    "ampere: rows behind the last are copied": Mutation(
        *AMPERE, swap(r"(cp\.async\.cg[^;]*), 16, %r\d+;", r"\1, 16;"), "OOB"
    ),
    "ampere: a mask's edge is off by one": Mutation(*AMPERE, edge, "WRONG"),
    "ampere: O is not rescaled": Mutation(*AMPERE, not_rescaled, "WRONG"),
    "ampere: the row's maximum is of one lane pair": Mutation(*AMPERE, ONE_PAIR, "WRONG"),
    "ampere: LSE in base 2": Mutation(*AMPERE, swap("0f3F317218", "0f3F800000"), "WRONG"),
    "ampere backward: the other warp of the same keys is not waited for": Mutation(
        *AMPERE_WIDE, swap(r"bar\.sync %r\d+, %r\d+;", ""), "RACE POISON"
    ),
    "ampere backward: a warp adds its own part twice": Mutation(
        *AMPERE_WIDE, swap(r"xor\.b32 (%r\d+), (%r\d+), 2048;", r"mov.b32 \1, \2;"), "WRONG"
    ),
    "ampere backward: dS and the rows of products are not transposed": Mutation(
        *AMPERE_WIDE, swap(r"m8n8\.x4\.trans", "m8n8.x4"), "WRONG"
    ),
    "ampere backward: a turn at dq is seen and not acquired": Mutation(
        *AMPERE_WIDE, swap(r"ld\.acquire\.gpu", "ld.relaxed.gpu"), "RACE TRAP", 20
    ),
    "ampere backward: a sum of dq begins anew in each turn": Mutation(
        *AMPERE_WIDE,
        in_kernel(
            "fmha_bwd_ampere", swap(r"ld\.global\.v4\.f32 \{([^,]*), [^}]*\}", r"ld.global.v4.f32 {\1, \1, \1, \1}")
        ),
        "WRONG",
    ),
    "fp8: turned v is not fenced": Mutation(*FP8, swap(r"fence\.proxy\.async(\.shared::cta)?;", ""), "POISON PROXY"),
    "fp8: lanes turn v without meeting": Mutation(*FP8, swap(r"bar\.warp\.sync\s+-1;", ""), "RACE"),
    "fp8: v is not turned": Mutation(*FP8, swap(r"m8n8\.x4\.trans", "m8n8.x4"), "WRONG"),
    "fp8: neighbours of P change places": Mutation(
        *FP8, swap(r"(cvt\.rn\.satfinite\.e4m3x2\.f32 \w+), (%f\d+), (%f\d+);", r"\1, \3, \2;"), "WRONG"
    ),
    "fp8: scales of blocks are 1": Mutation(
        *FP8, swap(r"ld(?:\.global(?:\.nc)?)?\.f32 (%f\d+), \[%rd\d+\];", r"mov.f32 \1, 0f3F800000;"), "WRONG"
    ),
    "fp8: a wait for a phase is missing": Mutation(*FP8, swap(WAIT, "", 6), "RACE POISON"),
    "fp8: a wait for one product less": Mutation(
        *FP8, swap(r"wgmma\.wait_group\.sync\.aligned 0;", "wgmma.wait_group.sync.aligned 1;", 1), "PRODUCT RACE"
    ),
    "ampere products: copies are waited for one too late": Mutation(*GEMM_AMPERE, one_more, "POISON RACE"),
    "ampere products: no barrier": Mutation(*GEMM_AMPERE, swap(r"bar\.sync 0;", ""), "RACE"),
    "ampere products: rows of a change places": Mutation(
        *GEMM_AMPERE, swap(r"(mma\.sync[^{]*\{[^}]*\}, )\{(%r\d+), (%r\d+)", r"\1{\3, \2"), "WRONG"
    ),
    "ampere products: k is not advanced": Mutation(
        *GEMM_AMPERE, swap(r"add\.s32 (%r\d+), (%r\d+), (?:16|32);", r"mov.b32 \1, \2;"), "WRONG"
    ),
    "rows: no barrier between warps' maxima": Mutation(*ROWS, swap(r"bar\.sync 0;", "", 0), "RACE POISON"),
    "rows: a warp's sum is of one lane pair": Mutation(*ROWS, ONE_PAIR, "WRONG"),
    "decode: the last barrier is missing": Mutation(*DECODE, swap(r"bar\.sync 0;", "", -2), "RACE"),
    "the turn at dq is never passed on": Mutation(
        *BACKWARD, swap(r"red\.release\.gpu\.global\.add\.u32 \[%rd\d+\], 1;", ""), "TRAP RUNAWAY DEADLOCK"
    ),
    "a turn at dq is not waited for": Mutation(
        *BACKWARD,
        swap(r"(?s)(ld\.acquire\.gpu\.global\.u32 (%r\d+),.{0,300}?setp\.ne\.s32 %p\d+, )\2, %r\d+;", r"\1\2, \2;"),
        "RACE",
        60,
    ),
    "a turn at dq is passed on while its sums are under way": Mutation(
        *BACKWARD, swap(WAIT + r"(?=\s*red\.release\.gpu)", ""), "RACE"
    ),
    "a turn at dq is seen and not acquired": Mutation(
        *BACKWARD, swap(r"ld\.acquire\.gpu", "ld.relaxed.gpu"), "RACE TRAP"
    ),
    "parts of a shared tile are not acquired": Mutation(
        *GEMM, swap(r"atom\.acq_rel\.gpu\.global\.inc", "atom.release.gpu.global.inc"), "RACE", 60
    ),
    "decode: splits are weighed the other way": Mutation(
        *DECODE,
        in_kernel("fmha_decode_combine", swap(r"(sub\.f32 %f\d+), (%f\d+), (%f\d+);", r"\1, \3, \2;")),
        "WRONG",
    ),
    "decode: weights of splits without a barrier": Mutation(
        *DECODE, in_kernel("fmha_decode_combine", swap(r"bar\.sync 0;", "")), "RACE POISON"
    ),
}
