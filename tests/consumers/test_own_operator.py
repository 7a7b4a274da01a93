# SPDX-License-Identifier: MIT
"""An operator of somebody else's folder, attention with a score function of its own, goes the whole line.

Trees here are links to this one with a build/ of their own: a library of an operator that this tree does not know must
not lie among those that other tests find.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from codegen.plan.plan import resolve
from codegen.schema import places
from codegen.schema.errors import CodegenError
from codegen.schema.tree import Tree
from tests.build.conftest import PARTS as SOURCES
from tests.conftest import PYTHON, shared_objects
from tests.consumers.conftest import ROOT, run
from tests.programs import need

EXAMPLE = ROOT / "tests/consumers/relative_attention"
PAGE = (ROOT / "docs/how-to/own-operator.md").read_text()
PARTS = (*SOURCES, "docs", "tests/python")
LIBRARY = "libtilekiln_relative_attention.so"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.M | re.S)


def linked(place: Path) -> Path:
    (place / "tests").mkdir(parents=True)
    for part in PARTS:
        (place / part).symlink_to(ROOT / part)
    shutil.copytree(EXAMPLE, place / "tests/consumers/relative_attention")
    return place


def in_tree(tree: Path, line: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A shell line of the page."""
    for words, instead in (("tools/dev scons", "-m SCons -Q"), ("tools/dev python", "")):
        line = line.replace(words, f"{PYTHON} {instead}")
    variables = {**os.environ, "SCONSFLAGS": " ".join(shared_objects()), **environment}
    return subprocess.run(line, shell=True, cwd=tree, env=variables, capture_output=True, text=True, check=False)


@pytest.fixture(scope="session")
def built(once) -> Path:  # type: ignore[no-untyped-def]
    """A tree in which the page's shell lines have been run, in order."""
    need("cc", "pkg-config")

    def make(place: Path) -> None:
        tree = linked(place / "tree")
        (tree / "main.c").write_text(blocks("c")[0])
        for block in blocks("sh"):
            for line in re.sub(r"\\\n", "", block).splitlines():
                done = in_tree(tree, line)
                assert done.returncode == 0, line + done.stdout + done.stderr
                (tree / f"said-{re.sub(r'[^a-z]+', '-', line)[:60]}").write_text(done.stdout)

    return Path(once("own-operator", make)) / "tree"


def libraries(tree: Path) -> list[Path]:
    return sorted(tree.glob(f"build/*-release/lib/{LIBRARY}"))


def python(tree: Path, code: str, *arguments: str) -> str:
    """In a process of its own: this one is not to know the operator."""
    places_ = os.pathsep.join(map(str, libraries(tree)))
    path = os.pathsep.join([str(ROOT / "python"), str(ROOT), str(EXAMPLE)])
    return run(sys.executable, "-c", code, *arguments, TILEKILN_PATH=places_, PYTHONPATH=path)


NUMBERS = """
import itertools
import ml_dtypes, numpy as np, tilekiln as tk
from float64 import attention, bound
lib = tk.load("relative_attention")
assert lib.operators == ("relative_attention",)
random = np.random.default_rng(7)
SHAPES = [  # batch, seqlen_q, seqlen_k, nhead_q, nhead_k, hdim_q, hdim_v, distances
    (2, 70, 130, 4, 2, 64, 64, 32), (1, 5, 3, 2, 1, 33, 17, 1), (1, 200, 200, 2, 2, 128, 96, 500),
    (1, 1, 257, 1, 1, 256, 8, 40), (3, 64, 64, 1, 1, 1, 256, 63),
]
DTYPES = (np.float32, ml_dtypes.bfloat16)
for shape, dtype, causal, threads in itertools.product(SHAPES, DTYPES, (False, True), (1, 2)):
    B, Sq, Sk, H, Hk, D, Dv, N = shape
    lengths = (B, Sq, H, D), (B, Sk, Hk, D), (B, Sk, Hk, Dv)
    q, k, v = (random.standard_normal(one).astype(dtype) for one in lengths)
    k = k[:, ::-1]  # any strides
    bias = 3 * random.standard_normal((H, N), np.float32)
    out = lib.relative_attention(q, k, v, bias, causal=causal, num_threads=threads)
    want = attention(q, k, v, bias, causal=causal)
    far = bound(want, v, dtype)
    assert out.dtype == dtype and np.all(np.abs(out - want) <= far), (shape, dtype, causal)
    assert N == 1 or np.any(np.abs(out - attention(q, k, v, bias * 0, causal=causal)) > far)  # the bias is in it

def refused(sentence, q=q, k=k, v=v, bias=bias, **words):
    try:
        lib.relative_attention(q, k, v, bias, **words)
    except tk.ArgumentError as error:
        assert str(error).startswith(sentence), error
    else:
        raise AssertionError(sentence)

refused("k: hdim was 0, must be 1, the hdim of q", k=k[..., :-1])
refused("distance_bias: ", bias=bias[:, :0])
refused("distance_bias: dtype was ", bias=bias.astype(np.float64))
refused("softmax_scale: was nan", softmax_scale=float("nan"))
print(lib.isa)
"""


