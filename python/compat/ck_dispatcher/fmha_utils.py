# SPDX-License-Identifier: MIT
"""fmha_utils by Tilekiln: upstream's Python names of the attention dispatcher, over Tilekiln's kernels on the CPU.

    PYTHONPATH=python:python/compat/ck_dispatcher

Arrays are NumPy's, heads before the sequence (BHSD) unless perm=0. Kernels come from the available libraries, and are
built by `tilekiln.jit` where none has them. A GPU's words (gfx_arch, waves, pipelines) are kept in a config and change
nothing here. A wrong use raises ArgumentError, where upstream went on; a kernel that fails is an unsuccessful
FmhaResult, as there. There are no device buffers, so nothing of HIP is here.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tilekiln as tk
from fmha_reference import (  # noqa: F401 upstream's names, which programs import from here
    CACHE_ARGUMENTS,
    VECTOR_BYTES,
    FmhaValidator,
    cpu_attention_bwd,
    cpu_attention_fwd,
    cpu_attention_fwd_with_intermediates,
    lists,
    paged,
)
from fmha_reference import wrong as _wrong
from tilekiln._core.dtypes import FLOATS, NUMPY
from tilekiln._generated.tables import OPERATORS
from tilekiln.api import operators
from tilekiln.dispatcher import Algorithm, Call, Dispatcher, KernelSet, Registry, Signature
from tilekiln.reference import vectorized_pages

ERROR_CHARACTERS = 500
BF16, FP8 = NUMPY["bf16"], NUMPY["fp8"]
INPUTS = {**FLOATS, "fp8bf16": FP8, "fp8fp32": FP8}
OUTPUTS = {"fp8bf16": "bf16", "fp8fp32": "fp32"}
MASKS = ({}, {"causal": True, "mask_origin": "top_left"}, {"causal": True}, {})
FAMILIES = {
    "fwd": ("mode", "mask", "bias", "lse", "dropout", "softcap", "skip_min_seqlen_q", "sink", "qscale"),
    "fwd_splitkv": ("mode", "mask", "bias", "softcap", "paged", "sink", "qscale"),
    "fwd_pagedkv": ("mode", "mask", "bias", "softcap", "sink", "qscale"),
    "fwd_appendkv": ("rope", "paged"),
    "batch_prefill": ("mask", "bias", "lse", "dropout", "softcap", "sink", "qscale", "layout", "lookup", "page_size"),
    "bwd_dq_dk_dv": ("mode", "mask", "bias", "dbias", "dropout", "softcap", "sink", "deterministic"),
}
"""The families that a config may be of, and the axes of ours that it says."""
SETTERS = {"softcap": ("logits", "logits"), "skip_min_seqlen_q": ("skip", "skip_min_seqlen_q"),
           "paged": ("paged_kv", "paged_kv")}  # fmt: skip
"""Setters of a Signature and fields of a config that are no names of the axis."""


@dataclasses.dataclass
class FmhaResult:
    """Result of a run. After a failure output is None and error gives the reason."""

    success: bool
    output: Any = None
    time_ms: float = 0.0
    tflops: float = 0.0
    error: str = ""


@dataclasses.dataclass
class FmhaProblem:
    """The sizes of a problem, BHSD."""

    batch: int = 2
    nhead_q: int = 8
    nhead_k: int = 8
    seqlen_q: int = 128
    seqlen_k: int = 128
    hdim_q: int = 128
    hdim_v: int = 128

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if not isinstance(value, int) or value < 1:
                raise _wrong(field.name, value, "at least 1")
        if self.nhead_q % self.nhead_k:
            raise _wrong("nhead_q", self.nhead_q, f"a multiple of nhead_k, {self.nhead_k}")

    @property
    def scale(self) -> float:
        """Factor of the scores before softmax, 1 / sqrt(hdim_q)."""
        return float(self.hdim_q**-0.5)

    @property
    def num_ops(self) -> int:
        """Multiplications and additions, masked or not."""
        return 2 * self.batch * self.nhead_q * self.seqlen_q * self.seqlen_k * (self.hdim_q + self.hdim_v)

    def q_shape(self) -> tuple[int, ...]:
        return self.batch, self.nhead_q, self.seqlen_q, self.hdim_q

    def k_shape(self) -> tuple[int, ...]:
        return self.batch, self.nhead_k, self.seqlen_k, self.hdim_q

    def v_shape(self) -> tuple[int, ...]:
        return self.batch, self.nhead_k, self.seqlen_k, self.hdim_v

    def o_shape(self) -> tuple[int, ...]:
        return self.batch, self.nhead_q, self.seqlen_q, self.hdim_v


@dataclasses.dataclass
class FmhaKernelConfig:
    """A kernel in upstream's words. Numbers of tiles, waves and warps are a GPU's: kept, without effect here."""

    family: str = "fwd"
    data_type: str = "fp16"
    mode: str = "batch"
    vlayout: str = "r"
    hdim_q: int = 128
    hdim_v: int = 128
    mask: str = "no"
    bias: str = "no"
    lse: bool = False
    dropout: bool = False
    qscale: str = "no"
    rope: str = "none"
    logits: bool = False
    paged_kv: bool = False
    skip_min_seqlen_q: bool = False
    sink: bool = False
    dbias: bool = False
    store_randval: bool = False
    deterministic: bool = False
    kv_memory_layout: str = "vectorized"
    kv_lookup_table: str = "sglang"
    page_size: int = 1
    pipeline: str = "qr_async"
    gfx_arch: str = "gfx950"
    tile: tuple[int, ...] = (128, 128, 32, 128, 32, 128)
    wave: tuple[int, ...] = (4, 1, 1, 4, 1, 1, 1, 1, 1)
    warp: tuple[int, ...] = (32, 32, 16, 32, 32, 16, 16, 16, 16)
    padding: tuple[int, ...] = (1, 1, 1, 1)
    block_per_cu: int = -1
    num_wave_groups: int = 1

    def __post_init__(self) -> None:
        if self.family not in FAMILIES:
            raise _wrong("family", self.family, f"one of {', '.join(FAMILIES)}; other stages come with these")
        if self.data_type not in INPUTS:
            raise _wrong("data_type", self.data_type, f"one of {', '.join(INPUTS)}")
        if self.mode not in ("batch", "group"):
            raise _wrong("mode", self.mode, "batch or group")
        if self.vlayout != "r":
            raise _wrong("vlayout", self.vlayout, "r: kernels read V row-major")
        for name, lengths in (("tile", (6, 9)), ("wave", (9,)), ("warp", (9,)), ("padding", (4,))):
            if len(getattr(self, name)) not in lengths:
                raise _wrong(name, getattr(self, name), f"{' or '.join(map(str, lengths))} numbers")
        self.signature()

    @property
    def name(self) -> str:
        """One for each config that differs anywhere."""
        import hashlib

        digits = hashlib.blake2b(repr(dataclasses.astuple(self)).encode(), digest_size=6).hexdigest()
        return f"fmha_{self.family}_{self.data_type}_{self.mode}_{self.hdim_q}x{self.hdim_v}_{digits}"

    def to_codegen_json(self) -> str:
        """The kernel as `python -m codegen validate` takes it."""
        import json

        return json.dumps(dataclasses.asdict(self), sort_keys=True)

    def signature(self) -> Signature:
        """The axes of Tilekiln's family that a caller chooses, with their values."""
        of = Signature(self.family).dtype(self.data_type).hdim(self.hdim_q, self.hdim_v)
        kept = {"layout": self.kv_memory_layout, "lookup": self.kv_lookup_table, "page_size": "any"}
        for axis in FAMILIES[self.family]:
            setter, field = SETTERS.get(axis, (axis, axis))
            if axis in kept:
                of.set(axis, kept[axis])
            else:
                getattr(of, setter)(getattr(self, field))
        if self.family == "bwd_dq_dk_dv" and self.store_randval:
            of.store_randval()
        if self.family == "fwd_splitkv":
            of.lse()  # a split always writes it
        if self.family == "batch_prefill":
            of.set("kv_dtype", "same")
        return of

    def selection(self) -> str:
        """The kernel as `tilekiln.jit` takes it."""
        values = self.signature().values.items()
        return " ".join([f"fmha_{self.family}", *(f"{a}={v}" for a, v in values if v != "any" and v is not None)])


