# SPDX-License-Identifier: MIT
"""Measured choices: plain calls, dispatchers of both languages and receipts that pin a table all take them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import ROOT, Scons, _variant

pytestmark = pytest.mark.usefixtures("binding")

NAME = f"tuned_decoder_{os.environ.get('PYTEST_XDIST_WORKER', 'alone')}"  # workers build at the same time
SET = f"""kernel_set: {NAME}
about: Decode in one dtype and head dim.
kernels:
  - family: fmha_fwd_splitkv
    signature: {{dtype: fp32, hdim_q: 32, hdim_v: 32, lse: yes, mask: any}}
"""
BUILT = _variant("native", "release", "").library(NAME)


def arrays() -> dict[str, Any]:
    random = np.random.default_rng(7)
    shapes = {"q": (1, 12, 4, 32), "k": (1, 512, 2, 32), "v": (1, 512, 2, 32)}
    return {name: random.standard_normal(shape, np.float32) for name, shape in shapes.items()}


class Made:
    """A library of the set, and a table in which a way that the library does not choose has won."""

    def __init__(self, path: Path) -> None:
        import tilekiln as tk
        from tilekiln._core.native import machine_key
        from tilekiln.dispatcher.libraries import instances_of
        from tilekiln.tune.table import Table, Winner, call_key, library_key

        self.library = tk.load(path)
        names = [row[0] for row in self.library.manifest["instances"]["rows"]]
        self.own, combine = self.library.fmha_fwd_splitkv_find(**arrays())
        self.other = next(at for at, name in enumerate(names) if "combine" not in name and at != self.own)
        self.instances = {one.number: one for one in instances_of(self.library)}
        key = call_key(self.library, "fmha_fwd_splitkv", (), arrays())
        other = self.instances[self.other]
        winner = Winner(*key, other.key.id, other.name, {"num_splits": 5}, 1.0, 0.9, names[self.own], 3)
        of = library_key(self.library), machine_key()
        self.table = Table(NAME, *of, {winner.key: winner})
        self.combine = combine


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    yield tmp_path_factory.mktemp("tuned")
    for built in (ROOT / BUILT, (ROOT / BUILT).with_suffix(".json")):  # nobody else finds it
        built.unlink(missing_ok=True)


@pytest.fixture(scope="module")
def plain(scons: Scons, folder: Path) -> Made:
    """Of a set that pins nothing."""
    (folder / "set.yaml").write_text(SET)
    scons(f"kernel_set={folder / 'set.yaml'}", BUILT)
    copy = folder / "libtilekiln_tuned_decoder.so"
    copy.write_bytes((ROOT / BUILT).read_bytes())
    return Made(copy)


def chosen(library: Any, **more: Any) -> tuple[int, int]:
    """The instance of the first stage, and the splits."""
    return library.fmha_fwd_splitkv_find(**arrays(), **more)[0], library.fmha_fwd_splitkv_num_splits(**arrays(), **more)


def test_plain_calls(plain: Made) -> None:
    library, own, other = plain.library, plain.own, plain.other
    assert library.tuned is None
    untuned = chosen(library)
    asked = library.fmha_fwd_splitkv(**arrays(), instance=other, num_splits=5)
    library.tune(plain.table)
    assert chosen(library) == (other, 5)
    assert library.tuned is plain.table
    np.testing.assert_array_equal(library.fmha_fwd_splitkv(**arrays()), asked)
    # Scales and who makes the result are no part of a call; what the caller says is stronger.
    assert chosen(library, softmax_scale=0.5, out=np.empty_like(arrays()["q"])) == (other, 5)
    assert chosen(library, num_splits=3) == (other, 3)
    assert chosen(library, instance=own, num_splits=2) == (own, 2)
    assert chosen(library, instance=own)[1] == untuned[1]
    # Shapes and flags that were not measured are unknown.
    assert chosen(library, causal=True)[1] == untuned[1]
    longer = {name: np.concatenate([array, array], 1) for name, array in arrays().items()}
    assert library.fmha_fwd_splitkv_find(**longer)[0] == own
    library.tune(None)
    assert chosen(library) == untuned
    assert library.tuned is None


def test_lengths_share_a_choice(plain: Made) -> None:
    """Contents of arrays are no part of a call; max_seqlen_q and max_seqlen_k are."""

    def identified(most: int, *lengths: int) -> str:
        more = {"max_seqlen_q": 12, "max_seqlen_k": most} if most else {}
        said = plain.library.fmha_fwd_splitkv_describe(**arrays(), seqlen_k=np.array(lengths, np.int32), **more)
        return said.splitlines()[-1]

    assert identified(0, 512) == identified(0, 7)
    assert len({identified(most, 7) for most in (0, 7, 512)}) == 3


def test_what_is_wrong(plain: Made) -> None:
    import tilekiln as tk

    with pytest.raises(tk.ArgumentError, match=rf"table: was of {NAME} \(another\), must be of {NAME}"):
        plain.library.tune(plain.table._replace(library="another"))
    with pytest.raises(tk.ArgumentError, match="choices: number 1 was of instance 99999, must be from 0 to"):
        plain.library.take_tuned([(1, 0, 0, 0), (2, 99999, 0, 0)])
    with pytest.raises(tk.ArgumentError, match="choices: number 0 was of -1 splits and 0 threads, must be"):
        plain.library.take_tuned([(1, 0, -1, 0)])
    with pytest.raises(TypeError):
        plain.library.take_tuned([(1, 0)])  # type: ignore[list-item]


def test_a_choice_that_does_not_fit(plain: Made) -> None:
    """The call is answered by the library's own choice."""
    call = int(plain.library.fmha_fwd_splitkv_describe(**arrays()).split()[-1], 16)
    plain.library.take_tuned([(call, plain.combine, 0, 0)])  # of another family
    assert chosen(plain.library)[0] == plain.own
    plain.library.tune(None)


