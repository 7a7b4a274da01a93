# SPDX-License-Identifier: MIT
"""Faults written into the forward kernel on purpose: the executor or the comparison must see each of them."""

from __future__ import annotations

import pytest
from tilekiln.reference import problems
from tilekiln.reference.problems import PLAIN

from tests.kernels.hip import forward
from tests.kernels.hip.forward import Build
from tests.kernels.hip.waits import NOP, WAIT, weakened
from tools.executor.amdgcn.code_object import CodeObject, FaultError, disassemble

ARCHITECTURES = ("gfx942", "gfx1100", "gfx1201")  # MFMA, WMMA whose halves repeat, WMMA whose halves do not
HEADER = forward.ROOT / "kernels" / "backends" / "hip" / "vocabulary.h"
PROBLEM = forward.ROOT / "kernels" / "attention" / "hip" / "problem.h"

# name: (text of the kernel or its vocabulary, what it becomes)
MUTATIONS = {
    "rows of the accumulator in another order": ("return 8 * (r / 4) + 4 * half + r % 4;", "return 16 * half + r;"),
    "rows of RDNA 3 in another order": ("return 2 * r + half;", "return 8 * half + r;"),
    "rows of RDNA 4 in another order": ("return 8 * half + r;", "return 2 * r + half;"),
    "no barrier before LDS is read": ("  publish();", ""),
    "a barrier without fences": ("    publish();", "    __builtin_amdgcn_s_barrier();"),
    "no barrier before LDS is overwritten": (
        "    __builtin_amdgcn_s_barrier();  // every wave has done with the tile before\n",
        "",
    ),
    "O is not rescaled": ("query.out[d][r] *= correction * in_units;", "query.out[d][r] *= in_units;"),
    "the sum is not rescaled": ("query.sum * correction + sum", "query.sum + sum"),
    "rows past the end are stored": ("  if (query.row >= w.seqlen_q) return;\n", ""),
    "queries past the end are loaded": (
        "((w.seqlen_q - w.first_query - 1) * p.q_row + p.hdim_q + (w.pack - 1) * int(p.q_head)) * kSize",
        "0x7ffffff0",
    ),
    "keys past the end are loaded": ("((rows - 1) * m.row_k + m.hdim_q) * kKeySize", "0x7ffffff0"),
    "values past the end are loaded": ("((rows - 1) * m.row_v + m.hdim_v) * kKeySize", "0x7ffffff0"),
    "the last key is off by one": ("query.row, w.seqlen_k, from)", "query.row, w.seqlen_k + 1, from)"),
    "the diagonal is off by one": ("query.shift), query.row, w", "query.shift), query.row + 1, w"),
    "tiles without a mask begin too early": ("i >= whole.last", "i > whole.last"),
    "the other half is another lane": ("lane() ^ kHalf", "lane() ^ (kHalf / 2)"),
    "the other half is the same row": ("permlanex16", "permlane16"),
    "O is not cleared": ("query.out[d] = Accumulator(0.f);", 'asm volatile("" : "=v"(query.out[d]));'),
    "a column of V is not written": (
        "*(U2*)(shared_v + (column + i) * kRowV + row) = four",
        "if (column + i != 5) *(U2*)(shared_v + (column + i) * kRowV + row) = four",
    ),
    "two workgroups write the same rows": (
        "w.out + i64(query.row) * p.out_row",
        "w.out + i64(query.row % 64) * p.out_row",
    ),
    "LSE is not written": ("kLse && query.half == 0)", "kLse && query.half == 9)"),
    "LSE in base 2": ("log2(sum)) * kLn2", "log2(sum))"),
}


def only_there(mutation: str) -> str:
    """The architecture that a mutation is for, or "" for all."""
    for word, architecture in (
        ("rows of the accumulator", "gfx942"),
        ("RDNA 3", "gfx1100"),
        ("RDNA 4", "gfx1201"),
        ("is another lane", "gfx942"),
        ("the same row", "gfx1100 gfx1201"),
    ):
        if word in mutation:
            return architecture
    return ""


