# SPDX-License-Identifier: MIT
"""CK's rules of a kernel: each of the 19 errors and 3 warnings is met by one kernel and not by its neighbour."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

from codegen.plan.plan import Instance, resolve
from codegen.schema import ck_rules
from codegen.schema.ck_rules import Kernel
from codegen.schema.errors import CodegenError
from codegen.schema.tree import tree

RULES = ck_rules.rules(tree())
PREFILL = Kernel(family="batch_prefill", mode="group", paged_kv=True, page_size=16)
APPEND = Kernel(family="fwd_appendkv", pipeline="appendkv")
COMBINE = Kernel(family="fwd_splitkv_combine", pipeline="none", tile=(32, 128, 32, 32, 1, 1))
PAGED = Kernel(family="fwd_pagedkv", pipeline="qr_pagedkv", paged_kv=True)
SPLIT = Kernel(family="fwd_splitkv", pipeline="qr")
BACKWARD = Kernel(family="bwd_dq_dk_dv", pipeline="bwd", tile=(32, 128, 64, 32, 64, 32, 32, 64, 64))
TRLOAD = Kernel(pipeline="qr_async_trload")
QR256 = Kernel(hdim_q=256, hdim_v=256, pipeline="qr", tile=(128, 128, 32, 256, 32, 256))

# A sound kernel, what breaks one rule, and what is said.
ERRORS: list[tuple[Kernel, dict[str, Any], list[str]]] = [
    (Kernel(), {"gfx_arch": "gfx943"}, ["gfx_arch: was gfx943, must be one of gfx90a, gfx942"]),
    (Kernel(), {"family": "fwdd"}, ["family: was fwdd, must be one of fwd, fwd_splitkv"]),
    (
        Kernel(gfx_arch="gfx942", data_type="fp8bf16"),
        {"gfx_arch": "gfx90a"},
        ["data_type on gfx90a: was fp8bf16, must be"],
    ),
    (BACKWARD, {"data_type": "fp8bf16"}, ["data_type of the backward: was fp8bf16, must be one of fp32, fp16, bf16"]),
    (
        Kernel(data_type="bf16"),
        {"data_type": "bf17"},
        ["data_type on gfx950: was bf17", "data_type of the forward: was bf17"],
    ),
    (
        Kernel(gfx_arch="gfx1100", pipeline="qr"),
        {"pipeline": "qr_async"},
        ["pipeline on gfx1100: was qr_async, must be"],
    ),
    (
        TRLOAD,
        {"gfx_arch": "gfx942"},
        ["pipeline on gfx942: was qr_async_trload", "gfx_arch: was gfx942, must be gfx950 for"],
    ),
    (Kernel(hdim_q=96), {"hdim_q": 100}, ["head dims: was hdim_q 100, must be multiples of 8 above 0"]),
    (Kernel(logits=True), {"bias": "bias"}, ["bias: was bias, must be no where logits (a soft cap) is true"]),
    (TRLOAD, {"hdim_q": 64}, ["hdim_q and hdim_v: was 64 and 128, must be 64 and 64 or 128 and 128 for pipeline"]),
    (BACKWARD, {"tile": (32, 128, 64, 32, 64, 32)}, ["tile: was 6 numbers, must be 9"]),
    (
        QR256,
        {"tile": (128, 64, 32, 256, 32, 256)},
        ["products of a wave (tile / warp / wave): was 4, must be a multiple of 8"],
    ),
    (Kernel(block_per_cu=2), {"block_per_cu": 0}, ["block_per_cu: was 0, must be above 0, or -1"]),
    (Kernel(num_wave_groups=2), {"num_wave_groups": 0}, ["num_wave_groups: was 0, must be above 0"]),
    (
        PREFILL,
        {"page_size": 24, "mode": "batch"},
        ["page_size: was 24, must be a power of two; mode: was batch, must be group"],
    ),
    (APPEND, {"mode": "group"}, ["mode: was group, must be batch"]),
    (COMBINE, {"hdim_v": 80}, ["hdim_v: was 80, must be a multiple of 32"]),
    (PAGED, {"paged_kv": False}, ["paged_kv: was False, must be true"]),
    (SPLIT, {"pipeline": "qr_async"}, ["pipeline: was qr_async, must be qr or qr_nwarp_sshuffle"]),
]
WARNINGS: list[tuple[Kernel, dict[str, Any], str]] = [
    (Kernel(pipeline="v3"), {"gfx_arch": "gfx942"}, "pipeline v3: gfx942 is not known to have it"),
    (Kernel(hdim_q=192), {"dropout": True}, "head dims 192 and 128: no kernel of theirs takes a bias or dropout"),
    (Kernel(), {"vlayout": "c"}, "vlayout c: few kernels read V column-major"),
]


def test_there_are_19_errors_and_3_warnings() -> None:
    assert len(ERRORS) == len(ck_rules.ERRORS) == 19
    assert len(WARNINGS) == len(ck_rules.WARNINGS) == 3


@pytest.mark.parametrize(
    ("sound", "change", "said"), ERRORS, ids=[rule.__name__ + str(at) for at, rule in enumerate(ck_rules.ERRORS)]
)
def test_an_error_is_met_and_not_met(sound: Kernel, change: dict[str, Any], said: list[str]) -> None:
    assert ck_rules.validate(sound, RULES) == ([], [])
    errors = ck_rules.validate(replace(sound, **change), RULES).errors
    assert len(errors) == len(said), errors
    assert all(error.startswith(start) for error, start in zip(errors, said, strict=True)), errors


@pytest.mark.parametrize("at", range(len(ERRORS)))
def test_each_error_is_the_rule_of_its_place(at: int) -> None:
    sound, change, _ = ERRORS[at]
    assert not ck_rules.ERRORS[at](sound, RULES)
    assert ck_rules.ERRORS[at](replace(sound, **change), RULES)


@pytest.mark.parametrize(("sound", "change", "said"), WARNINGS)
def test_a_warning_is_met_and_not_met(sound: Kernel, change: dict[str, Any], said: str) -> None:
    assert not ck_rules.validate(sound, RULES).warnings
    assert ck_rules.validate(replace(sound, **change), RULES).warnings == [said]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "kernel: Input data was truncated; a kernel may have family, "),
        ('{"tile": 3}', "kernel: Expected `array`"),
        ('{"hdim": 64}', "kernel: Object contains unknown field `hdim`"),
    ],
)
def test_what_is_no_kernel_is_an_error(text: str, said: str) -> None:
    with pytest.raises(CodegenError) as caught:
        ck_rules.read(text, "kernel")
    assert str(caught.value).startswith(said)


def test_the_tables_of_tiles_keep_the_rules() -> None:
    """All but what CK's generator builds and its dispatcher refuses: head dim 256 with transposing loads, and with 64
    keys."""
    broken: dict[str, set[str]] = {}
    for arch in RULES.arches:
        one_each = {id(i.how): i for i in resolve("ck_default", [f"ck-{arch}"]).instances}
        for kernel in map(_kernel, one_each.values()):
            broken.setdefault(arch, set()).update(ck_rules.validate(kernel, RULES).errors)
    assert {arch: errors for arch, errors in broken.items() if errors} == {
        "gfx950": {
            "products of a wave (tile / warp / wave): was 4, must be a multiple of 8",
            "hdim_q and hdim_v: was 256 and 256, must be 64 and 64 or 128 and 128 for pipeline qr_async_trload",
        }
    }


def _kernel(i: Instance) -> Kernel:
    """An instance of a planned target in CK's words."""
    signature, how = i.signature, dict(zip([axis.name for axis in i.how.axes], i.how.values, strict=True))
    hdim = signature.get("hdim_v", signature.get("hdim_q"))
    kernel = Kernel(
        family=i.family.removeprefix("fmha_"),
        gfx_arch=i.target.arch,
        data_type=str(signature["dtype"]),
        mode=str(signature.get("mode", "batch")),
        hdim_q=int(signature.get("hdim_q", hdim) or 0),
        hdim_v=int(hdim or 0),
        paged_kv=bool(signature.get("paged", True)),
        page_size=int(signature.get("page_size", 1)),
        pipeline=i.how.pipeline,
    )
    if i.family == "fmha_fwd_splitkv_combine":
        return replace(kernel, tile=(*COMBINE.tile[:3], int(how["tile"]), 1, 1))
    if "waves_qk" not in how:
        return kernel
    waves = [how[name] for name in ("waves_qk", "waves_pv", "waves_kv", "waves_dq") if name in how]
    warps = [how[name] for name in ("warp_qk", "warp_pv", "warp_kv") if name in how]
    return replace(kernel, tile=_numbers([how["tile"]]), wave=_numbers(waves), warp=_numbers(warps))


def _numbers(triples: list[str]) -> tuple[int, ...]:
    """Those of three products, 1x1x1 where there are only two."""
    padded = triples if len(triples) != 2 else [*triples, "1x1x1"]
    return tuple(int(number) for triple in padded for number in triple.split("x"))


def test_a_kernel_as_json_has_the_defaults_of_what_it_leaves_out() -> None:
    kernel = ck_rules.read(
        json.dumps({"family": "fwd_splitkv", "pipeline": "qr", "wave": [2, 2, 1, 2, 2, 1, 1, 1, 1]}), "k"
    )
    assert ck_rules.validate(kernel, RULES) == ([], [])
    assert kernel.tile == Kernel().tile