@pytest.mark.day
def test_numbers_against_float64(built: Path, binding: Path) -> None:
    python(built, NUMBERS)


@pytest.mark.torch
def test_python_of_the_page(built: Path, binding: Path) -> None:
    said = python(built, blocks("python")[0])
    assert "chosen: relative_attention_fp32_ncausal_qlanes_cpu_" in said


@pytest.mark.torch
def test_pytorch_traces_maps_and_writes_in_place(built: Path, binding: Path) -> None:
    python(built, TORCH)


TORCH = """
import torch, tilekiln as tk, tilekiln.torch  # PyTorch first, the library later: it follows
tk.load("relative_attention")
op = torch.ops.tilekiln.relative_attention
q, k, v = (torch.randn(3, 20, 2, 16) for _ in range(3))
bias = torch.randn(2, 8)
want = op(q, k, v, bias)
torch.library.opcheck(op, (q, k, v, bias))
assert torch.equal(torch.compile(lambda *a: op(*a), backend="aot_eager", fullgraph=True)(q, k, v, bias), want)
mapped = torch.vmap(lambda *a: op(*(x[None] for x in a), bias)[0])(q, k, v)
assert torch.equal(mapped, want)
out = torch.empty_like(want)
torch.ops.tilekiln.relative_attention_out(out, q, k, v, bias)
assert torch.equal(out, want)
q.requires_grad_()
try:
    op(q, k, v, bias).sum().backward()
except NotImplementedError as error:
    assert "relative_attention has no backward" in str(error)
else:
    raise AssertionError("a gradient of nothing")
"""


JAX = """
import jax, numpy as np, tilekiln as tk, tilekiln.jax  # JAX first, the library later: it follows
from tilekiln.jax import ops
try:
    ops.relative_atention
except AttributeError as error:
    assert str(error).startswith("tilekiln.jax.ops: has no relative_atention: no available library declares it"), error
assert "softmax" in dir(ops)
lib = tk.load("relative_attention")
random = np.random.default_rng(3)
q, k, v = (random.standard_normal((3, 20, 2, 16), np.float32) for _ in range(3))
bias = random.standard_normal((2, 8), np.float32)
want = lib.relative_attention(q, k, v, bias, causal=True)
assert np.array_equal(jax.jit(lambda *a: ops.relative_attention(*a, causal=True))(q, k, v, bias), want)
row = lambda q, k, v: ops.relative_attention(q[None], k[None], v[None], bias, causal=True)[0]
assert np.array_equal(jax.vmap(row)(q, k, v), want)
assert np.array_equal(ops.relative_attention(q, k=k, v=v, distance_bias=bias, causal=True, softmax_scale=None), want)

def refused(sentence, *arrays, **words):
    try:
        ops.relative_attention(*arrays, **words)
    except tk.ArgumentError as error:
        assert str(error).startswith(sentence), error
    else:
        raise AssertionError(sentence)

refused("distance_bias: was not given, must be given", q, k, v)
refused("q: was given by position and by name", q, k, v, bias, q=q)
refused("relative_attention: was given 5 arrays by position, must be at most 4", q, k, v, bias, bias)
refused("out: was given, must be absent under JAX", q, k, v, bias, out=q)
refused("k: hdim was 15, must be 16, the hdim of q", q, k[..., :-1], v, bias)
try:
    jax.grad(lambda q: ops.relative_attention(q, k, v, bias).sum())(q)
except ValueError as error:
    assert "cannot be differentiated" in str(error), error
else:
    raise AssertionError("a gradient of nothing")
"""


