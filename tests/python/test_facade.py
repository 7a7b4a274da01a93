# SPDX-License-Identifier: MIT
"""Loading, listing, explaining and choosing: what the facade adds to the C ABI."""

from __future__ import annotations

import ast
import inspect
import json
import os
import pathlib
import pickle
import platform
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
import tilekiln as tk
from tilekiln.reference import problems

from codegen.plan.plan import resolve
from tests.gpu_run import ISAS

ROOT = pathlib.Path(__file__).resolve().parents[2]

NAMES = [instance.name for instance in resolve("flash", ["native"]).instances]
INSTANCES = len(NAMES)


def run(code: str, **environment: str) -> str:
    """Python code in a fresh process; returns what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def here(monkeypatch, tmp_path, flash):
    """Only TILEKILN_PATH is searched, and it holds a copy of flash."""
    monkeypatch.setattr("tilekiln.api.library.PLACES", (tk.library._from_path,))
    shutil.copy(flash.path, tmp_path)
    shutil.copy(pathlib.Path(flash.path).with_suffix(".json"), tmp_path)
    monkeypatch.setenv("TILEKILN_PATH", str(tmp_path))
    return tmp_path


def test_load_by_name_number_and_path(here):
    library = tk.load("flash")
    assert library.receipt == "flash"
    assert library.instance_count == INSTANCES
    assert pathlib.Path(library.path).parent == here
    assert tk.load(2) is library
    assert tk.load("2") is library
    assert tk.load(library.path).path == library.path
    assert tk.load(pathlib.Path(library.path)) is library
    assert tk.libraries() == [library]


def test_a_rebuilt_library_is_loaded_anew(here, flash, load):
    """The new file runs, though the process keeps the old one."""
    library, other = tk.load("flash"), load("norm_default")
    path = here / "libtilekiln_flash.so"
    for built in (other, flash, other):
        shutil.copy(built.path, here / "copy")
        (here / "copy").replace(path)
        for now in (tk.load(path), tk.Library(path)):
            assert now is not library
            assert (now.receipt, now.instance_count) == (built.receipt, built.instance_count)
        assert os.path.samefile(now.path, path)
    assert (library.receipt, library.instance_count) == ("flash", INSTANCES)


def test_tilekiln_path_takes_files_and_goes_first(here, monkeypatch):
    monkeypatch.setenv("TILEKILN_PATH", f"/nowhere{os.pathsep}{here / 'libtilekiln_flash.so'}")
    monkeypatch.setattr("tilekiln.api.library.PLACES", (tk.library._from_path, tk.library._from_tree))
    assert pathlib.Path(tk.load("flash").path).parent == here


def test_installed_packages_are_found(tmp_path, monkeypatch, flash):
    """An entry point of a package: a path, or a function that returns one."""
    information = tmp_path / "kilnpack-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: kilnpack\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(
        "[tilekiln.libraries]\nflash = kilnpack:where\nmine = kilnpack:PATH\n"
    )
    (tmp_path / "kilnpack.py").write_text(f"PATH = {flash.path!r}\ndef where():\n    return PATH\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("tilekiln.api.library.PLACES", (tk.library._from_packages,))
    assert tk.load("flash").path == flash.path
    assert tk.load("mine").path == flash.path


def test_the_tree_is_searched(flash):
    """The newest release build of a receipt; the fixture has built one."""
    library = tk.load("flash")
    assert library.receipt == "flash"
    assert pathlib.Path(library.path).is_relative_to(ROOT / "build")


def test_what_is_not_there(here, monkeypatch):
    with pytest.raises(tk.NoKernelError) as error:
        tk.load("fp32")
    assert str(error.value).splitlines() == [
        "name: the library of receipt 'fp32' is not built",
        "  found: flash",
        f"  looked in: {tk.library.looked_in()}",
        "  build it: tools/dev scons receipt=fp32",
    ]
    with pytest.raises(tk.NoKernelError, match="there is no receipt 'flush'; did you mean 'flash'"):
        tk.load("flush")
    with pytest.raises(
        tk.ArgumentError, match=r"^name: there is no receipt 7; there are: 0 ck_default, 1 ck_extended, 2 flash"
    ):
        tk.load(7)
    with pytest.raises(ImportError, match="is no Tilekiln library"):
        tk.load(np._core._multiarray_umath.__file__)
    with pytest.raises(FileNotFoundError):
        tk.load("/nowhere/libtilekiln_flash.so")


def test_a_receipt_without_a_number(here, monkeypatch, tmp_path):
    """It is known by name, and numbers do not stumble over it."""
    (tmp_path / "receipts").mkdir()
    (tmp_path / "receipts/mine.yaml").write_text("receipt: mine\nabout: Me.\n")
    (tmp_path / "receipts/flash.yaml").write_text("receipt: flash\nnumber: 2\nabout: Others.\n")
    monkeypatch.setattr("tilekiln.api.library.TREE", tmp_path)
    monkeypatch.setattr("tilekiln.api.library.in_tree", lambda: True)
    with pytest.raises(tk.NoKernelError, match="the library of receipt 'mine' is not built"):
        tk.load("mine")
    with pytest.raises(tk.ArgumentError, match=r"there is no receipt 7; there are: 2 flash$"):
        tk.load(7)


def test_instances_and_manifest(flash):
    everything = flash.instances()
    assert len(everything) == flash.instance_count == len(flash.manifest["instances"]["rows"])
    assert [instance.number for instance in everything] == list(range(INSTANCES))
    assert flash.manifest["receipt"]["name"] == "flash"
    beside = json.loads(pathlib.Path(flash.path).with_suffix(".json").read_text())
    assert beside == flash.manifest
    chosen = flash.instances("dtype=bf16 hdim_q=128 mask!=none lse=yes or dtype=fp32 hdim_q=48 lse=no")
    assert chosen
    for instance in chosen:
        values = instance.signature
        left = values["dtype"] == "bf16" and values["hdim_q"] == 128 and values["mask"] == "window" and values["lse"]
        assert left or (values["dtype"] == "fp32" and values["hdim_q"] == 48 and not values["lse"])
    assert chosen == [i for i in everything if i in chosen]
    # Companions have no such axis: they meet neither = nor != on it.
    masked = flash.instances("mask!=none")
    assert not {"fmha_bwd_dot_do_o", "fmha_bwd_convert_dq", "fmha_fwd_splitkv_combine"} & {i.family for i in masked}
    assert {"fmha_fwd", "fmha_bwd_dq_dk_dv", "fmha_fwd_splitkv"} <= {i.family for i in masked}
    assert {i.signature["mask"] for i in masked} == {"window"}
    assert [instance.name for instance in everything] == NAMES
    forward = resolve("flash", ["native"], family="fmha_fwd").instances
    assert len(flash.instances("family=fmha_fwd")) == len(forward)
    assert chosen[0].algorithm["pipeline"] == "qlanes"
    assert flash.instance_name(chosen[0].number) == chosen[0].name
    with pytest.raises(IndexError, match=f"this library has {INSTANCES} instances"):
        flash.instance_name(INSTANCES)


@pytest.mark.parametrize(
    ("where", "text"),
    [
        ("dtyp=bf16", "where: no axis 'dtyp'; nearest: dtype\n  dtyp=bf16\n  ^"),
        (
            "lse=yes dtype=bf61",
            "where: axis 'dtype' has no value 'bf61'; nearest: bf16; values: bf16, fp16, fp32, bf16_fp8\n"
            "  lse=yes dtype=bf61\n"
            "                ^",
        ),
        (
            "hdim_q=100",
            "where: axis 'hdim_q' has no value '100'; nearest: 96, 80; values: 32, 48, 64, 80, 96, 128, 192, 256, 512",
        ),
        ("tile=64x65", "where: axis 'tile' has no value '64x65'; nearest: 64x64; values: "),
        ("tile>=64", "where: the values of axis 'tile' have no order: write = or !="),
        (
            "dtype",
            "where: 'dtype' is no condition: write axis=value[,value], axis!=value, axis>=number or axis<=number",
        ),
        ("dtype==bf16", "where: '==' is written '=': dtype=bf16"),
        ("or dtype=bf16", "where: nothing stands before this 'or'"),
        ("dtype=bf16 or", "where: nothing stands after this 'or'"),
    ],
)
def test_selection_errors(flash, where, text):
    with pytest.raises(tk.ArgumentError) as error:
        flash.instances(where)
    assert str(error.value).startswith(text)


def test_the_selection_language_is_the_generators(flash):
    """The facade reads the language without codegen; both must select alike."""
    from codegen.plan.plan import resolve

    targets = [target["name"] for target in flash.manifest["targets"]]
    for where in (
        "dtype=bf16,fp32 mask!=none",
        "lse=yes softcap=no or hdim_q=48",
        "mode=group dropout!=no bias=alibi",
        "hdim_q>=100 hdim_v<=128 lse=yes",
        "family=fmha_fwd_splitkv tile=16x64 or family=fmha_fwd tile_q>=64 hdim_q<=48",
        f"pipeline!=qlanes target={targets[0]} dtype=bf16",
        "tile_k<=64 page_size>=16 lse=no",
    ):
        # Companions for what a selection keeps come to a plan, whatever it says of them; here they are plain rows.
        plan = resolve("flash", targets, where)
        companions = {family.name for family in plan.tree.families.values() if family.main}
        listed = [instance.name for instance in plan.instances if instance.family not in companions]
        assert [instance.name for instance in flash.instances(where) if instance.family not in companions] == listed


def arrays(hdim: int = 64, dtype=np.float32) -> list[np.ndarray]:
    return [np.ones((1, 5, 2, hdim), dtype) for _ in range(3)]


@pytest.mark.day
def test_no_kernel_text(load):
    """The literal text of a missing kernel: problem, nearest, differing axes, the line that builds it."""
    library = load("flash", where="dtype=fp32 hdim_q=64 mode=batch dropout=no softcap=no")
    isa = "avx512bf16" if library.isa == "amx" else library.isa  # tiles have no fp32
    tail = f"nskip_nsink_nqscale_qlanes_b64x64_cpu_{isa}"
    with pytest.raises(tk.NoKernelError) as error:
        library.fmha_fwd(*arrays(), dropout_p=0.5, return_lse=True)
    lines = str(error.value).splitlines()
    assert lines[0] == (
        "no kernel in library flash for fmha_fwd dtype=fp32 hdim_q=64 hdim_v=64 mode=batch mask=none bias=none lse=yes "
        "dropout=yes softcap=no skip_min_seqlen_q=no sink=no qscale=none"
    )
    assert lines[1] == (
        f"  nearest: fmha_fwd_fp32_d64x64_batch_nmask_nbias_lse_ndropout_nsoftcap_{tail} "
        "differs in dropout=no (problem: yes, by dropout_p)"
    )
    assert lines[-1].startswith("  this builds it: scons receipt=flash ")
    assert "dtype=fp32 hdim_q=64 hdim_v=64" in lines[-1]
    with pytest.raises(
        tk.NoKernelError,
        match="rule softcap_without_elementwise_bias forbids it: a soft cap is allowed only without an elementwise",
    ):
        library.fmha_fwd(*arrays(), softcap=1.0, bias=np.ones((1, 2, 5, 5), np.float32))
    scale = np.ones(1, np.float32)
    with pytest.raises(tk.NoKernelError, match=r"scales .* exist only for fp8"):
        library.fmha_fwd(*arrays(), q_descale=scale, k_descale=scale, v_descale=scale)


def test_why_and_find(flash):
    q, k, v = arrays(60)
    number = flash.fmha_fwd_find(q, k, v, causal=True)
    name = flash.instance_name(number)
    assert name.startswith("fmha_fwd_fp32_d64x64_batch_window_nbias_nlse_ndropout_nsoftcap_")
    text = flash.why(q, k, v, causal=True)
    assert f"chosen: {name}" in text
    assert re.search(r"refused: fmha_fwd_fp32_d48x48_\S+: its head dims, 48x48, are too small", text)
    assert "no kernel" in flash.why(q, k, v, bias=np.ones((1, 2, 5, 5), np.float32))


def test_instance_by_name_and_number(flash):
    q, k, v = arrays(60)
    number = flash.fmha_fwd_find(q, k, v)
    expected = flash.fmha_fwd(q, k, v)
    np.testing.assert_array_equal(flash.fmha_fwd(q, k, v, instance=number), expected)
    np.testing.assert_array_equal(flash.fmha_fwd(q, k, v, instance=flash.instance_name(number)), expected)


def test_results_do_not_depend_on_threads(flash):
    random = np.random.default_rng(0)
    q, k, v = (random.standard_normal((2, 300, 4, 64)).astype(np.float32) for _ in range(3))
    expected = flash.fmha_fwd(q, k, v, causal=True, num_threads=1)
    for threads in (0, 2, 3, 8):
        np.testing.assert_array_equal(flash.fmha_fwd(q, k, v, causal=True, num_threads=threads), expected)


def test_attention_picks_from_all_libraries(load, finds):
    flash, fp32, fp8 = load("flash"), load("fp32"), load("fp8")
    finds(fp8, fp32, flash)
    made = problems.make(
        {"dtype": "fp32", **problems.PLAIN, "mask": "window", "bias": "elementwise"}, problems.Sizes(), seed=1
    )
    outputs = made.outputs()
    assert tk.attention(**made.inputs, **outputs) is outputs["out"]  # only fp32 has a bias
    made.check(outputs, made.reference())
    q, k, v = arrays()
    plain = tk.attention(q, k, v)
    np.testing.assert_array_equal(tk.attention(q, k, v, softcap=0.0), plain)
    capped = tk.attention(q, k, v, softcap=2.0)  # the same look, which fp32 refuses and flash has
    np.testing.assert_array_equal(capped, flash.fmha_fwd(q, k, v, softcap=2.0))
    _, lse = tk.attention(q, k, v, return_lse=True)
    np.testing.assert_array_equal(lse, flash.fmha_fwd(q, k, v, return_lse=True)[1])
    with pytest.raises(tk.NoKernelError) as error:
        tk.attention(q, k, v, min_seqlen_q=1)
    problem, *reasons = str(error.value).splitlines()
    assert problem.startswith(
        "no kernel in any library (fp8, fp32, flash) for fmha_fwd dtype=fp32 hdim_q=64 hdim_v=64 "
    )
    assert [reason.partition("differs in ")[2] or reason for reason in reasons] == [
        "skip_min_seqlen_q=no (problem: yes, by min_seqlen_q)",
        "skip_min_seqlen_q=no (problem: yes, by min_seqlen_q)",
        "  without this dtype: fp8",
        "  no receipt lists it: add it to one in receipts/ and build that",
    ]
    assert [reason.partition(": nearest: ")[0] for reason in reasons[:2]] == ["  fp32", "  flash"]


def test_what_no_library_could_ever_do_is_told_once(load, monkeypatch):
    flash, fp32, fp8 = load("flash"), load("fp32"), load("fp8")
    q, k, v = arrays()
    bias = np.ones((1, 2, 5, 5), np.float32)
    for libraries in ([fp8, fp32, flash], [flash]):
        monkeypatch.setattr("tilekiln.api.operators._at_hand", lambda libraries=libraries: libraries)
        with pytest.raises(tk.NoKernelError) as error:
            tk.attention(q, k, v, softcap=2.0, bias=bias)
        names = ", ".join(library.receipt for library in libraries)
        assert str(error.value).splitlines() == [
            "a soft cap is allowed only without an elementwise bias",
            f"  rule softcap_without_elementwise_bias of every library ({names}); the problem: fmha_fwd dtype=fp32 "
            "hdim_q=64 hdim_v=64 mode=batch mask=none bias=elementwise lse=no dropout=no softcap=yes "
            "skip_min_seqlen_q=no sink=no qscale=none",
        ]
    monkeypatch.setattr("tilekiln.api.operators._at_hand", lambda: [fp8, fp32, flash])
    with pytest.raises(tk.NoKernelError) as error:
        tk.BackwardLauncher(
            dtype="fp32",
            hdim_q=64,
            hdim_v=64,
            nhead_q=2,
            batch=1,
            seqlen_q=4,
            seqlen_k=4,
            softcap=True,
            bias="elementwise",
        )
    assert str(error.value).startswith(
        "a soft cap is allowed only without an elementwise bias\n"
        "  rule softcap_without_elementwise_bias of every library (fp32, flash); "
    )  # fp8 has no backward at all


def test_a_rule_of_a_target_is_told_as_other_rules(flash):
    from tilekiln._binding import Refusal
    from tilekiln.api._refusals import Refused, one_error

    problem, says = "fmha_fwd dtype=fp32 hdim_q=64", "on a CUDA GPU q, k and v are fp16 or bf16"
    rule = "cuda_needs_16_bits", "cuda-sm90a", says
    error = tk.NoKernelError("")
    error.problem = problem
    error.refusals = (Refusal(("rule", None, problem, *[None] * 4, *rule, None, f"rule forbids it: {says}")),)
    refused = [Refused(name, error) for name in ("flash", "pytorch")]
    rule = "rule cuda_needs_16_bits of target cuda-sm90a of every library (flash, pytorch)"
    assert str(one_error(refused)) == f"{says}\n  {rule}; the problem: {problem}"


@pytest.mark.day
def test_attention_takes_the_least_head_dim_waste(load, monkeypatch, finds):
    wide, narrow = load("flash", where="hdim_q=128 dtype=fp32"), load("flash", where="hdim_q=64 dtype=fp32")
    asked = []
    finds(wide, narrow)
    monkeypatch.setattr(
        tk.operators, "_choose", lambda *a, choose=tk.operators._choose: asked.append(choose(*a)) or asked[-1]
    )
    tk.attention(*arrays(33))
    tk.attention(*arrays(65))
    tk.attention(*arrays(33))
    assert asked == [narrow, wide]


def test_attention_without_libraries(monkeypatch):
    monkeypatch.setattr("tilekiln.api.operators._at_hand", list)
    with pytest.raises(
        tk.NoKernelError, match=r"no library is built or installed; looked in: .*\n  build one: tools/dev scons"
    ):
        tk.attention(*arrays(17))


def test_info(flash):
    information = tk.info()
    assert information["cpu"]["cores"] >= 1
    assert information["isa"] == flash.isa
    [found] = [library for library in information["libraries"] if library["receipt"] == "flash"]
    assert found["instances"] >= 1
    assert found["isa"] == flash.isa
    printed = subprocess.run(
        [sys.executable, "-m", "tilekiln", "info"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    for word in ("cpu:", "isa: ", "receipt: flash", "looked_in: TILEKILN_PATH"):
        assert word in printed
    as_json = subprocess.run(
        [sys.executable, "-m", "tilekiln", "info", "--json"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert json.loads(as_json)["binding"]["abi"] == 2


@pytest.mark.day  # of an ISA that is not the best
@pytest.mark.skipif(platform.machine() != "x86_64", reason="AMX is x86-64's")
def test_info_names_features_that_no_kernel_uses(load, flash):
    from tilekiln._generated.cpu_targets import CPU_TARGETS
    from tilekiln.api.machine import ANSWERED, features
    from tilekiln.bench.command import combined
    from tilekiln.bench.settings import Settings
    from tilekiln.cli import probes

    amx = next(one for one in CPU_TARGETS if one.isa == "amx")
    here = features(probes.cpu_flags(), [flash])
    best = next(one for one in CPU_TARGETS if one.isa == flash.isa)
    assert here == {"used": sorted(best.flags), "unused": []}  # flash is built for this machine
    if flash.isa != "amx":
        new = ", ".join(flag for flag in amx.flags if flag not in best.flags)
        build = "tools/dev scons receipt=flash target=cpu-avx512bf16,cpu-amx"
        says = f"{new} are there, no library here is built for it: {build}"
        assert features(amx.flags, [flash]) == {"used": sorted(best.flags), "unused": [says]}
        planned = next(one for one in CPU_TARGETS if one.planned)
        later = "amx_fp16 is there, and cpu-amxfp16, whose kernels would use it, is planned: no library holds it yet"
        assert features(planned.flags, [flash])["unused"] == [says, later]
    path = load("flash", targets="all").path
    slow = next(one for one in CPU_TARGETS if f"cpu-{one.isa}" == ISAS[0])
    code = "import json, tilekiln as tk; print(json.dumps([tk.info()[name] for name in ('features', 'answers')]))"
    used, answers = json.loads(run(code, TILEKILN_ISA=slow.isa, TILEKILN_PATH=path))
    assert used["used"] == sorted(slow.flags)
    assert used["unused"][0].endswith(f"libraries here have cpu-{flash.isa}, and TILEKILN_ISA or the system keeps it "
                                      "from this process")  # fmt: skip
    assert f"_cpu_{slow.isa}" in answers["attention"]["kernel"]
    command = answers["attention"]["time it"].split()
    timed = run(f"import tilekiln.__main__ as of; of.main({command[1:]!r} + ['--repeat', '1'])", TILEKILN_PATH=path)
    assert "; right, " in timed
    # A library that another test has built beside it answers, if there is one.
    gemm = answers["GEMM"]
    assert gemm == "no library here has gemm of bf16" or gemm["kernel"].startswith("gemm_bf16_")
    for operator, words in ANSWERED.values():
        (asked,) = combined(words.split())
        assert Settings(operator, asked).wanted


def test_an_isa_can_be_forced_down(load):
    library = load("flash", targets="all")
    usable = [target["isa"] for target in library.manifest["targets"] if _usable(library, target["name"])]
    assert usable[-1] == library.isa
    code = (
        "import numpy as np, tilekiln as tk\n"
        f"lib = tk.load({library.path!r}); q = np.ones((1, 5, 2, 64), np.float32)\n"
        "print(lib.isa, lib.instance_name(lib.fmha_fwd_find(q, q, q)).partition('_cpu_')[2], "
        "lib.fmha_fwd(q, q, q).sum())"
    )
    for isa in usable:
        answering = "avx512bf16" if isa == "amx" else isa  # tiles have no fp32
        assert run(code, TILEKILN_ISA=isa) == f"{isa} {answering} 640.0"


def _usable(library: tk.Library, target: str) -> bool:
    return any(library.instance_usable(one.number) for one in library.instances(f"target={target}")[:1])


def test_the_module_shows_what_it_offers_and_nothing_else(binding):
    shown = run("import tilekiln; print(*[name for name in dir(tilekiln) if not name.startswith('__')])")
    # Not those of _tables, which libraries of other tests may have added to.
    operators = {path.parent.name for path in (ROOT / "kernels").glob("**/operator.yaml")}
    assert shown.split() == sorted({*tk.__all__, *operators} - {"__version__"})


def test_every_operator_is_a_function_over_all_libraries(flash, monkeypatch):
    from tilekiln._generated.tables import OPERATORS
    from tilekiln.api import operators

    monkeypatch.setattr(operators, "_at_hand", lambda: [flash])
    q = np.ones((1, 5, 2, 64), np.float32)
    assert np.array_equal(tk.fmha_fwd(q, q, q, causal=True), flash.fmha_fwd(q, q, q, causal=True))
    out, lse = tk.fmha_fwd_splitkv(q, q, q, return_lse=True)
    assert (out.shape, lse.shape) == (q.shape, (1, 2, 5))
    for name in OPERATORS:
        function = getattr(tk, name)
        assert function.__name__ == name
        own = name == "grouped_gemm"  # which takes lists, too
        assert ("whatever libraries are built or installed" in function.__doc__) == (not own)
        assert (flash.fmha_fwd.__doc__ in function.__doc__) == (name == "fmha_fwd")
    assert inspect.signature(tk.fmha_fwd) == inspect.signature(flash.fmha_fwd)
    assert pickle.loads(pickle.dumps(tk.fmha_fwd)) is tk.fmha_fwd
    assert np.array_equal(tk.fmha_fwd(q, v=q, k=q), tk.fmha_fwd(q=q, k=q, v=q))
    for given, named, said in (
        ((q,), {"v": q}, r"fmha_fwd\(\) takes 3 arrays by position or name, q, k, v; k is missing"),
        ((), {"causal": True}, "q, k, v are missing"),
        ((q, q, q, q), {}, "4 were given by position"),
        ((q, q, q), {"k": q}, r"fmha_fwd\(\) got k by position and by name"),
    ):
        with pytest.raises(TypeError, match=said):
            tk.fmha_fwd(*given, **named)
    with pytest.raises(tk.ArgumentError, match="v: had"):
        tk.fmha_fwd(q, q, q[0])
    with pytest.raises(TypeError, match=r"^fmha_fwd\(\) has no argument 'casual'"):
        tk.fmha_fwd(q, q, q, casual=True)


def test_a_missing_operator_names_the_receipt_that_builds_it(flash, monkeypatch):
    from tilekiln.api import operators

    monkeypatch.setattr(operators, "_at_hand", lambda: [flash])
    with pytest.raises(tk.NoKernelError) as told:
        tk.softmax(np.ones((2, 8), np.float32))
    assert "no available library (flash) has the operator softmax\n  build one: " in str(told.value)
    assert "receipt=norm_default" in str(told.value)
    with pytest.raises(tk.NoKernelError, match="receipt=gemm_default"):
        tk.gemm(np.ones((2, 8), np.float32), np.ones((8, 2), np.float32))


def test_help_says_what_there_is(flash):
    signature = inspect.signature(flash.fmha_fwd)
    text = flash.fmha_fwd.__doc__
    for name in signature.parameters:
        assert f"\n{name}: " in text, name
    assert inspect.signature(flash.why) == signature
    declared = ast.parse((pathlib.Path(tk.__file__).parent / "_generated/declared.pyi").read_text())
    classes = {one.name: one for one in declared.body if isinstance(one, ast.ClassDef)}
    typed = {
        field.target.id
        for name in ("RunArguments", "FmhaFwdArguments")
        for field in classes[name].body
        if isinstance(field, ast.AnnAssign)
    }
    assert typed == set(signature.parameters) - {"q", "k", "v"}
    for name in tk.__all__:
        assert getattr(tk, name).__doc__, name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        tk.nothing  # noqa: B018
