# SPDX-License-Identifier: MIT
"""NumPy users need no framework: nothing imports one, and the faces that need one say so."""

from __future__ import annotations

import subprocess
import sys

import pytest

CPU_SECONDS = 0.15
"""Most time for `import tilekiln`; it takes about a tenth of that."""
FRAMEWORKS = {"torch", "transformers", "jax", "jaxlib"}


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_import_is_quick_and_brings_no_framework(binding):
    code = (
        "import sys, time; began = time.process_time(); import tilekiln; took = time.process_time() - began; "
        f"assert not {FRAMEWORKS} & {{*sys.modules}}; print(took)"
    )
    assert min(float(run(code)) for _ in range(3)) <= CPU_SECONDS


def test_attention_of_numpy_arrays_brings_no_framework(flash):
    code = (
        f"import os, sys; os.environ['TILEKILN_PATH'] = {flash.path!r}; import numpy as np, tilekiln as tk\n"
        "q = np.ones((1, 8, 2, 32), np.float32)\n"
        "out, lse = tk.attention(q, q, q, causal=True, return_lse=True)\n"
        "tk.attention_backward(out, q, q, q, out, lse, causal=True)\n"
        f"assert not {FRAMEWORKS} & {{*sys.modules}}; print(out.sum())"
    )
    assert run(code) == "512.0"


@pytest.mark.parametrize("face", ["torch", "flash_attn", "flash_attn.bert_padding", "aiter", "aiter.ops.mha"])
def test_faces_without_torch_say_what_to_do(binding, face):
    said = run(
        "import sys; sys.modules['torch'] = None\n"
        f"try: import tilekiln.{face}\n"
        "except ModuleNotFoundError as error: print(error.name, error)"
    )
    assert said.startswith("torch tilekiln.torch, .flash_attn and .aiter compute with PyTorch")
    assert "pip install torch" in said
    assert "NumPy arrays need none of them: tilekiln.attention" in said


@pytest.mark.torch
def test_torch_needs_no_transformers(binding):
    pytest.importorskip("torch")
    code = "import sys; sys.modules['transformers'] = None\nimport torch, tilekiln.torch\n"
    assert run(code + "print(len(tilekiln.torch.optimize(torch.nn.ReLU()).changes))") == "0"


@pytest.mark.parametrize("face", ["jax", "transformers"])
def test_other_faces_say_what_is_missing(binding, face):
    said = run(
        f"import sys; sys.modules[{face!r}] = sys.modules['torch'] = None\n"
        f"try: import tilekiln.{face}\n"
        "except ModuleNotFoundError as error: print(error)"
    )
    assert said.startswith(f"tilekiln.{face} ")
    assert "is not there" in said
    assert "pip install " in said
    assert f"tools/dev --with {face}" in said