@pytest.mark.jax
def test_jax_traces_and_maps(built: Path, binding: Path, jax_handlers: Path) -> None:
    python(built, JAX)


STUBS = """
from typing import assert_type, cast
from own_stubs import Library
import tilekiln as tk
library = cast(Library, tk.load("relative_attention"))
assert_type(library.relative_attention_find(1, 2, 3, 4, causal=True), int)
library.relative_attention(1, 2, 3, 4, casual=True)
library.relative_attention(1, 2, 3)
library.fmha_fwd(1, 2, 3, causal=True)
"""


@pytest.mark.day
def test_type_checkers_know_it(built: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(STUBS)
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), "mine.py"]
    environment = {**os.environ, "MYPYPATH": os.pathsep.join([str(built / "build"), str(ROOT / "python")])}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    said = [
        line.removesuffix("  [call-arg]").partition(": error: ")[::2]
        for line in done.stdout.splitlines()
        if ": error: " in line
    ]
    assert said == [
        (
            "mine.py:7",
            'Unexpected keyword argument "casual" for "relative_attention" of "Library"; did you mean "causal"?',
        ),
        (
            "mine.py:8",
            'Missing positional argument "distance_bias" in call to "relative_attention" of "Library"',
        ),
    ], done.stdout + done.stderr


@pytest.mark.day
def test_what_the_page_says_c_prints(built: Path) -> None:
    assert (built / "said--main").read_text() == blocks("text")[0]


@pytest.mark.day
def test_pages_are_written(built: Path) -> None:
    pages = built / "build/own-pages"
    assert sorted(path.name for path in pages.rglob("*.md")) == ["relative_attention.md"]
    assert "distance_bias" in (pages / "operators/relative_attention.md").read_text()


@pytest.mark.day
def test_the_vendored_tree_has_it_and_builds(built: Path) -> None:
    need("make")
    tree = built / "build/own-sources"
    folder = tree / "operators/relative_attention"
    assert sorted(str(path.relative_to(folder)) for path in folder.rglob("*.*")) == [
        "cpu/qlanes.cpp",
        "engine.h",
        "host.cpp",
    ]
    assert (tree / "include/tilekiln/operators/relative_attention.h").exists()
    readme = (tree / "README.md").read_text()
    assert "`scons operators=FOLDER receipt=relative_attention " in readme
    assert "for\nrelative_attention that of its name, `tilekiln/operators/relative_attention.h`." in readme
    objects = ["build/operators/relative_attention/host.o", "build/generated/relative_attention/operators.o"]
    compiler = "ccache g++" if "ccache" in " ".join(shared_objects()) else "g++"
    run("make", f"CXX={compiler}", *objects, cwd=tree)


@pytest.mark.day
def test_nothing_says_where_the_folder_lay(built: Path) -> None:
    for path in [*built.glob("build/*-release/gen/**/*.*"), *libraries(built)]:
        assert str(built).encode() not in path.read_bytes(), path


@pytest.mark.day
def test_a_host_project(built: Path, tmp_path: Path) -> None:
    """SConscript takes it as a value, relative to the host's SConstruct."""
    (tmp_path / "third_party").mkdir()
    linked(tmp_path / "third_party/tilekiln")
    shutil.copytree(EXAMPLE, tmp_path / "mine/relative_attention")
    (tmp_path / "SConstruct").write_text(
        "request = {'operators': 'mine/relative_attention', 'target': 'cpu-generic', 'dry': True}\n"
        "build = SConscript('third_party/tilekiln/SConscript', exports={'request': request})\n"
        "print(*build.libraries)\n"
    )
    done = in_tree(tmp_path, "tools/dev scons -n -s")
    assert done.stdout == "relative_attention\n", done.stdout + done.stderr


