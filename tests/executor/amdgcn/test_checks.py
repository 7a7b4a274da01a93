# SPDX-License-Identifier: MIT
"""Refusals of the executor, each by the smallest text that shows it; and the right text beside it, which runs."""

from __future__ import annotations

import numpy as np
import pytest

from tests.executor.amdgcn import assembled
from tests.executor.amdgcn.assembled import ALL, GFX9, INPUTS, RDNA, Snippet
from tools.executor.amdgcn.code_object import CodeObject, FaultError, reads, wave_size, writes

INPUT = np.arange(INPUTS * 64, dtype=np.uint32).reshape(INPUTS, 64)


def code(architecture: str, body: str, place, lds_bytes: int = 0) -> CodeObject:
    return assembled.assemble(architecture, assembled.source(architecture, [Snippet(body)], lds_bytes), place)


def fault(architecture: str, body: str, place, lds_bytes: int = 0, waves: int = 1, **options) -> str:
    """The text of the refusal, or "" where the body runs."""
    made = code(architecture, body, place, lds_bytes)
    try:
        assembled.run(made, INPUT, 1, waves, **options)
    except FaultError as refused:
        return str(refused)
    return ""


def modern(architecture: str, old: str, new: str) -> str:
    return new if architecture in RDNA else old


def lds(architecture: str, what: str) -> str:
    """ds_write of v1 to v0's address, or ds_read to v20."""
    if what == "write":
        return modern(architecture, "ds_write_b32 v0, v1", "ds_store_b32 v0, v1")
    return modern(architecture, "ds_read_b32 v20, v0", "ds_load_b32 v20, v0")


def barrier(architecture: str) -> str:
    return "s_barrier_signal -1\ns_barrier_wait -1" if architecture == "gfx1201" else "s_barrier"


@pytest.mark.parametrize("architecture", ALL)
@pytest.mark.day
def test_a_register_nobody_wrote_may_be_copied_but_not_stored(architecture, tmp_path):
    assert fault(architecture, "v_mov_b32 v20, v100", tmp_path).startswith("POISON: storing undefined v20")
    assert fault(architecture, "v_mov_b32 v21, v100\nv_mov_b32 v20, v1", tmp_path) == ""


@pytest.mark.parametrize("architecture", ALL)
def test_the_low_half_of_a_wide_sum_needs_low_halves(architecture, tmp_path):
    """v_mad_u64_u32 as the compiler takes it for 32 bits: the addend's high word is whatever lies there."""
    mask = "vcc" if architecture in GFX9 else "null"
    name = "v_mad_co_u64_u32" if architecture == "gfx1201" else "v_mad_u64_u32"
    low = f"v_mov_b32 v40, v1\n{name} v[50:51], {mask}, v2, v3, v[40:41]\nv_mov_b32 v20, v50"
    assert fault(architecture, low, tmp_path) == ""
    high = low.replace("v20, v50", "v20, v51")
    assert fault(architecture, high, tmp_path).startswith("POISON: storing undefined v20")


@pytest.mark.parametrize("architecture", ALL)
def test_undefined_bits_of_a_mask(architecture, tmp_path):
    """A defined 0 decides an and: only what comes of undefined bits is."""
    assert (
        fault(
            architecture,
            "s_and_b32 s10, s50, 0\ns_cmp_eq_u32 s10, 0\ns_cbranch_scc0 1\nv_mov_b32 v20, v1\nv_mov_b32 v20, v1",
            tmp_path,
        )
        == ""
    )
    refused = fault(
        architecture,
        "s_and_b32 s10, s50, 1\ns_cmp_eq_u32 s10, 0\ns_cbranch_scc0 1\nv_mov_b32 v20, v1\nv_mov_b32 v20, v1",
        tmp_path,
    )
    assert refused.startswith("POISON: branch on an undefined scc")