@pytest.mark.day
def test_dispatchers(plain: Made, folder: Path) -> None:
    """Both run with the splits that were measured; beside the library a table is taken when it is loaded."""
    import tilekiln as tk
    from tilekiln import dispatcher as dp
    from tilekiln.tune.table import beside, write

    of = dp.Dispatcher(dp.Registry("tuned")).add_library(plain.library)
    call = dp.Call("fmha_fwd_splitkv", **arrays())
    problem = of.from_call(call)
    assert (of.plan(problem).stages[0].instance.number, dict(of.plan(problem).settings)) == (plain.own, {})  # type: ignore[attr-defined]
    of.set_measured(plain.table.measured())
    plan = of.plan(problem)
    assert (plan.stages[0].instance.number, plan.settings) == (plain.other, {"num_splits": 5})  # type: ignore[attr-defined]
    assert "measured: num_splits=5" in of.why(problem)
    asked = plain.library.fmha_fwd_splitkv(**arrays(), instance=plain.other, num_splits=5)
    np.testing.assert_array_equal(of.run(call), asked)
    assert call.told(plan.settings).arguments["num_splits"] == 5
    assert dp.Call("f", num_splits=2).told(plan.settings).arguments["num_splits"] == 2
    of.set_measured({str(problem): [plan.stages[0].id]})  # an id alone is a choice too
    assert of.plan(problem).settings == {}

    copy = folder / "copy" / "libtilekiln_tuned_decoder.so"
    copy.parent.mkdir()
    copy.write_bytes(Path(plain.library.path).read_bytes())
    write(copy.with_suffix(".tuned.json"), [plain.table])
    loaded = tk.load(copy)
    assert beside(loaded) == copy.with_suffix(".tuned.json")
    assert chosen(loaded) == (plain.other, 5)
    assert dp.Dispatcher(dp.Registry("pinned")).add_library(loaded).plan(problem).settings == {"num_splits": 5}

    program = (
        '#include "tilekiln/dispatcher.hpp"\n#include "tilekiln/dispatcher/tuned.hpp"\n'
        "using namespace tilekiln::dispatcher;\nint main(int, char** paths) {\n"
        "  const auto library = Library::open(paths[1]);\n  Dispatcher of;\n  of.add_library(library);\n"
        '  Problem problem("fmha_fwd_splitkv");\n  problem.set("family", "fmha_fwd_splitkv");\n'
        "  for (int i = 3; paths[i] != nullptr; i += 2) problem.set(paths[i], Value(std::string(paths[i + 1])));\n"
        '  std::printf("%zu\\n", of.plan(problem).settings.size());\n'
        "  of.set_measured(read_tuned(paths[2], *library));\n  const Plan plan = of.plan(problem);\n"
        '  std::printf("%s %lld %zu\\n", plan.stages.at(0).instance->name().c_str(),\n'
        '              (long long)plan.settings.at("num_splits"), tune(*library, paths[2]));\n}\n'
    )
    (folder / "plan.cpp").write_text(program)
    command = ["g++", "-std=c++17", "-O0", f"-I{ROOT / 'include'}", "plan.cpp", "-ldl", "-o", "plan"]
    subprocess.run(command, cwd=folder, check=True)
    fields = [word for name, value in problem for word in (name, str(value)) if name not in ("operator", "family")]
    told = subprocess.run(
        [folder / "plan", copy, copy.with_suffix(".tuned.json"), *fields], capture_output=True, text=True, check=True
    ).stdout
    assert told.splitlines() == ["0", f"{plain.instances[plain.other].name} 5 1"]


