# SPDX-License-Identifier: MIT
"""Libraries with HIP targets over hipsim: the product's own loader, launches and facade, and the report of a run.

Emulated (functional), never run on AMD silicon.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from build_support.toolchains import hip
from codegen.emit import kernels
from codegen.plan.plan import resolve
from codegen.schema.tree import tree
from codegen.tell.verify import verify
from tests.kernels.hip import executed, forward
from tests.kernels.hip.forward import ROOT
from tools.executor.amdgcn.code_object import ARCHITECTURES

HIPSIM = ROOT / "build" / "executor-release" / "hipsim"
WHERE = {  # features of one head dim: soft cap and alibi in flash, sinks, bias and min_seqlen_q in ck_default
    "flash": "family=fmha_fwd dtype=fp16,bf16 hdim_q=64 hdim_v=64",
    "ck_default": "family=fmha_fwd dtype=bf16 hdim_q=64 hdim_v=64",
    "fp8": "family=fmha_fwd hdim_q=128 hdim_v=128",
}
TARGETS = "hip,native"

pytestmark = [pytest.mark.xdist_group("hip"), pytest.mark.usefixtures("binding")]


@pytest.fixture(scope="module")
def libraries(build_library: Callable[..., Path]) -> dict[str, Path]:
    return {receipt: build_library(receipt, targets=TARGETS, where=where) for receipt, where in WHERE.items()}


def run(words: list[str], architecture: str = "gfx942", **more: str) -> tuple[str, int]:
    """Output and exit code of a Python program whose HIP runtime is the one over the executor."""
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": str(HIPSIM),
        "TILEKILN_HIPSIM_ARCH": architecture,
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "python"), *sys.path]),
        **more,
    }
    done = subprocess.run(
        [sys.executable, *words], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    return done.stdout + done.stderr, done.returncode


def report(
    library: Path, architecture: str, config: pytest.Config, out: Path, cases: int, name: str = ""
) -> dict[str, Any]:
    """Report of a library by `tools/hip report`; all in it must hold.

    name: of executed.yaml, whose counts of signatures and mnemonics it is held to.
    """
    covered = out.with_name(f"{out.stem}-executed.txt")
    more = {"TILEKILN_HIPSIM_COVERAGE": str(covered)} if name else {}
    words = ["tools/hip", "report", "--library", str(library), "--seed", str(config.option.sample_seed)]
    said, code = run([*words, "--out", str(out), "--cases", str(cases)], architecture, **more)
    assert code == 0, said
    if name:
        mnemonics = executed.read(covered)
        ran = sum(count > 0 for count in mnemonics.values())
        print(f"{name} {architecture}: {ran} of {len(mnemonics)} mnemonics;", said.splitlines()[-1])
        wrong = executed.faults(mnemonics, bool(config.option.full))
        wrong += executed.signatures(said, name) if architecture == "gfx942" else []
        assert not wrong, "\n".join(wrong)
    assert "label: emulated (functional), never run on AMD silicon" in said
    read: dict[str, Any] = json.loads(out.read_text())
    assert all(one["worst"] <= 1 for one in read["problems"])
    # Moves are exact, and two problems may both have no key.
    assert all(one["worst"] > 0 for one in read["problems"] if "hdim" in one and one["cases"] > 2)
    return read


@pytest.mark.sampled(2)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_against_float64(libraries, architecture, pytestconfig, tmp_path):
    """Every feature at random: varlen, empty sequences, rows without keys, padding, strides, dropout; LSE too."""
    for receipt, cases in (("flash", 6), ("ck_default", 9), ("fp8", 5)):
        count = 20 * cases if pytestconfig.option.full else cases
        name = {"flash": "forward", "ck_default": "features"}.get(receipt, "fp8")
        read = report(libraries[receipt], architecture, pytestconfig, tmp_path / f"{receipt}.json", count, name)
        assert read["gpu"].startswith(architecture)
        assert read["times"] == []
        hdim = "128x128" if receipt == "fp8" else "64x64"
        assert [one["hdim"] for one in read["problems"]] == [hdim] * len(read["problems"])


def test_a_report_that_does_not_hold_says_so(libraries):
    """Of a GPU whose architecture no kernel is for, and of a library without kernels of HIP."""
    words = ["tools/hip", "report", "--cases", "1", "--library"]
    said, code = run([*words, str(libraries["flash"]), "fp16:64x64"], TILEKILN_HIPSIM_ARCH="gfx000")
    assert code == 1
    assert "NoKernelError: no kernel in library flash for fmha_fwd dtype=fp16" in said
    assert "TILEKILN_HIPSIM_ARCH: was gfx000, must be" in said
    said, code = run([*words, str(libraries["flash"]), "fp16:80x80"])
    assert code == 1
    assert "names: fp16:80x80 is in no kernel of the library, which has fmha_fwd:fp16:64x64 fmha_fwd:bf16:64x64" in said
    said, code = run([*words, "no/such.so"])
    assert code == 1
    assert "no/such.so" in said


def test_needs_no_runtime(libraries):
    said = subprocess.run(["readelf", "-d", libraries["flash"]], capture_output=True, text=True, check=True).stdout
    needed = re.findall(r"NEEDED.*\[([^\]]+)\]", said)
    assert needed
    assert not [name for name in needed if "hip" in name.lower() or "hsa" in name.lower()]


@pytest.mark.turns(0)
def test_goes_wherever_others_go(libraries, scons, tmp_path):
    """Wheel, report, installation, verification, and a source tree with its code objects as data."""
    options = ["receipt=flash", f"target={TARGETS}", f"where={WHERE['flash']}"]
    scons(*options, "wheel", "report", "install", f"prefix={tmp_path / 'prefix'}")
    scons(*options, f"vendor={tmp_path / 'vendored'}")
    library = libraries["flash"]
    [wheel] = (library.parents[1] / "wheel").glob("tilekiln_flash-*.whl")
    with zipfile.ZipFile(wheel) as packed:
        assert packed.read(f"tilekiln_flash/{library.name}") == library.read_bytes()
    told = json.loads((library.parents[1] / "report/flash.json").read_text())
    assert "hip-gfx942" in told["targets"]
    assert {one["target"]: len(one["kernels"]) for one in told["bounds"]} == {f"hip-{one}": 4 for one in ARCHITECTURES}
    page = (library.parents[1] / "report/flash.html").read_text()
    assert page.count("emulated (functional), never run on AMD silicon") == len(ARCHITECTURES)
    assert page.count("when nothing overlaps, at most") == 2 * 4 * len(ARCHITECTURES)
    assert "Composable Kernel, head dim 64: 35% to 39% (" in page
    assert (tmp_path / "prefix/lib" / library.name).read_bytes() == library.read_bytes()
    text, well = verify(tree(), str(library))
    assert well, text
    data = library.read_bytes()
    for target in ("hip-gfx90a", "hip-gfx1201"):
        folder = tmp_path / "vendored/generated" / target
        kernels_there = sorted(folder.glob("*.bin"))
        assert len(kernels_there) == 4
        for kernel in kernels_there:
            assert data.count(kernel.read_bytes()) == 1
            command = [
                os.environ.get("CXX", "g++"),
                "-Wa,-I.",
                "-c",
                str(kernel.with_suffix(".cpp")),
                "-o",
                str(tmp_path / "kernel.o"),
            ]
            subprocess.run(command, cwd=tmp_path / "vendored", check=True)
            symbol = f"tilekiln_{target}_{kernel.stem}".replace("-", "_")
            said = subprocess.run(["nm", tmp_path / "kernel.o"], capture_output=True, text=True, check=True).stdout
            assert f" D {symbol}\n" in said or f" d {symbol}\n" in said


def test_what_would_change_is_not_told_before_kernels_are_compiled(libraries, tmp_path):
    options = ["receipt=flash", "target=hip-gfx942", "where=family=fmha_fwd dtype=fp16 hdim_q=96 hdim_v=96"]
    before = set((ROOT / "build").glob("*hip*"))  # others build for other targets meanwhile
    command = [sys.executable, "-m", "SCons", "-Q", "-n", *options, f"vendor={tmp_path / 'vendored'}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, "so -n cannot say what would change: leave -n out" in done.stderr) == (2, True)
    assert set((ROOT / "build").glob("*hip*")) == before
    assert not (tmp_path / "vendored").exists()


HOST = """
import sys
import numpy as np
import tilekiln as tk
from tilekiln._core.dtypes import NUMPY
from tests.python.capsules import Exported
library = tk.Library(sys.argv[1])
q = np.ones((1, 5, 1, 64), NUMPY["bf16"])
assert np.all(library.fmha_fwd(q, q, q) == 1)
def there(array):
    made = Exported(array.view(np.uint16), device_type=10, code=4, bits=16)
    for index, stride in enumerate(array.strides):
        made.managed.tensor.strides[index] = stride // 2
    return made