@pytest.mark.parametrize("architecture", ALL)
def test_a_load_must_be_waited_for(architecture, tmp_path):
    load = modern(architecture, "global_load_dword v9, v0, s[4:5]", "global_load_b32 v9, v0, s[4:5]")
    wait = assembled.wait(architecture)
    assert fault(architecture, f"{load}\n{wait}\nv_mov_b32 v20, v9", tmp_path) == ""
    refused = fault(architecture, f"{load}\nv_mov_b32 v20, v9", tmp_path)
    assert refused.startswith("WAIT: v9 read before its load was waited for | wave 0 pc ")
    assert "v_mov_b32_e32 v20, v9" in refused
    assert fault(architecture, f"{load}\nv_mov_b32 v9, 0\nv_mov_b32 v20, v1", tmp_path).startswith(
        "WAIT: v9 overwritten"
    )
    assert fault(architecture, f"{load}\n{wait}\nv_mov_b32 v20, v9", tmp_path, ignore_waits=True).startswith("WAIT: ")


@pytest.mark.parametrize("architecture", ALL)
def test_scalar_loads_return_in_any_order(architecture, tmp_path):
    """A wait for all but one proves nothing."""
    load = modern(architecture, "s_load_dword", "s_load_b32")
    both = f"{load} s10, s[4:5], 0x0\n{load} s11, s[4:5], 0x4"
    one_left = "s_wait_kmcnt 0x1" if architecture == "gfx1201" else "s_waitcnt lgkmcnt(1)"
    assert fault(architecture, f"{both}\n{one_left}\nv_mov_b32 v20, s10", tmp_path).startswith("WAIT: s10 read")
    assert fault(architecture, f"{both}\n{assembled.wait(architecture)}\nv_mov_b32 v20, s10", tmp_path) == ""


@pytest.mark.parametrize("architecture", ALL)
def test_bounds(architecture, tmp_path):
    load = modern(architecture, "global_load_dword", "global_load_b32")
    far = f"v_add_co_u32 v30, {modern(architecture, 'vcc', 'vcc_lo')}, 0x10000, v0\n{load} v20, v30, s[4:5]"
    assert "outside (buffer argument 0, " in fault(architecture, far, tmp_path)
    store = modern(architecture, "global_store_dword", "global_store_b32")
    refused = fault(architecture, f"{store} v0, v1, s[4:5]\nv_mov_b32 v20, v1", tmp_path)
    assert refused.startswith("OOB: store to the read-only buffer argument 0")
    null = f"v_mov_b32 v30, 0\nv_mov_b32 v31, 0\n{load} v20, v[30:31], off"
    assert fault(architecture, null, tmp_path).startswith("OOB: lane 0 address 0")
    past = f"v_add_{modern(architecture, '', 'nc_')}u32 v0, 0x1000, v0\n{lds(architecture, 'write')}\nv_mov_b32 v20, v1"
    assert fault(architecture, past, tmp_path, lds_bytes=1024).startswith("OOB: LDS address 4096 + 4 of 1024")


@pytest.mark.parametrize("architecture", ALL)
def test_lds_between_waves(architecture, tmp_path):
    """Each wave writes its own words and reads the other wave's: a barrier must lie between, twice in a loop."""
    lanes = wave_size(architecture)
    other = f"v_xor_b32 v30, {4 * lanes}, v0"
    read = modern(architecture, "ds_read_b32 v20, v30", "ds_load_b32 v20, v30")
    write, wait, meet = lds(architecture, "write"), assembled.wait(architecture), barrier(architecture)
    right = f"{other}\n{write}\n{wait}\n{meet}\n{read}\n{wait}"
    for seed in (1, 2, 3):
        assert two_waves(architecture, right, tmp_path, seed) == ""
    assert any(
        two_waves(architecture, f"{other}\n{write}\n{wait}\n{read}\n{wait}", tmp_path, seed).startswith(
            ("RACE", "POISON")
        )
        for seed in (1, 2, 3)
    )
    unreleased = two_waves(architecture, f"{other}\n{write}\n{meet}\n{read}\n{wait}", tmp_path, 1)
    assert unreleased.startswith("RACE: barrier signalled with an LDS write still outstanding")
    again = f"{right}\n{write}\n{wait}"
    assert any(two_waves(architecture, again, tmp_path, seed).startswith("RACE: LDS ") for seed in range(1, 9))


def two_waves(architecture: str, body: str, place, seed: int) -> str:
    """As `fault`, with two waves whose results lie one behind the other."""
    made = code(architecture, body, place, lds_bytes=1024)
    lanes = wave_size(architecture)
    inputs = np.zeros((INPUTS * 2 + 2, 64), np.uint32)
    try:
        out = np.zeros(2 * 64, np.uint32)
        made.launch("k", (1,), (2 * lanes,), [reads(inputs), writes(out)], seed=seed)
    except FaultError as refused:
        return str(refused)
    return ""


