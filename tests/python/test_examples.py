# SPDX-License-Identifier: MIT
"""Every program in examples/ runs, and so does the demo."""

from __future__ import annotations

import itertools
import os
import pathlib
import re
import subprocess
import sys

import pytest

from codegen.plan.plan import resolve

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXAMPLES = sorted(path.name for path in (ROOT / "examples").glob("*.py") if path.name != "serving_loop.py")


RECEIPTS = ("flash", "pytorch", "fp8", "norm_default", "gemm_default")


@pytest.fixture(scope="session")
def path(load) -> str:
    """TILEKILN_PATH with what the programs load."""
    return os.pathsep.join(str(pathlib.Path(load(receipt).path)) for receipt in RECEIPTS)


def run(path: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "TILEKILN_PATH": path, "PYTHONPATH": f"{ROOT / 'python'}{os.pathsep}{ROOT}"}
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )


def marks(name: str) -> list[pytest.MarkDecorator]:
    extras = [extra for extra in ("torch", "jax") if name.startswith(f"{extra}_")]
    if "import transformers\n" in (ROOT / "examples" / name).read_text():
        extras.append("transformers")
    return [getattr(pytest.mark, extra) for extra in extras]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", [pytest.param(name, marks=marks(name)) for name in EXAMPLES])
def test_example(path, name, request):
    if name.startswith("jax_"):
        request.getfixturevalue("jax_handlers")
    done = run(path, f"examples/{name}")
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.day
def test_demo(path):
    done = run(path, "tools/demo.py", "flash", "fp8")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "\x1b" not in done.stdout, "plain when piped"
    assert f"flash: {len(resolve('flash', ['native']).instances):,} instances" in done.stdout
    rows = re.findall(
        r"(fp32|fp16|bf16|fp8bf16|fp8fp32) +\d+(?:/\d+)? +\d+ .* (\d+) % +([\d.]+) +(\d+) +(\d+) %$", done.stdout, re.M
    )
    assert {row[0] for row in rows} == {"fp32", "fp16", "bf16", "fp8bf16", "fp8fp32"}
    assert len(rows) == 21
    for _, of_bound, milliseconds, _, of_peak in rows:
        assert int(of_bound) <= 100
        assert float(milliseconds) > 0
        assert 0 < int(of_peak) <= 110


def test_demo_of_the_package(path):
    """Out of the tree nothing measures the peak, and nothing of the tree is imported."""
    program = "import runpy, sys; sys.argv = ['demo', 'fp8']\n"
    program += "try:\n    runpy.run_module('tilekiln.cli.demo', run_name='__main__')\n"
    program += "finally:\n    assert not any(name.partition('.')[0] == 'tools' for name in sys.modules)\n"
    done = run(path, "-c", program)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Peak of this core: not measured" in done.stdout


def test_demo_of_a_library_without_forward(build_library):
    """It says what the receipt has instead, and that is no failure."""
    library = build_library("fp32_min", mode="debug", where="family=fmha_bwd_dq_dk_dv hdim_q=64")
    done = run(str(library.parent), "-m", "tilekiln.cli.demo", str(library))
    assert done.returncode == 0, done.stdout + done.stderr
    assert " ".join(done.stdout.split()).endswith(
        "The demo computes forward attention (fmha_fwd), which this receipt leaves out. "
        "It has fmha_bwd_convert_dq, fmha_bwd_dot_do_o, fmha_bwd_dq_dk_dv."
    )


def test_demo_refuses_what_is_not_there(path):
    done = run(path, "-m", "tilekiln.cli.demo", "no_such_receipt")
    assert done.returncode != 0
    assert "no_such_receipt" in done.stderr


@pytest.mark.transformers
def test_serving_loop(path):
    """The table: pages are used again, nobody waits for ever, sequences of different ages decode together."""
    done = run(path, "examples/serving_loop.py")
    assert done.returncode == 0, done.stderr
    head, *lines = done.stdout.splitlines()
    assert head.split() == ["step", "tokens", "answered", "pages", "used"]
    rows = [line for line in lines if line.endswith("of 24")]
    ended = [line[28:38].split() for line in rows]
    assert sorted(name for step in ended for name in step) == ["ada", "bob", "cyn", "dan", "eve"]
    assert max(len(row[6:28].split()) for row in rows) >= 3, "three decode together"
    used = [int(match) for match in re.findall(r"(\d+) of 24", done.stdout)]
    assert any(later < earlier for earlier, later in itertools.pairwise(used)), "pages come back"
    assert re.search(r"eve: 48 of 67 tokens reused", done.stdout), "a beginning is computed once"
