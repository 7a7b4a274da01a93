# SPDX-License-Identifier: MIT
"""The HIP forward kernel: compiled for an architecture, and run by the executor on problems of the facade's tests."""

from __future__ import annotations

import dataclasses
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
from tilekiln.reference import attention_problems as attention
from tilekiln.reference import problems

from build_support.toolchains import hip
from tools.executor.amdgcn.code_object import CodeObject, Pointer, llvm_tool, reads, wave_size, writes

ROOT = Path(__file__).resolve().parents[3]
SOURCE = ROOT / "kernels" / "attention" / "fmha_fwd" / "hip" / "forward.hip"
UNBOUNDED = 1 << 29  # kernels/attention/fill_scores.h
FEATURES = {"window": 1, "alibi": 2, "softcap": 4, "lse": 8, "sink": 32, "bias": 64, "top_left": 128}
ROUNDING = {"truncate": 0, "even": 256, "up": 512}  # of P in bf16, where no instruction does it
LOG2E = 1.4426950408889634


def excess(problem: problems.Problem, made: dict[str, np.ndarray], bounds: attention.Bounds = attention.HIP) -> float:
    """As attention.error."""
    return attention.error(problem, problem.reference(), bounds, made)


@dataclasses.dataclass(frozen=True)
class Build:
    """Architecture and options of a code object."""

    architecture: str
    dtype: str = "fp16"
    hdim_q: int = 64
    hdim_v: int = 64
    tile_k: int = 64
    waves: int = 4
    reload_q: bool = False
    dropout: bool = False

    @property
    def defines(self) -> dict[str, int]:
        return {
            "HDIM_Q": self.hdim_q,
            "HDIM_V": self.hdim_v,
            "TILE_K": self.tile_k,
            "WAVES": self.waves,
            "RELOAD_Q": int(self.reload_q),
            "DROPOUT": int(self.dropout),
        }

    @property
    def tile_q(self) -> int:
        """Queries of a workgroup."""
        return self.waves * (32 if wave_size(self.architecture) == 64 else 16)