try:
    library.fmha_fwd(there(q), there(q), there(q), out=there(q.copy()))
except tk.NoKernelError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("named", "reason"),
    [
        ("", r"there is no HIP runtime \(libamdhip64\.so of ROCm 5, 6 or 7\)"),
        ("/no/such.so", r"TILEKILN_HIP_LIBRARY cannot be loaded: /no/such\.so: .*"),
        ("libm.so.6", r"the HIP runtime is older than ROCm 5\.3: it lacks hipInit"),
    ],
)
def test_without_a_runtime_the_cpu_answers_and_errors_say_why(libraries, named, reason):
    said, code = run(["-c", HOST, str(libraries["flash"])], LD_LIBRARY_PATH="", TILEKILN_HIP_LIBRARY=named)
    assert code == 0, said
    assert re.search(rf"for hip-gfx942, which this machine has not \({reason}\)", said), said


def test_the_runner_times_it_and_says_where(libraries):
    words = "-m tilekiln fmha-fwd -b=1 -h=2 -s=33 -d=64 -mask=1 -warmup=0 -repeat=1"
    said, code = run([*words.split(), "-device=hip", f"-receipt={libraries['flash']}"])
    assert code == 0, said
    assert ", valid:y, on gfx942, emulated by tilekiln hipsim" in said


