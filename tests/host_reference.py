# SPDX-License-Identifier: MIT
"""References with products of matrices, computed by the Python of the machine for tests that an emulator runs.

    HOST_PYTHON=PYTHON build/aarch64-python/python -m pytest -p tests.host_reference FILE

float64's products are most of an emulated test's time, and nothing that it tests. An emulator of user programs lets the
kernel of the machine start programs of its own kind, so this plugin starts PYTHON, and sends it the arguments of every
call of a function of REFERENCES. Drawing, the kernels, and the bounds of results stay where the test is.
"""

from __future__ import annotations

import functools
import importlib
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "tilekiln.reference"
REFERENCES = {
    "attention": ["forward"],
    "backward": ["backward"],
    "batched_contraction": ["batched_contraction"],
    "conv": ["conv_fwd", "conv_bwd_data", "conv_bwd_weight"],
    "functions": ["attention", "attention_backward"],
    "gated_delta_rule": ["gated_delta_rule", "gated_delta_rule_bwd"],
    "gemm": ["gemm", "gemm_multi_d", "flatmm_quant", "gemm_quant"],
    "kv": ["over", "splitkv", "batch_prefill"],
    "mla": ["decode"],
    "moe": ["fused_moe"],
}
"""By module. They change no argument, and depend on nothing else."""


class Host:
    """The other Python, which computes one call at a time."""

    def __init__(self, python: str) -> None:
        self.lock = threading.Lock()
        ours = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "QEMU"))}
        path = os.pathsep.join(map(str, (ROOT, ROOT / "python")))
        self.process = subprocess.Popen(
            [python, "-m", "tests.host_reference"],
            cwd=ROOT,
            env={**ours, "PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def __call__(self, module: str, name: str, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        assert self.process.stdin
        assert self.process.stdout
        with self.lock:
            pickle.dump((module, name, given, named), self.process.stdin, pickle.HIGHEST_PROTOCOL)
            self.process.stdin.flush()
            right, made = pickle.load(self.process.stdout)
        if not right:
            raise made
        return made


def served(asked: IO[bytes], answers: IO[bytes]) -> None:
    """Answers calls until no more are asked."""
    while True:
        try:
            module, name, given, named = pickle.load(asked)
        except EOFError:
            return
        try:
            answer = True, getattr(importlib.import_module(f"{PACKAGE}.{module}"), name)(*given, **named)
        except Exception as error:  # of the reference, which the test may expect
            answer = False, error
        pickle.dump(answer, answers, pickle.HIGHEST_PROTOCOL)
        answers.flush()


def elsewhere(host: Host, module: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*given: Any, **named: Any) -> Any:
        return host(module, function.__name__, given, named)

    return call


def pytest_configure() -> None:
    """Puts calls of the host in place of REFERENCES, in every module of the package that names them."""
    host = Host(os.environ["HOST_PYTHON"])
    there = {
        function: elsewhere(host, module, function)
        for module, names in REFERENCES.items()
        for function in (getattr(importlib.import_module(f"{PACKAGE}.{module}"), name) for name in names)
    }
    for module in [one for name, one in sys.modules.items() if name.startswith(PACKAGE)]:
        for name, value in list(vars(module).items()):
            if callable(value) and value in there:
                setattr(module, name, there[value])


if __name__ == "__main__":
    served(sys.stdin.buffer, sys.stdout.buffer)