@dataclasses.dataclass
class FmhaKernelSpec:
    """A kernel by what mostly differs."""

    name: str
    hdim: int
    pipeline: str
    m0: int
    n0: int
    k0: int


def detect_gpu_arch(fallback: str = "gfx942") -> str:
    """The architecture of the first AMD GPU that `rocminfo` lists, as "gfx942"; `fallback` where there is none."""
    tool = shutil.which("rocminfo") or shutil.which("/opt/rocm/bin/rocminfo")
    if tool is None:
        return fallback
    said = subprocess.run([tool], capture_output=True, text=True, check=False).stdout
    found = re.search(r"^\s*Name:\s+(gfx[0-9a-f]+)\s*$", said, re.MULTILINE)
    return found[1] if found else fallback


def spec_to_config(spec: FmhaKernelSpec, **fields: Any) -> FmhaKernelConfig:
    """The config of a short form: n1 and k0max are the head dim, k1 is k0."""
    tile = (spec.m0, spec.n0, spec.k0, spec.hdim, spec.k0, spec.hdim)
    return FmhaKernelConfig(hdim_q=spec.hdim, hdim_v=spec.hdim, pipeline=spec.pipeline, tile=tile, **fields)


class FmhaDispatcherLib:
    """A kernel library. Upstream's runs what is first in its registry; this one chooses."""

    def __init__(self, library: tk.Library) -> None:
        self.library = library
        self.registry = Registry(library.receipt)
        self.dispatcher = Dispatcher(self.registry).add_library(library)

    @classmethod
    def load(cls, path: str) -> FmhaDispatcherLib:
        """Of a file, or a receipt's name. ImportError, OSError or NoKernelError for none."""
        return cls(tk.load(path))

    @classmethod
    def find(cls) -> FmhaDispatcherLib | None:
        """The first available library with attention; None for none."""
        return next((cls(library) for library in tk.libraries() if "fmha_fwd" in library.operators), None)

    def kernel_count(self) -> int:
        """Number of kernels in its registry."""
        return len(self.registry)

    def cleanup(self) -> None:
        """Forgets its kernels."""
        self.registry.clear()