DEVICE = """
import sys
import numpy as np
import tilekiln as tk
from tilekiln._core.dtypes import NUMPY
from tools.hip.device import DeviceArray, runtime
library = tk.Library(sys.argv[1])
make = lambda shape, dtype=NUMPY["bf16"]: DeviceArray(np.ones(shape, dtype))
q, out = make((1, 70, 2, 64)), make((1, 70, 2, 64))
def refused(**more):
    given = {"q": q, "k": q, "v": q, "out": out, **more}
    try:
        library.fmha_fwd(**given)
    except (tk.ArgumentError, RuntimeError) as error:
        print(f"{type(error).__name__}: {error}")
refused(softmax_scale=-1.0)
odd = make((1, 70, 2, 60))
refused(q=odd, k=odd)
wide = DeviceArray(np.ones((1, 70, 2, 68), NUMPY["bf16"])[..., :64])
refused(q=wide)
refused(dropout_p=0.5, rng=(1, 2), randval=make((1, 2, 70, 70), np.uint8))
assert np.all(out.host() == 1)
q.free()  # a kernel that reads what is no longer there: the executor's fault is the runtime's error
refused()
refused()
"""


def test_what_the_device_refuses_and_what_it_answers(libraries):
    """Errors name the argument, and nothing was written; a kernel's fault is an error of the call."""
    said, code = run(["-c", DEVICE, str(libraries["flash"])])
    assert code == 0, said
    lines = [line for line in said.splitlines() if line.split(":")[0] in ("ArgumentError", "RuntimeError")]
    assert lines[0] == "ArgumentError: softmax_scale: was -1, must be above 0 on hip"
    assert lines[1] == "ArgumentError: q: had a head dim of 60, must have a multiple of 8 on hip"
    assert "q: a stride was 68 elements, must be a multiple of 8, 0 or more, on hip: pass a copy" in lines[2]
    assert "randval: was given, must be null on hip" in lines[3]
    assert lines[4].startswith("RuntimeError: hip:0: ")
    assert "failed: hipErrorLaunchFailure (unspecified launch failure)" in lines[4]
    assert "hipErrorLaunchFailure" in lines[5]