def compiled(build: Build, place: Path, source: Path = SOURCE) -> Path:
    """The code object. Fails with the compiler's own message."""
    made = place / f"forward-{abs(hash((build, source)))}.hsaco"
    if not made.exists():
        include = [str(source.parents[4]), str(ROOT)]  # a mutated copy has not all
        target = [f"--offload-arch={build.architecture}"]
        words = hip.flags(str(source), target, build.dtype, build.defines, include)
        if source != SOURCE:  # a mutation leaves things unused
            words.remove("-Werror")
        done = subprocess.run([hip.find_clang(), *words, "-o", made], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    return made


def spills(path: Path) -> int:
    """Registers that the compiler could not hold, and bytes of memory for them; scalars in lanes are none."""
    command = [llvm_tool("llvm-readelf"), "--notes", str(path)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return sum(
        int(line.split(":")[1])
        for line in text.splitlines()
        if ".vgpr_spill_count" in line or ".private_segment_fixed_size" in line
    )


def arguments(problem: problems.Problem, made: dict[str, np.ndarray], rounding: str) -> tuple[list[Any], int, int, int]:
    """The fields of ForwardProblem in their order, then batch, nhead_q and the longest seqlen_q.

    Without dropout, sink columns and lengths of their own, which the tests of libraries have.
    """
    given, sizes = problem.inputs, problem.sizes
    q, k, v, out = given["q"], given["k"], given["v"], made["out"]
    group, bhsd = q.ndim == 3, sizes.layout == "bhsd"
    row, head = (-2, -3) if bhsd else (-3, -2)
    features = ROUNDING[rounding]

    def strides(array: np.ndarray) -> tuple[int, int, int]:
        steps = [step // array.itemsize for step in array.strides]
        return (0 if group else steps[0]), steps[head], steps[row]

    def pointer(name: str) -> Any:
        return reads(given[name]) if given.get(name) is not None else np.uint64(0)

    left, right = given.get("window", (-1, -1))
    if given.get("causal"):
        right = 0 if right < 0 else min(right, 0)
    for name, on in {
        "window": left >= 0 or right >= 0,
        "alibi": "alibi_slopes" in given,
        "softcap": "softcap" in given,
        "lse": problem.lse,
        "sink": "sink" in given,
        "bias": "bias" in given,
        "top_left": given.get("mask_origin") == "top_left",
    }.items():
        features |= FEATURES[name] * on
    lse = made.get("lse", np.zeros((1, 1, 1), np.float32))
    bias = given.get("bias", np.zeros((1, 1, 1, 1), q.dtype))
    bias_steps = [
        0 if size == 1 else step // bias.itemsize for step, size in zip(bias.strides, bias.shape, strict=True)
    ]
    of = {name: strides(array) for name, array in (("q", q), ("k", k), ("v", v), ("out", out))}
    scale = given.get("softmax_scale") or q.shape[-1] ** -0.5
    lengths_q = list(sizes.lengths_q) if group else [q.shape[row]]
    lengths_k = list(sizes.lengths_k) if group else [k.shape[row]]
    fields = [
        *(reads(array) for array in (q, k, v)),
        writes(out),
        writes(lse),
        *(pointer(name) for name in ("cu_seqlens_q", "cu_seqlens_k")),
        np.uint64(0),
        np.uint64(0),
        *(pointer(name) for name in ("cu_seqlens_q", "cu_seqlens_k", "alibi_slopes", "sink", "bias")),
        *(np.int64(of[name][0]) for name in of),
        np.int64(0 if group else lse.strides[0] // 4),
        np.int64(0 if group else bias_steps[0]),
        np.int64(0),
        *(np.int64(of[name][1]) for name in of),
        np.int64(lse.strides[-2] // 4),
        np.int64(bias_steps[-3]),
        np.uint64(0),
        np.uint64(0),
        *(np.int32(of[name][2]) for name in of),
        np.int32(bias.strides[-2] // bias.itemsize),
        np.int32(max(lengths_q, default=0)),
        np.int32(max(lengths_k, default=0)),
        np.int32(q.shape[-1]),
        np.int32(v.shape[-1]),
        np.int32(q.shape[head]),
        np.int32(q.shape[head] // k.shape[head]),
        *(np.int32(side if side >= 0 else UNBOUNDED) for side in (left, right)),
        np.int32(0),
        np.int32(0),
        np.float32(scale * LOG2E),
        np.float32(given.get("softcap", 0.0)),
        np.float32(scale / given.get("softcap", 1.0)),
        np.int32(0),
        np.float32(1.0),
        np.int32(features),
        np.int32(2**31 - 1),  # rows of packed arrays
        np.int32(2**31 - 1),
    ]
    if problem.dtype not in ("fp16", "bf16"):  # scales of 1
        fields += [*(np.uint64(0),) * 5, *(np.int64(0),) * 6, np.int32(30), np.float32(1)]
    return fields, len(sizes.lengths_q) if group else q.shape[0], q.shape[head], max(lengths_q, default=0)


def run(
    code: CodeObject, build: Build, problem: problems.Problem, seed: int = 1, rounding: str = "truncate", **options: Any
) -> dict[str, np.ndarray]:
    """Results of the kernel for a problem. Raises FaultError."""
    made = problem.outputs()
    fields, batch, nhead_q, seqlen_q = arguments(problem, made, rounding)
    contiguous = all(field.array.flags.c_contiguous for field in fields if isinstance(field, Pointer))
    assert contiguous, "the executor takes contiguous arrays"
    blocks = -(-seqlen_q // build.tile_q)
    if blocks and batch and nhead_q:
        threads = build.waves * wave_size(build.architecture)
        code.launch("tilekiln_fmha_fwd_waves", (blocks, nhead_q, batch), (threads,), fields, seed=seed, **options)
    return made