def outcome(code: CodeObject, build: Build) -> str:
    """Outcome of five interleavings, causal and not: the kind of a fault, WRONG, or "" for nothing seen."""
    for seed in range(1, 6):
        for signature, window in (({}, (-1, -1)), ({"mask": "window"}, (-1, 0))):
            sizes = problems.Sizes((150,), (150,), 2, 2, 64, 64, window=window)
            problem = problems.make({**PLAIN, "dtype": build.dtype, **signature}, sizes, seed)
            try:
                made = forward.run(code, build, problem, seed=seed)
            except FaultError as fault:
                return fault.kind
            if not forward.excess(problem, made) <= 1:
                return "WRONG"
    return ""


def mutated(mutation: str, place):
    """A copy of the kernel's files with the mutation in one of them."""
    old, new = MUTATIONS[mutation]
    found = 0
    for path in (HEADER, forward.SOURCE, PROBLEM):
        text = path.read_text()
        found += text.count(old)
        text = text.replace(old, new, 1)
        copy = place / path.relative_to(forward.ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(text)
    assert found, f"{old!r} stands in no file of the kernel"
    return place / forward.SOURCE.relative_to(forward.ROOT)


@pytest.mark.quick(1)
@pytest.mark.parametrize("mutation", MUTATIONS)
def test_every_mutation_is_seen(mutation, tmp_path):
    source = mutated(mutation, tmp_path)
    for architecture in only_there(mutation).split() or ARCHITECTURES[:: 1 + len(mutation) % 2]:
        build = Build(architecture)
        code = CodeObject(forward.compiled(build, tmp_path, source), architecture)
        assert outcome(code, build), f"{mutation}: not seen on {architecture}"


@pytest.mark.quick(1)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_missing_wait_is_seen(architecture, tmp_path):
    """Each wait taken out alone. What survives guards only what a wave does that finds no key: its waits come again."""
    build = Build(architecture)
    path = forward.compiled(build, tmp_path)
    text = disassemble(path, architecture)
    assert outcome(CodeObject(path, architecture, text), build) == ""
    waits = list(WAIT.finditer(text))
    survived = []
    for wait in waits:
        comment = wait.group(0)[wait.group(0).index("//") :]
        edited = f"{text[: wait.start()]}\ts_nop 0 {comment}{text[wait.end() :]}"
        if not seen_quickly(CodeObject(path, architecture, edited), build):
            survived.append(wait.group(0).split("//")[0].strip())
    assert len(survived) <= len(waits) // 5, survived


@pytest.mark.parametrize("architecture", ["gfx942"])
def test_a_weaker_wait_is_seen(architecture, tmp_path):
    """Each counter of each wait with one more under way, each s_nop with one state less.

    What survives guards a wave that finds no key, whose waits come again, or a hazard that is not modelled (s_nop).
    """
    build = Build(architecture)
    path = forward.compiled(build, tmp_path)
    text = disassemble(path, architecture)
    edits = [(wait.start(), wait.end(), weaker) for wait in WAIT.finditer(text) for weaker in weakened(wait.group(0))]
    nops = [(nop.start(1), nop.end(1), int(nop.group(1))) for nop in NOP.finditer(text)]
    edits += [(begin, end, str(states - 1)) for begin, end, states in nops if states]
    seen, survived = [0, 0], []  # waits, s_nop
    for begin, end, new in edits:
        if seen_quickly(CodeObject(path, architecture, text[:begin] + new + text[end:]), build):
            seen["cnt" not in new] += 1
        else:
            survived.append(f"{new.split('//')[0].strip()} for {text[begin:end].split('//')[0].strip()}")
    print(f"{architecture}: {seen[0]} weakened waits seen, {seen[1]} shortened s_nop; not: {survived}")
    assert len(edits) > 20
    assert len(survived) <= len(edits) // 10, survived


def seen_quickly(code: CodeObject, build: Build) -> bool:
    """As `outcome`, of two small problems that have every feature between them."""
    for signature in (
        {"mode": "group", "mask": "window", "bias": "alibi", "sink": True},
        {"bias": "elementwise", "softcap": True},
    ):
        sizes = problems.Sizes((70, 30), (130, 70), 2, 1, 64, 64, window=(-1, 0))
        problem = problems.make({**PLAIN, "dtype": build.dtype, **signature}, sizes, 1)
        try:
            if not forward.excess(problem, forward.run(code, build, problem, seed=1)) <= 1:
                return True
        except FaultError:
            return True
    return False