@pytest.mark.day
def test_a_receipt_that_pins_a_table(plain: Made, scons: Scons, folder: Path) -> None:
    """Inside the library: nothing else need be there, and the program says nothing."""
    import tilekiln as tk
    from tilekiln import dispatcher as dp
    from tilekiln.tune.table import write

    write(folder / "measured.json", [plain.table, plain.table._replace(machine="another")])
    (folder / "pinned.yaml").write_text(SET.replace("kernels:", "tuned: measured.json\nkernels:"))
    words = f"kernel_set={folder / 'pinned.yaml'}"
    scons(words, BUILT)
    library = tk.load(ROOT / BUILT)
    assert chosen(library) == (plain.other, 5)
    assert library.tuned is not None
    assert library.tuned.winners.keys() == plain.table.winners.keys()
    of = dp.Dispatcher(dp.Registry("receipt")).add_library(library)
    assert of.plan(of.from_call(dp.Call("fmha_fwd_splitkv", **arrays()))).settings == {"num_splits": 5}
    code = (
        "import sys, tilekiln as tk; sys.path.insert(0, sys.argv[1])\n"
        "from tests.python.test_tuned_calls import arrays\n"
        "library = tk.load(sys.argv[2])\n"
        "print(library.fmha_fwd_splitkv_num_splits(**arrays()), library.tuned)"
    )
    search = os.pathsep.join([str(ROOT / "python"), str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": search, "TILEKILN_TUNED": "no"}
    done = subprocess.run(
        [sys.executable, "-c", code, ROOT, ROOT / BUILT], capture_output=True, text=True, env=environment, check=False
    )
    assert (done.returncode, done.stdout.split()) == (0, ["1", "None"]), done.stderr


def test_what_is_wrong_with_a_pinned_table(plain: Made, tmp_path: Path) -> None:
    from tilekiln.tune.table import written

    from codegen.emit.manifest import pinned
    from codegen.plan.plan import resolve
    from codegen.schema.errors import CodegenError
    from codegen.schema.tree import take_kernel_sets

    text = written([plain.table])
    name = plain.instances[plain.other].name
    wrong = [
        (text.replace(name, name.replace("lanes", "lines")), r":3: no instance 'fmha_fwd_.*: measure again"),
        (text[:-9], r":\d+:\d+: "),
        (text.replace("tune 3", "tune 2"), ":1: format was 'tilekiln tune 2', must be 'tilekiln tune 3'"),
        (text.replace('"rounds"', '"round"'), ":1: is no table of tilekiln tune: "),
        (text.replace(NAME, "flash"), f":2: was measured for receipt flash, must be of {NAME}"),
        (None, f": there is no such table; write it by: tilekiln tune {NAME}"),
        (text.replace(name, "fmha_fwd_of_cpu_avx2"), ""),  # of a target that is not built: passed over
    ]
    try:
        for at, (table, sentence) in enumerate(wrong):
            place = tmp_path / f"table{at}.json"
            if table is not None:
                place.write_text(table)
            (tmp_path / f"set{at}.yaml").write_text(SET.replace("kernels:", f"tuned: {place.name}\nkernels:"))
            take_kernel_sets([str(tmp_path / f"set{at}.yaml")])
            if sentence:
                with pytest.raises(CodegenError, match=rf"{place.name}{sentence}"):
                    pinned(resolve(NAME, ["native"]))
            else:
                assert [winners for _, winners in pinned(resolve(NAME, ["native"]))] == [[]]
    finally:
        take_kernel_sets([])


AMD = ("cpu family\t: {}", "model\t\t: {}", "model name\t: AMD EPYC", "stepping\t: 1")
ARM = ("CPU implementer\t: 0x41", "CPU variant\t: 0x1", "CPU part\t: 0xd40", "CPU revision\t: 1")
ARM_KIND = " (CPU implementer 0x41, CPU variant 0x1, CPU part 0xd40, CPU revision 1)"


@pytest.mark.parametrize(
    ("lines", "kind"),
    [
        ([line.format(25) for line in AMD], "AMD EPYC (cpu family 25, model 25, stepping 1)"),
        ([line.format(26) for line in AMD], "AMD EPYC (cpu family 26, model 26, stepping 1)"),
        (ARM, os.uname().machine + ARM_KIND),
        (["flags\t\t: " + "model name : x " * 100], os.uname().machine),
    ],
)
def test_a_kind_of_processor(lines: list[str], kind: str, tmp_path: Path) -> None:
    """Hypervisors call different processors by one name, and Arm's have none: families and models tell them apart."""
    from tilekiln._core.native import machine_key, processor

    one = "\n".join(("processor\t: 0", *lines)) + "\n\n"
    (tmp_path / "cpuinfo").write_text(one + one.replace(": 1", ": 7"))
    assert processor(str(tmp_path / "cpuinfo")) == kind
    assert processor(str(tmp_path / "none")) == os.uname().machine
    assert machine_key() == f"{processor('/proc/cpuinfo')}, {len(os.sched_getaffinity(0))} cores"