_ALL = (name for name in OPERATORS if name.startswith("fmha_") and name != "fmha_bwd")
APIS = {name.removeprefix("fmha_").removeprefix("fwd_"): name for name in _ALL}  # by upstream's names of calls


def _page_size(cache: dict[str, Any]) -> int:
    size = cache.get("page_size", 64)
    if not isinstance(size, int) or size < 1:
        raise _wrong("page_size", size, "at least 1")
    return size


class FmhaRunner:
    """Runs problems by a library."""

    def __init__(self, lib: FmhaDispatcherLib) -> None:
        self.lib = lib

    @classmethod
    def from_library(cls, path: str) -> FmhaRunner:
        """Of a file, or a receipt's name."""
        return cls(FmhaDispatcherLib.load(path))

    @classmethod
    def from_prebuilt(cls) -> FmhaRunner:
        """Of the first available library. NoKernelError for none."""
        found = FmhaDispatcherLib.find()
        if found is None:
            raise tk.NoKernelError("no library with attention is available: tools/dev scons receipt=flash builds one")
        return cls(found)

    def run(
        self,
        Q: Any,  # noqa: N803
        K: Any,  # noqa: N803
        V: Any,  # noqa: N803
        prob: FmhaProblem,
        mask_type: int = 0,
        bias_type: int = 0,
        has_lse: bool = False,
        has_dropout: bool = False,
        has_logits: bool = False,
        has_sink: bool = False,
        api_family: str = "fwd",
        data_type: str = "fp16",
        **more: Any,
    ) -> FmhaResult:
        """One forward. Q, K, V: (batch, nhead, seqlen, hdim), with perm=0 (batch, seqlen, nhead, hdim); of any dtype.

        api_family: fwd; splitkv, of pages too (paged_kv); pagedkv; batch_prefill, all sequences of one length,
        kv_layout 0 (vectorized) or 1 (linear), kv_lookup 0 (vLLM's table) or 1 (SGLang's lists); appendkv, whose last
        seqlen_knew keys and values are appended to a cache of the first, rotated where rope_type is 1 (interleaved) or
        2 (halves) by rotary_cos and rotary_sin: output is the grown (K, V). Pages have page_size tokens (64) and are
        made here, of K and V as they are given.

        more: perm, window_left, window_right, num_splits, and what upstream fixed: bias, alibi_slopes, dropout_p, rng,
        softcap, sink, q_descale, k_descale, v_descale. output is of the shape of Q, with V's head dim.
        """
        perm = more.pop("perm", 1)
        if data_type not in INPUTS:
            raise _wrong("data_type", data_type, f"one of {', '.join(INPUTS)}")
        api_family = api_family.removeprefix("fwd_")
        if api_family not in APIS:
            raise _wrong("api_family", api_family, f"one of {', '.join(APIS)}")
        arguments = self._arguments(mask_type, bias_type, has_dropout, has_logits, has_sink, more)
        shapes = {"Q": (Q, prob.q_shape()), "K": (K, prob.k_shape()), "V": (V, prob.v_shape())}
        for name, (array, shape) in shapes.items():
            expected = shape if perm else (shape[0], shape[2], shape[1], shape[3])
            if np.shape(array) != expected:
                raise _wrong(name, np.shape(array), f"{expected}, as prob says")
        arrays = [np.asarray(array).astype(INPUTS[data_type], copy=False) for array in (Q, K, V)]
        arguments |= {"layout": "bhsd" if perm else "bshd"}
        if data_type in OUTPUTS:
            arguments["out_dtype"] = OUTPUTS[data_type]
        if has_lse:
            if api_family in ("pagedkv", "appendkv"):
                raise _wrong("has_lse", has_lse, f"False: {api_family} writes none")
            arguments["return_lse"] = True
        if api_family == "splitkv" and "num_splits" in more:
            arguments["num_splits"] = more.pop("num_splits")
        cache = {name: more.pop(name) for name in CACHE_ARGUMENTS.get(api_family, ()) if name in more}
        if more:
            raise _wrong("run", f"given {', '.join(sorted(more))}", "given what its page names")
        if api_family not in CACHE_ARGUMENTS or (api_family == "splitkv" and not cache.pop("paged_kv", False)):
            return self._timed(Call(APIS[api_family], *arrays, **arguments), prob)
        run = self._append if api_family == "appendkv" else self._of_pages
        return run(api_family, arrays, arguments, cache, prob)

    def _of_pages(
        self, api: str, arrays: list[Any], arguments: dict[str, Any], cache: dict[str, Any], prob: FmhaProblem
    ) -> FmhaResult:
        """Over K and V in pages."""
        size = _page_size(cache)
        turned = arguments.pop("layout") == "bhsd"
        q, k, v = (np.swapaxes(array, 1, 2) if turned else array for array in arrays)
        (keys, table), (values, _) = (paged(array, size) for array in (k, v))
        lengths = np.full(prob.batch, prob.seqlen_k, np.int32)
        arguments |= {"block_table": table, "seqlen_k": lengths}
        if api == "batch_prefill":
            cache = {"kv_layout": 0, "kv_lookup": 1, **cache}
            for name in ("kv_layout", "kv_lookup"):
                if cache[name] not in (0, 1):
                    raise _wrong(name, cache[name], "0 or 1")
            if cache["kv_layout"] == 0:
                if size % (VECTOR_BYTES // k.dtype.itemsize):
                    raise _wrong("page_size", size, "a multiple of the elements of 16 bytes, or kv_layout 1")
                keys, values = vectorized_pages(keys, values)
            if cache["kv_lookup"] == 1:
                del arguments["block_table"], arguments["seqlen_k"]
                arguments |= lists(table, prob.seqlen_k, size)
            arguments |= {"cu_seqlens_q": np.arange(prob.batch + 1, dtype=np.int32) * np.int32(prob.seqlen_q)}
            q = q.reshape(-1, *q.shape[2:])
        result = self._timed(Call(APIS[api], np.ascontiguousarray(q), keys, values, **arguments), prob)
        if result.success:
            whole, *lse = result.output if isinstance(result.output, tuple) else (result.output,)
            whole = whole.reshape(prob.batch, prob.seqlen_q, prob.nhead_q, prob.hdim_v)
            whole = np.swapaxes(whole, 1, 2) if turned else whole
            result.output = (whole, *lse) if lse else whole
        return result

    def _append(
        self, api: str, arrays: list[Any], arguments: dict[str, Any], cache: dict[str, Any], prob: FmhaProblem
    ) -> FmhaResult:
        """The last keys and values into a cache that has the first."""
        new, rope = cache.get("seqlen_knew", 1), cache.get("rope_type", 0)
        if not 0 < new <= prob.seqlen_k:
            raise _wrong("seqlen_knew", new, f"from 1 to {prob.seqlen_k}, the keys there are")
        if rope not in (0, 1, 2):
            raise _wrong("rope_type", rope, "0 (none), 1 (interleaved) or 2 (halves)")
        rotary = {name: cache[name] for name in ("rotary_cos", "rotary_sin") if name in cache}
        if (rope != 0) != (len(rotary) == 2):
            raise _wrong("rotary_cos, rotary_sin", "given" if rotary else "not given", "given exactly with a rope_type")
        if rope:
            rotary["rotary_interleaved"] = rope == 1
        turned = arguments.pop("layout") == "bhsd"
        unknown = arguments.keys() - {"causal", "window", "mask_origin", "num_threads"}
        if unknown:
            raise _wrong("run", f"given {', '.join(sorted(unknown))}", "given what an append takes")
        q, k, v = (np.array(np.swapaxes(array, 1, 2) if turned else array, order="C") for array in arrays)
        before = prob.seqlen_k - new
        added = [np.ascontiguousarray(array[:, before:]) for array in (k, v)]
        for array in (k, v):
            array[:, before:] = 0
        pools: Any = [k, v]
        table: dict[str, Any] = {}
        if cache.get("paged_kv", False):
            size = _page_size(cache)
            pools, numbers = zip(*(paged(array, size) for array in (k, v)), strict=True)
            table = {"block_table": numbers[0]}
        lengths = np.full(prob.batch, before, np.int32)
        call = Call(APIS[api], q, *pools, *added, seqlen_k=lengths, attend=False, **rotary, **table, **arguments)
        result = self._timed(call, prob)
        if result.success:
            if table:
                pages = [pool[numbers[0]].reshape(prob.batch, -1, *pool.shape[2:]) for pool in pools]
                pools = [array[:, : prob.seqlen_k] for array in pages]
            result.output = tuple(np.swapaxes(array, 1, 2) if turned else array for array in pools)
            result.tflops = 0.0
        return result

    def _timed(self, call: Call, prob: FmhaProblem) -> FmhaResult:
        dispatcher = self.lib.dispatcher
        try:
            plan = dispatcher.from_call(call)
            begin = time.perf_counter()
            output = dispatcher.run(call, problem=plan)
        except tk.NoKernelError as error:
            return FmhaResult(False, error=f"Kernel failed ({str(error)[:ERROR_CHARACTERS]})")
        milliseconds = 1e3 * (time.perf_counter() - begin)
        return FmhaResult(True, output, milliseconds, prob.num_ops / milliseconds / 1e9)

    def _arguments(
        self, mask_type: int, bias_type: int, dropout: bool, logits: bool, sink: bool, more: dict[str, Any]
    ) -> dict[str, Any]:
        if mask_type not in range(4):
            raise _wrong("mask_type", mask_type, "0 (none), 1 (top left), 2 (bottom right) or 3 (window)")
        arguments: dict[str, Any] = dict(MASKS[mask_type])
        window = more.pop("window_left", -1), more.pop("window_right", -1)
        if mask_type == 3:
            arguments["window"] = window
        elif window != (-1, -1):
            raise _wrong("window_left, window_right", window, "-1 unless mask_type is 3")
        for on, name, said in ((bias_type == 1, "bias", f"bias_type {bias_type}"),
                               (bias_type == 2, "alibi_slopes", f"bias_type {bias_type}"),
                               (dropout, "dropout_p", "has_dropout"), (logits, "softcap", "has_logits"),
                               (sink, "sink", "has_sink")):  # fmt: skip
            if on != (name in more):
                raise _wrong(name, "given" if name in more else "not given", f"given exactly with {said}")
            if on:
                arguments[name] = more.pop(name)
        if bias_type not in range(3):
            raise _wrong("bias_type", bias_type, "0 (none), 1 (elementwise) or 2 (alibi)")
        plain = ("rng", "q_descale", "k_descale", "v_descale", "softmax_scale", "num_threads")
        return arguments | {name: more.pop(name) for name in plain if name in more}

    def run_bwd(
        self, Q: Any, K: Any, V: Any, out: Any, lse: Any, dO: Any, prob: FmhaProblem, data_type: str = "fp16",  # noqa: N803
        mask_type: int = 0, deterministic: bool = False,
    ) -> FmhaResult:  # fmt: skip
        """One backward: output is (dQ, dK, dV), BHSD; dK and dV of grouped queries are summed."""
        if data_type not in ("fp32", "fp16", "bf16"):
            raise _wrong("data_type", data_type, "fp32, fp16 or bf16")
        arguments = self._arguments(mask_type, 0, False, False, False, {})
        arrays = [np.asarray(array).astype(INPUTS[data_type], copy=False) for array in (dO, Q, K, V, out)]
        call = Call(
            "fmha_bwd", *arrays, np.asarray(lse, np.float32), layout="bhsd", deterministic=deterministic, **arguments
        )
        return self._timed(call, prob)


@dataclasses.dataclass
class FmhaSetupResult:
    """A kernel that was made ready, or why not."""

    success: bool
    config: FmhaKernelConfig
    runner: FmhaRunner | None = None
    library_path: str = ""
    error: str = ""
    build_time_s: float = 0.0


def _at_hand(config: FmhaKernelConfig) -> tk.Library | None:
    wanted = KernelSet(config.name).add(config.signature(), Algorithm())
    for library in operators.at_hand() if operators._at_hand() else []:
        with contextlib.suppress(tk.ArgumentError):
            wanted.of(library)
            return library
    return None


def setup_fmha_dispatcher(config: FmhaKernelConfig) -> FmhaSetupResult:
    """Makes one kernel ready: of an available library, else built. With a main stage come its others."""
    result = setup_multiple_fmha_dispatchers([config])[0]
    if result.success:
        result.runner = FmhaRunner.from_library(result.library_path)
    return result


def setup_multiple_fmha_dispatchers(
    configs: Sequence[FmhaKernelConfig], progress_callback: Callable[[str, int, int], object] | None = None
) -> list[FmhaSetupResult]:
    """Makes kernels ready, those to be built in parallel; results in the order of configs, without runners."""
    if not all(isinstance(config, FmhaKernelConfig) for config in configs):
        raise _wrong("configs", configs, "FmhaKernelConfigs")
    begin = time.perf_counter()
    callback = progress_callback
    report = (lambda done, total: callback("compile", done, total)) if callback is not None else None
    try:
        found = [_at_hand(config) for config in configs]
        missing = [config.selection() for config, library in zip(configs, found, strict=True) if library is None]
        built = iter(tk.jit(missing, progress=report) if missing else [])
        libraries = [library or next(built) for library in found]
    except (tk.ArgumentError, tk.NoKernelError, RuntimeError) as error:
        if len(configs) == 1:
            return [FmhaSetupResult(False, configs[0], error=str(error)[:ERROR_CHARACTERS])]
        return [setup_multiple_fmha_dispatchers([config], progress_callback)[0] for config in configs]
    seconds = time.perf_counter() - begin
    made = zip(configs, libraries, strict=True)
    return [FmhaSetupResult(True, config, None, library.path, "", seconds) for config, library in made]


class FmhaRegistry:
    """Configs by name, and their kernels when they are built."""

    def __init__(self, name: str = "default") -> None:
        self.name = name
        self.kernels: dict[str, FmhaKernelConfig] = {}

    def register_kernel(self, config: FmhaKernelConfig) -> None:
        """Adds a config; one that differs nowhere is there already."""
        if not isinstance(config, FmhaKernelConfig):
            raise _wrong("config", config, "an FmhaKernelConfig")
        self.kernels[config.name] = config

    def __len__(self) -> int:
        return len(self.kernels)

    def build(self) -> list[FmhaSetupResult]:
        """Makes them all ready."""
        return setup_multiple_fmha_dispatchers(list(self.kernels.values()))
