# SPDX-License-Identifier: MIT
"""A library with a CUDA target, without a GPU: it builds, loads, runs its CPU rows, and asks a driver for what it must.

The driver is a stub (driver_stub.cpp): nothing here says what a kernel computes. `tools/gpu test` does, on a GPU.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tilekiln as tk
from tilekiln._core.dtypes import NUMPY

from build_support.toolchains import cubin, nvcc
from codegen.emit import kernels
from codegen.plan.plan import resolve
from codegen.schema.tree import tree
from codegen.tell.verify import verify
from tests.conftest import Scons
from tests.programs import need
from tests.python.capsules import Exported

ROOT = Path(__file__).resolve().parents[2]
TARGETS = "cuda-sm90a,cuda-sm80,native"
WHERE = " or ".join(f"family={one} dtype=bf16 hdim_q=64 hdim_v=64" for one in ("fmha_fwd", "fmha_bwd_dq_dk_dv"))

BIASES = "family=fmha_fwd,fmha_bwd_dq_dk_dv dtype=bf16 hdim_q=64 hdim_v=64 mode=batch bias=elementwise"
OVER_CACHES = (
    "family=fmha_fwd_splitkv,fmha_fwd_appendkv dtype=bf16,fp16 hdim_q=64 hdim_v=64 pipeline!=hopper or "
    "family=fmha_fwd_splitkv dtype=bf16 hdim_q=32 hdim_v=32 pipeline!=hopper or "  # fewer columns than a warp merges
    "family=fmha_fwd dtype=bf16 hdim_q=64 hdim_v=64"
)
FP8 = (
    "family=fmha_fwd dtype=fp8bf16 hdim_q=128 mask=none sink=no or "
    "family=fmha_fwd_splitkv,fmha_fwd_appendkv dtype=fp8 hdim_q=128 hdim_v=128"
)
CACHES_OF_BYTES = (
    "family=fmha_batch_prefill dtype=fp8bf16 hdim_q=128 hdim_v=128 or "
    "family=fmha_batch_prefill kv_dtype=fp8 hdim_q=128 hdim_v=128"
)

CASES = "lazily streams capture_first sequences unread errors other_chip later_chip early_chip".split()
CASES += "backward backward_sequences launcher".split()

pytestmark = pytest.mark.xdist_group("cuda")


@pytest.fixture(scope="module")
def path(build_library: Callable[..., Path], binding: object) -> Path:
    need("nvcc")
    return build_library("flash", targets=TARGETS, where=WHERE)


@pytest.fixture(scope="module")
def over_caches(path: Path, build_library: Callable[..., Path]) -> Path:
    return build_library("flash", targets="cuda-sm90a", where=OVER_CACHES)


def test_needs_no_driver(path: Path) -> None:
    said = subprocess.run(["readelf", "-d", path], capture_output=True, text=True, check=True).stdout
    needed = re.findall(r"NEEDED.*\[([^\]]+)\]", said)
    assert needed
    assert not [name for name in needed if "cu" in name.lower()]


def test_loads_and_runs_its_cpu_rows_without_a_driver(path: Path) -> None:
    library = tk.Library(path)
    q = np.ones((1, 5, 1, 64), NUMPY["bf16"])
    assert np.all(library.fmha_fwd(q, q, q) == 1)
    on_device = Exported(q.view(np.uint16), device_type=2, code=4, bits=16)
    for index, stride in enumerate(q.strides):
        on_device.managed.tensor.strides[index] = stride // 2
    said = r"for cuda-sm90a, which this machine has not \(there is no NVIDIA driver \(libcuda\.so\.1: .*\)\): fmha"
    with pytest.raises(tk.NoKernelError, match=said) as refused:
        library.fmha_fwd(on_device, on_device, on_device, out=on_device_copy(q))
    assert "scons" not in str(refused.value)  # it is built: no build brings a driver
    (row,) = [
        i
        for i in library.instances("mode=batch mask=none bias=none lse=no dropout=no softcap=no")
        if "hopper" in i.name
    ]
    assert row.name.endswith("_hopper_b192x128_cuda_sm90a")
    assert not library.instance_usable(row.number)


@pytest.mark.turns(1)
def test_goes_wherever_others_go(path: Path, scons: Scons, tmp_path: Path) -> None:
    """Wheel, Hugging Face's kernels, report, installation, verification; a source tree, for a C++ compiler alone."""
    options = ["receipt=flash", f"target={TARGETS}", f"where={WHERE}"]
    scons(*options, "wheel", "report", "hf-kernels", "install", f"prefix={tmp_path / 'prefix'}")
    place = path.parents[1]
    [wheel] = (place / "wheel").glob("tilekiln_flash-*.whl")
    with zipfile.ZipFile(wheel) as packed:
        [kernel] = [name for name in packed.namelist() if name.endswith(".so")]
        assert packed.read(kernel) == path.read_bytes()
    assert list((place / "hf-kernels").glob("*/build/torch-stable-abi*-cuda-*"))
    targets = json.loads((place / "report/flash.json").read_text())["targets"]
    assert {"cuda-sm90a", "cuda-sm80"} < set(targets)
    assert len(targets) == 3
    assert (tmp_path / "prefix/lib" / path.name).read_bytes() == path.read_bytes()
    text, well = verify(tree(), str(path))
    assert well, text
    vendored = tmp_path / "vendored"
    scons(*options, f"vendor={vendored}")
    compiler = f"{os.environ.get('TILEKILN_TEST_LAUNCHER', '')} {os.environ.get('CXX', 'g++')}".strip()
    subprocess.run(["make", "-j2", "-s", f"CXX={compiler}"], cwd=vendored, check=True, capture_output=True)
    built = vendored / "build" / path.name
    text, well = verify(tree(), str(built))
    assert well, text
    assert kernels_of(built) == kernels_of(path) != []
    assert tk.Library(built).instance_count == tk.Library(path).instance_count
    done = subprocess.run(
        [sys.executable, "-m", "codegen", "sources", "flash", "--list", "--target", TARGETS, "--where", WHERE],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "cuda-sm80 is compiled by toolchain 'nvcc', which `scons vendor=` runs" in done.stderr


def kernels_of(library: Path) -> list[str]:
    """Digests of the cubins that a library holds."""
    data = library.read_bytes()
    starts = [found.start() for found in re.finditer(b"\\x7fELF\\x02\\x01\\x01", data)][1:]
    return sorted(
        hashlib.sha256(data[at : at + struct.unpack_from("<Q", data, at + 40)[0]]).hexdigest() for at in starts
    )


def on_device_copy(array: np.ndarray) -> Exported:
    made = Exported(array.view(np.uint16).copy(), device_type=2, code=4, bits=16)
    for index, stride in enumerate(array.strides):
        made.managed.tensor.strides[index] = stride // 2
    return made


def test_holds_the_kernels_of_its_rows_alone(path: Path) -> None:
    data = path.read_bytes()
    assert b"fmha_fwd_d64-bf16\0" in data
    assert b"fmha_fwd_d64-fp16\0" not in data
    assert b"fmha_fwd_d128-bf16\0" not in data


@pytest.mark.torch
@pytest.mark.parametrize("case", CASES)
def test_host_side(path: Path, beside_stub: Callable[..., None], case: str) -> None:
    beside_stub("tests/cuda/host_side.py", path, case)


def test_a_library_for_devices_alone_is_found(over_caches: Path, path: Path, tmp_path: Path) -> None:
    """By its name and by what looks through all libraries; one of that name that has the CPU too goes first."""
    program = "import tilekiln as tk; from tilekiln.api.library import libraries; "
    program += "from tilekiln.api.operators import at_hand_has as has; "
    program += "assert has('fmha_fwd', 'cuda') and not has('rotary', 'cuda') and not has('fmha_fwd', 'hip'); "
    program += "print(tk.load('lonely').instance_count, [x.instance_count for x in libraries()])"
    counts = {}
    for name, library in (("devices", over_caches), ("both", path)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "libtilekiln_lonely.so").symlink_to(library)
        counts[name] = tk.Library(library).instance_count
    for places, found in ((["devices"], "devices"), (["devices", "both"], "both")):
        folders = os.pathsep.join(str(tmp_path / place) for place in places)
        environment = {**os.environ, "TILEKILN_PATH": folders, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
        done = subprocess.run(
            [sys.executable, "-c", program], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        loaded, _, every = done.stdout.partition(" ")
        assert int(loaded) == counts[found]
        assert str(counts[found]) in every


@pytest.mark.parametrize("library", ["path", "over_caches"])
def test_drawn_wrong_calls(library: str, beside_stub: Callable[..., None], request: pytest.FixtureRequest) -> None:
    seed = request.config.option.sample_seed % 10**6
    beside_stub("-m", "tests.cuda.bad_calls", request.getfixturevalue(library), 25, seed)


@pytest.mark.torch
@pytest.mark.parametrize("case", ["cache", "few_queries"])
def test_host_side_of_caches(over_caches: Path, beside_stub: Callable[..., None], case: str) -> None:
    beside_stub("tests/cuda/host_side.py", over_caches, case)


@pytest.mark.torch
def test_host_side_of_fp8(path: Path, build_library: Callable[..., Path], beside_stub: Callable[..., None]) -> None:
    beside_stub("tests/cuda/host_side.py", build_library("fp8", targets="cuda-sm90a", where=FP8), "fp8")


def tile_of(kernel: kernels.Kernel) -> tuple[int, int]:
    """Queries and keys of a tile, by what the kernel is compiled for."""
    define = kernel.file.define
    if "KEYS" in define:
        return 64 * define["WARPGROUPS"], define["KEYS"]
    return define.get("QUERY_ROWS", 0), 64 if define.get("HDIM", 0) > 128 else 128


def hdim_of(kernel: kernels.Kernel, axis: str) -> int:
    return kernel.file.define.get(axis.upper(), kernel.file.define.get("HDIM", 0))


@pytest.mark.parametrize(("receipt", "count"), [("flash", 39), ("fp8", 7)])
def test_every_row_has_a_kernel(receipt: str, count: int) -> None:
    """By the plan alone: each row's tile is that of a kernel which holds its head dims."""
    plan = resolve(receipt, ["cuda-sm90a"])
    held = kernels.of_plan(plan)
    assert len(held) == count
    assert plan.instances
    for instance in plan.instances:
        if instance.how.pipeline in ("append", "combine", "latent"):
            continue
        signature, tile = instance.signature, tuple(map(int, str(instance.algorithm["tile"]).split("x")))
        hdims = {axis: signature[axis] for axis in ("hdim_q", "hdim_v") if axis in signature}
        if instance.how.pipeline == "decode":
            of_bytes = int("fp8" in str(signature["dtype"]) or signature.get("kv_dtype") == "fp8")
            assert any(
                kernel.dtype == ("any" if of_bytes else signature["dtype"])
                and kernel.file.define["HDIM"] >= max(hdims.values())
                for kernel in held.values()
                if kernel.file.define.get("BYTES") == of_bytes
            ), instance.name
            continue
        assert any(
            kernel.dtype == signature["dtype"]
            and ("fmha_bwd" in kernel.name) == ("fmha_bwd" in instance.family)
            and all(hdim_of(kernel, axis) >= value for axis, value in hdims.items())
            and tile_of(kernel)[: len(tile)] == tile
            for kernel in held.values()
        ), instance.name


def test_every_row_of_sm80_has_a_kernel() -> None:
    plan = resolve("flash", ["cuda-sm80"])
    held = kernels.of_plan(plan)
    assert len(held) == 26
    assert {instance.family for instance in plan.instances} == {
        "fmha_fwd", "fmha_fwd_splitkv", "fmha_fwd_splitkv_combine", "fmha_fwd_pagedkv", "fmha_fwd_appendkv",
        "fmha_batch_prefill", "fmha_bwd_dq_dk_dv", "fmha_bwd_dot_do_o", "fmha_bwd_convert_dq",
    }  # fmt: skip
    for instance in plan.instances:
        if instance.how.pipeline in ("append", "combine", "latent"):
            continue
        signature, tile = instance.signature, str(instance.algorithm["tile"])
        hdims = {axis: signature[axis] for axis in ("hdim_q", "hdim_v") if axis in signature}
        if "fmha_bwd" in instance.family:
            hdim = next(one for one in (64, 128, 256) if one >= max(hdims.values()))
            (kernel,) = [one for one in held.values() if one.name == f"fmha_bwd_ampere_d{hdim}-{signature['dtype']}"]
            assert tile.split("x", maxsplit=1)[0] == str(tile_of(kernel)[0])
            continue
        of_pipeline = {"ampere": "ampere_d", "decode": "decode"}[instance.how.pipeline]
        assert any(
            of_pipeline in kernel.name
            and kernel.dtype == signature["dtype"]
            and all(hdim_of(kernel, axis) >= value for axis, value in hdims.items())
            and (of_pipeline == "decode" or tile == f"{64 * kernel.file.define['BLOCKS']}x{kernel.file.define['KEYS']}")
            for kernel in held.values()
        ), instance.name


def test_what_the_target_refuses() -> None:
    root = tree()
    refusals = root.refusals(root.target("cuda-sm90a"), root.family("fmha_fwd"))
    assert [rule.says for rule in refusals] == [
        "no kernel of head dim 512 exists for cuda-sm90a yet",
        "FNUZ formats are gfx942's: NVIDIA's GPUs multiply OCP's e4m3",
        "on a CUDA GPU q, k and v are fp16, bf16 or e4m3: its tensor cores multiply no fp32",
    ]
    backward = root.refusals(root.target("cuda-sm90a"), root.family("fmha_bwd_dq_dk_dv"))
    assert [rule.name for rule in backward] == [
        "cuda_has_no_512_yet",
        "cuda_backward_needs_16_bits",
    ]
    for receipt in ("flash", "fp32", "fp8"):
        dtypes = {
            i.signature["dtype"]
            for i in resolve(receipt, ["cuda-sm90a", "cpu-generic"]).instances
            if i.target.name == "cuda-sm90a"
        }
        assert (
            dtypes
            == {"flash": {"fp16", "bf16", "bf16_fp8"}, "fp32": set(), "fp8": {"fp8bf16", "fp8fp32", "fp8"}}[receipt]
        )


def test_what_a_cubin_must_hold() -> None:
    with pytest.raises(cubin.CubinError, match="no 64-bit ELF file"):
        cubin.constant(b"\0" * 100, "_build")
    with pytest.raises(cubin.CubinError, match="the compiler's fatbin holds no machine code"):
        cubin.machine_code(
            struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 64) + struct.pack("<HHIQ", 1, 257, 16, 48) + b"\0" * 48
        )
    own = Path(sys.executable).resolve().read_bytes()
    with pytest.raises(cubin.CubinError, match="the cubin has 0 symbols that end in _no_such_build, must have one"):
        cubin.constant(own, "_no_such_build")


def test_compilers_of_one_release_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each build of a compiler has its own objects: a signature holds all that it says of itself."""
    from build_support.toolchains import hip

    said = set()
    for at, build in enumerate((17, 88)):
        compiler = tmp_path / f"compiler{at}"
        lines = f"x clang version {hip.LLVM}.1.{build}", f"release {nvcc.TOOLKIT}, V{nvcc.TOOLKIT}.{build}"
        compiler.write_text("".join(["#!/bin/sh\n", *(f"echo '{line}'\n" for line in lines)]))
        compiler.chmod(0o755)
        monkeypatch.setenv("HIP_CLANG", str(compiler))
        said |= {nvcc.version_of(compiler), hip.find.__wrapped__().version}
    assert len(said) == 4


def test_what_a_kernel_needs_is_held_to_the_limits_of_its_target() -> None:
    fields = nvcc.build_fields("kernels/attention/fmha_fwd/cuda/forward.cu", str(ROOT))
    assert fields[-6:] == ["threads", "shared_bytes", "fp16", "fp8", "fp32", "bias_pieces"]
    build = struct.pack(f"<{len(fields)}i", *range(100, 100 + len(fields)))
    said = "ptxas info    : Used 168 registers, used 1 barriers, 1024 bytes smem\nptxas info    : Used 32 registers\n"
    place = fields.index("shared_bytes")
    needed = cubin.needs(said, build, place)
    assert needed == {"registers": 168, "shared_bytes": 100 + place}
    cubin.check_needs("cuda-sm90a", "one", needed)
    said = (
        r"^shared_bytes was 232,449, must be at most 232,448 \(bytes of shared memory that a block may have\), as "
        r"cuda-sm90a has it$"
    )
    with pytest.raises(cubin.CubinError, match=said):
        cubin.check_needs("cuda-sm90a", "one", {"registers": 255, "shared_bytes": 232449})
    with pytest.raises(cubin.CubinError, match=r"^ptxas said no registers, must say them \(-Xptxas=-v\)$"):
        cubin.needs("", build, place)
    with pytest.raises(nvcc.ToolchainError, match=r"^kernels/runtime/text\.h: includes no struct Build"):
        nvcc.build_fields("kernels/runtime/text.h", str(ROOT))
