# SPDX-License-Identifier: MIT
"""Packages that import flash_attn and aiter, over the drop-ins, against themselves with PyTorch's own attention.

Each client is a program of this folder, so that what it does to a process stays in it.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

ROOT = Path(__file__).resolve().parents[2]
PLACES = [ROOT / "python" / "compat" / "flash_attn", ROOT / "python" / "compat" / "aiter", ROOT / "python", ROOT]
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
"""Packages of an overlay are installed without bytecode, and each process would compile what it imports of them."""
pytestmark = [pytest.mark.torch, pytest.mark.transformers]


@pytest.fixture
def run(overlay, build_library, binding, tmp_path):
    """run(program, lock, processes) with what the lock file brings on the path: each process must print "agrees"."""

    def run(program: str, lock: str, processes: int = 1, receipts: tuple[str, ...] = ("flash", "aiter")) -> None:
        libraries = [build_library(receipt) for receipt in receipts]
        environment = {
            **ENVIRONMENT,
            "PYTHONPATH": os.pathsep.join(map(str, [overlay(lock), *PLACES])),
            "TILEKILN_PATH": os.pathsep.join(map(str, libraries)),
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
        }
        command = [sys.executable, ROOT / "tests" / "clients" / program]
        started = [
            subprocess.Popen(
                [*command, str(rank), str(tmp_path / "meeting")],
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, cwd="/",
            )
            for rank in range(processes)
        ]  # fmt: skip
        try:
            said = [process.communicate(timeout=600) for process in started]
        finally:
            for process in started:
                process.kill()
        for process, (printed, errors) in zip(started, said, strict=True):
            assert process.returncode == 0, f"{printed}\n{errors}"
            assert printed.splitlines()[-1] == "agrees", printed

    return run


BOTH = pytest.mark.parametrize("lock", ["clients", "clients-older"])


@pytest.mark.sampled(1)
@BOTH
def test_diffusers(run, lock):
    run("diffusion.py", lock)


@pytest.mark.sampled(1)
@BOTH
def test_transformers_with_padding(run, lock):
    run("padded_models.py", lock)


@pytest.mark.turns(1)
def test_ring_flash_attn(run):
    """Of the older ones: under Transformers 5 the package wants a function that is no longer there."""
    run("ring.py", "clients-older", processes=2)


@pytest.mark.turns(0)
def test_yunchang(run):
    run("long_context.py", "clients", processes=2)


@pytest.mark.turns(1)
def test_accelerate_context_parallel(run):
    run("context_parallel.py", "accelerate", processes=2, receipts=("flash",))


def test_names_that_others_import(run):
    run("names.py", "clients")


@pytest.mark.turns(0)
def test_modernbert(run):
    run("modernbert.py", "clients-older")


@pytest.mark.sampled(1)
@BOTH
def test_transformers_over_pages(run, lock):
    run("paged_batching.py", lock)


WITH_ANOTHER_TRANSFORMERS = {
    "transformers-newest": (
        "not fp16 and not bf16",
        [
            "test_transformers.py",
            "test_own_attention.py",
            "test_transformers_windows.py",
            "test_optimize_verify.py",
            "test_optimize.py",
            "test_optimize_arguments.py",
        ],
    ),
    "clients-older": ("just_full or right", ["test_transformers_windows.py"]),
}
"""Of each lock the tests, and which of them; without --full those of one version and two of its files, of the day."""


@pytest.mark.sampled(1)
@pytest.mark.parametrize("lock", WITH_ANOTHER_TRANSFORMERS)
def test_other_versions_of_transformers(overlay, tmp_path, request, lock):
    """The tests of tilekiln.transformers and optimize with a newer version than the environment has, and an older."""
    which, files = WITH_ANOTHER_TRANSFORMERS[lock]
    if not request.config.option.full:
        files = Random(request.config.option.sample_seed).sample(files, min(2, len(files)))
    version = re.search(r"^transformers==(\S+)", (ROOT / "requirements" / f"{lock}.lock").read_text(), re.MULTILINE)[1]
    environment = {**ENVIRONMENT, "PYTHONPATH": os.pathsep.join(map(str, [overlay(lock), ROOT / "python", ROOT]))}
    environment = {name: value for name, value in environment.items() if not name.startswith("PYTEST_")}
    with_it = f"import transformers; assert transformers.__version__ == {version!r}, transformers; "
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-k", which]
    options += [f"--basetemp={tmp_path}/tests", *(f"tests/python/{name}" for name in files)]
    command = [sys.executable, "-c", f"{with_it}import sys, pytest; sys.exit(pytest.main({options!r}))"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT, timeout=600, check=False)
    assert done.returncode == 0, f"{done.stdout[-6000:]}\n{done.stderr[-2000:]}"


@pytest.mark.turns(0)
def test_onnx_export(run):
    run("onnx_export.py", "onnx", receipts=("flash", "pytorch", "fp32"))


@pytest.mark.turns(1)
def test_torchao_quantises(run):
    run("torchao_models.py", "torchao", receipts=("flash", "gemm_default", "gemm_linear", "norm_default"))


@pytest.fixture
def vllm(overlay, build_library, binding, request):
    """vllm(program, *arguments, **environment): what it prints, beside the real vLLM; with --full alone, as vLLM's
    143 packages take minutes to install."""
    if not request.config.option.full:
        pytest.skip("vLLM is installed with --full alone")
    environment = {
        **ENVIRONMENT,
        "PYTHONPATH": os.pathsep.join(map(str, [overlay("vllm"), ROOT / "python/compat/vllm", ROOT / "python", ROOT])),
        "TILEKILN_PATH": str(build_library("vllm")),
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }

    def run(program: str, *arguments: str, **more: str) -> str:
        command = [sys.executable, ROOT / "tests" / "clients" / program, *arguments]
        done = subprocess.run(
            command, capture_output=True, text=True, env={**environment, **more}, cwd="/", timeout=900, check=False
        )
        assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done.stdout.splitlines()[-1]

    return run


def test_vllm_attention(vllm):
    assert vllm("vllm_attention.py") == "agrees"


@pytest.mark.parametrize("kind", ["llama", "qwen3", "mistral", "gemma2", "mixtral"])
def test_vllm_serves_the_same_tokens(vllm, tmp_path, kind):
    place = str(tmp_path / kind)
    vllm("vllm_models.py", "make", place, kind)
    ours = json.loads(vllm("vllm_models.py", "ours", place))
    assert ours == json.loads(vllm("vllm_models.py", "stock", place, VLLM_PLUGINS=""))
    assert len({token for tokens in ours for token in tokens}) > 4
    if kind == "llama":  # caches of 8 bits have other last bits
        assert all(vllm("vllm_models.py", "ours", place, fp8) for fp8 in ("fp8", "fp8_e5m2"))


def test_kernels_puts_our_layers_into_a_model(overlay, build_library, scons):
    """The repository brings its own tilekiln: that of the tree is not on the path."""
    library = build_library("norm_default")
    scons("receipt=norm_default", "hf-kernels")
    environment = {
        **ENVIRONMENT,
        "PYTHONPATH": os.pathsep.join(map(str, [overlay("kernels"), ROOT])),
        "TILEKILN_HUB_REPOSITORY": str(library.parents[1] / "hf-kernels" / "tilekiln-norm-default"),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, ROOT / "tests" / "clients" / "hub_layers.py"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd="/", timeout=600, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert done.stdout.splitlines()[-1] == "agrees"