@pytest.mark.day
def test_cleaning_leaves_the_folder(built: Path, tmp_path: Path) -> None:
    """The link goes, not what it leads to; and a receipt of the tree goes on without it."""
    tree = linked(tmp_path / "tree")
    example = tree / "tests/consumers/relative_attention"
    before = sorted(example.rglob("*"))
    variant = tree / "build/generic-release"
    link = variant / "outside/operators/relative_attention"
    link.parent.mkdir(parents=True)
    link.symlink_to(tmp_path)  # of an earlier build, from elsewhere
    objects = "build/generic-release/obj/operators/relative_attention/host.o"
    done = in_tree(tree, f"tools/dev scons operators={example} target=cpu-generic {objects}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert link.resolve() == example
    done = in_tree(tree, f"tools/dev scons operators={example} target=cpu-generic -c")
    assert done.returncode == 0, done.stdout + done.stderr
    assert not variant.exists()
    assert sorted(example.rglob("*")) == before


WRONG = {
    "nothing/there": "is not there, must be the folder of an operator (operator.yaml) or of several",
    "file": "is a file, must be the folder of an operator",
    "empty": "holds no operator.yaml; must be the folder of an operator or of several",
    "No-Name": "is named 'No-Name', must have a name of small letters, digits and _: files go by it",
    "other/relative_attention": "has the name of relative_attention; folders from outside must have different names",
}


@pytest.mark.parametrize("folder", WRONG)
def test_wrong_folders(folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("No-Name", "other/relative_attention", "relative_attention"):
        shutil.copytree(EXAMPLE, tmp_path / name)
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(CodegenError) as error:
        places.outside(["relative_attention", folder], str(ROOT))
    assert str(error.value).startswith(f"operators={folder}: {WRONG[folder]}")


@pytest.mark.parametrize("folder", ["kernels/attention", "kernels", ".", "build"])
def test_folders_of_this_tree(folder: str) -> None:
    (ROOT / "build").mkdir(exist_ok=True)
    with pytest.raises(CodegenError, match=r"^operators=.*: lies in this tree, which has its operators already"):
        places.outside([str(ROOT / folder)], str(ROOT))


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Tree]:
    """outside({(file, text): other}) -> this tree with a changed example."""
    monkeypatch.chdir(tmp_path)

    def make(changes: dict[tuple[str, str], str], name: str = "relative_attention") -> Tree:
        folder = tmp_path / name
        shutil.copytree(EXAMPLE, folder)
        for (file, text), other in changes.items():
            before = (folder / file).read_text()
            assert text in before
            (folder / file).write_text(before.replace(text, other))
        return Tree(str(ROOT), places.outside([name], str(ROOT)))

    return make


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {("family.yaml", "cpu-generic:"): "cpu-genric:"},
            "relative_attention/family.yaml:20:3: no target 'cpu-genric'; nearest: cpu-generic",
        ),
        (
            {("operator.yaml", "area: attention"): "area: atention"},
            "relative_attention/operator.yaml:11:7: no area 'atention'; nearest: attention",
        ),
        (
            {("family.yaml", "algorithms:\n  cpu-generic:\n    - {pipeline: qlanes}\n"): ""},
            "relative_attention/family.yaml:2:1: no target has an algorithm of relative_attention: "
            "name under `algorithms` a target, cpu-generic for every CPU, and its pipelines",
        ),
    ],
)
def test_what_is_wrong_inside(outside: Callable[..., Tree], changes: dict[tuple[str, str], str], message: str) -> None:
    tree = outside(changes)
    with pytest.raises(CodegenError) as error:
        resolve("relative_attention", ["cpu-generic"], root=tree)
    assert str(error.value).startswith(message)


def test_names_of_the_tree_are_taken(outside: Callable[..., Tree]) -> None:
    tree = outside({("operator.yaml", "operator: relative_attention"): "operator: softmax"}, "softmax")
    with pytest.raises(
        CodegenError, match=r"^softmax/operator.yaml:1:11: .*softmax/operator.yaml is the operator of this"
    ):
        tree.operators  # noqa: B018


def test_a_receipt_of_its_own_extends_one_of_the_tree(outside: Callable[..., Tree], tmp_path: Path) -> None:
    tree = outside({})
    text = "receipt: mine\nabout: both\nextends: fp32_min\nfamilies: {relative_attention: {keep: dtype=fp32}}\n"
    (tmp_path / "relative_attention/receipts").mkdir()
    (tmp_path / "relative_attention/receipts/mine.yaml").write_text(text)
    plan = resolve("mine", ["cpu-generic"], root=tree)
    assert {"fmha_fwd", "relative_attention"} < {instance.family for instance in plan.instances}
    assert "mine" in tree.receipt_names