@pytest.mark.parametrize("architecture", ALL)
def test_a_barrier_that_one_wave_misses(architecture, tmp_path):
    skip = f"s_cmp_eq_u32 s8, 0\ns_cbranch_scc1 {2 if architecture == 'gfx1201' else 1}"
    meet = barrier(architecture)
    body = f"v_readfirstlane_b32 s8, v0\n{skip}\n{meet}\nv_mov_b32 v20, v1\n{meet}\n{meet}"
    # wave 1 waits three times, wave 0 twice and ends: an ended wave does not hold the others up
    assert two_waves(architecture, body, tmp_path, 1) == ""
    forever = f"v_mov_b32 v20, v1\n{'s_barrier_wait -1' if architecture == 'gfx1201' else ''}"
    if architecture == "gfx1201":  # a wait nobody signals
        assert two_waves(architecture, forever, tmp_path, 1).startswith("DEADLOCK")


@pytest.mark.parametrize("architecture", GFX9)
def test_an_mfma_result_needs_wait_states(architecture, tmp_path):
    name = {"gfx90a": "v_mfma_f32_16x16x16f16"}.get(architecture, "v_mfma_f32_16x16x16_f16")
    clear = "\n".join(f"v_mov_b32 v{k}, 0" for k in range(30, 44))
    product = f"{name} v[40:43], v[30:31], v[32:33], v[36:39]"
    refused = fault(architecture, f"{clear}\n{product}\nv_mov_b32 v20, v40", tmp_path)
    assert refused.startswith("HAZARD: v40 needs ")
    assert fault(architecture, f"{clear}\n{product}\ns_nop 15\ns_nop 3\nv_mov_b32 v20, v40", tmp_path) == ""
    accumulating = f"{name} v[40:43], v[30:31], v[32:33], v[40:43]"
    assert (
        fault(architecture, f"{clear}\n{product}\n{accumulating}\ns_nop 15\ns_nop 3\nv_mov_b32 v20, v40", tmp_path)
        == ""
    )


def test_rdna3_halves_must_agree(tmp_path):
    registers = "\n".join(f"v_mov_b32 v{k}, v1" for k in range(30, 46))
    zeros = "\n".join(f"v_mov_b32 v{k}, 0" for k in range(46, 54))
    product = "v_wmma_f32_16x16x16_f16 v[46:53], v[30:37], v[38:45], v[46:53]"
    assert fault("gfx1100", f"{registers}\n{zeros}\n{product}\nv_mov_b32 v20, v46", tmp_path).startswith(
        "LAYOUT: lanes 16-31"
    )
    same = registers.replace("v1", "2")
    assert fault("gfx1100", f"{same}\n{zeros}\n{product}\nv_mov_b32 v20, v46", tmp_path) == ""


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (("v_mov_b32_e32 v20, v1", "v_frobnicate_e32 v20, v1"), "DECODE: unknown mnemonic v_frobnicate at "),
        (("v_mov_b32_e32 v20, v1", "v_mov_b32_e32 v20, q1"), "DECODE: unknown operand 'q1' in: v_mov_b32_e32 v20, q1"),
        (("v_mov_b32_e32 v20, v1", "v_mov_b32_e32 v20, v1 wobble:3"), "DECODE: unknown modifier 'wobble:3' in: "),
    ],
)
def test_what_is_unknown_is_quoted(edit, says, tmp_path):
    made = code("gfx942", "v_mov_b32 v20, v1", tmp_path)
    assert made.kernel("k").lds_bytes == 0
    with pytest.raises(FaultError, match="^" + says.replace(".", "\\.")):
        CodeObject(tmp_path / "k.hsaco", "gfx942", edit=lambda text: text.replace(*edit))


@pytest.mark.parametrize("architecture", ALL)
def test_running_away(architecture, tmp_path):
    refused = fault(architecture, "v_mov_b32 v20, v1\ns_branch 0x1000", tmp_path)
    assert refused.startswith("PC: branch outside the kernel")