@pytest.mark.parametrize(
    ("architecture", "more", "said"),
    [
        (
            "gfx1100",
            {"HDIM_Q": 192, "HDIM_V": 192},
            "registers in memory were [0-9,]+ bytes of a lane, must be 0",
        ),
        ("gfx942", {"HDIM_Q": 256, "HDIM_V": 256, "TILE_K": 128}, r"local memory \(137216\) exceeds limit"),
        ("gfx942", {"HDIM_Q": 12}, "hdim_q of the kernel must be a multiple of the product's depth"),
    ],
    ids=["registers", "lds", "source"],
)
def test_a_kernel_that_would_be_slow_or_fail_is_not_built(tmp_path, architecture, more, said):
    """Spilled registers, and more LDS than its target has; a compiler's own error is shown."""
    define = {**forward.Build(architecture, "fp16").defines, **more}
    words = hip.flags(str(forward.SOURCE), [f"--offload-arch={architecture}"], "fp16", define, [str(ROOT)])
    script, made = ROOT / "build_support/toolchains/code_object.py", tmp_path / "made.o"
    command = [sys.executable, script, made, "a_kernel", "a_symbol", f"hip-{architecture}", "--", *words]
    done = subprocess.run([*command, "--run", hip.find_clang()], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert re.search(f"a_kernel: (.|\n)*{said}", done.stderr), done.stderr
    assert list(tmp_path.iterdir()) == []


TIMES = """
import sys
import tilekiln as tk
from tools.hip import times
times.BATCH, times.HEADS, times.ROUNDS, times.CALLS = 1, 1, 3, 2
line = times.measure(tk.load(sys.argv[1]), "bf16", 64, 64, 64, True)
assert line["ms"] > 0 and line["hdim"] == "64x64" and line["causal"], line
print("timed")
"""


def test_calls_are_timed_by_events_in_a_stream(libraries):
    """Of the executor here: a report leaves such times out."""
    assert run(["-c", TIMES, str(libraries["flash"])]) == ("timed\n", 0)


UNREAD = """
import sys
import numpy as np
import tilekiln as tk
from tilekiln._core.dtypes import NUMPY
from tools.hip.device import DeviceArray
library = tk.Library(sys.argv[1])
make = lambda shape: DeviceArray(np.ones(shape, NUMPY["bf16"]))
for starts in ([0, 1000000, 70], [-5, 69, 2000000000], [70, 60, 80], [0, 69, 400]):
    wild = DeviceArray(np.array(starts, np.int32))
    q, k, out = make((70, 2, 64)), make((70, 2, 64)), make((70, 2, 64))
    library.fmha_fwd(q, k, k, out=out, cu_seqlens_q=wild, cu_seqlens_k=wild, max_seqlen_q=64, max_seqlen_k=64)
    assert np.all(np.isin(out.host().astype(np.float32), (0, 1)))
print("within")
"""


def test_starts_that_the_host_has_not_seen_stay_within_the_arrays(libraries):
    """The executor sees each read and write beyond an array."""
    said, code = run(["-c", UNREAD, str(libraries["flash"])])
    assert code == 0, said
    assert said.splitlines()[-1] == "within"


def test_every_row_has_a_kernel():
    """By the plan alone: each row's tile is that of a code object which holds its head dims."""
    root = tree()
    for architecture in ARCHITECTURES:
        target = root.target(f"hip-{architecture}")
        plan = resolve("flash", [target.name])
        held = kernels.of_plan(plan)
        dropout = 1 if architecture == "gfx1201" else 2  # of caches: at head dim 128, and at 256 where it fits
        # Caches of three head dims, combine, append; the backward of four head dims; fp8 caches under bf16.
        assert len(held) == 26 + 2 * (3 + dropout + 2 + 4) + 2 * dropout, list(held)
        columns = 32 if target.limits["wave_size"] == 64 else 16
        for instance in plan.instances:
            if "bwd" in instance.family or instance.family in ("fmha_fwd_splitkv_combine", "fmha_fwd_appendkv"):
                continue
            signature, tile = instance.signature, tuple(map(int, str(instance.algorithm["tile"]).split("x")))
            fits = [
                kernel.file.define
                for kernel in held.values()
                if kernel.dtype == signature["dtype"]
                and "TILE_K" in kernel.file.define
                and kernel.file.define.get("CACHE", 0) == (instance.family != "fmha_fwd")
                and kernel.file.define["DROPOUT"] == signature.get("dropout", False)
                and kernel.file.define["HDIM_Q"] >= signature["hdim_q"]
                and kernel.file.define["HDIM_V"] >= signature["hdim_v"]
            ]
            least = min(fits, key=lambda define: define["HDIM_Q"] * define["HDIM_V"])
            assert (least["WAVES"] * columns, least["TILE_K"]) == tile, instance.name


def test_what_targets_refuse():
    """Names of the targets' rules. Every signature's answer: tests/codegen/test_parity.py."""
    root = tree()
    family = root.family("fmha_fwd")
    rules = {one: [rule.name for rule in root.refusals(root.target(f"hip-{one}"), family)] for one in ARCHITECTURES}
    assert rules["gfx942"] == ["hip_has_no_512_yet", "hip_needs_16_bits"]
    for one in ("gfx950", "gfx1100"):
        assert rules[one] == ["hip_has_no_512_yet", "hip_needs_16_bits", "fnuz_is_of_gfx942"]


def test_arrays_of_a_device_have_the_strides_of_their_own():
    """The arrays that the report is made with, there and back; in a process with the runtime."""
    text = (
        "import numpy as np\nfrom tools.hip.device import DeviceArray\n"
        "a = np.arange(240, dtype=np.float32).reshape(4, 5, 12)\n"
        "for view in (a, a[::2, :, 3:7], a.swapaxes(0, 1), a[:0], np.float32(3) * np.ones(())):\n"
        "    made = DeviceArray(np.asarray(view, np.float32))\n"
        "    assert np.array_equal(made.host(), view), view.strides\n"
        "print('same')\n"
    )
    assert run(["-c", text]) == ("same\n", 0)
