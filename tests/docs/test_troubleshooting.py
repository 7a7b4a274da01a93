# SPDX-License-Identifier: MIT
"""docs/how-to/troubleshooting.md: every message of the page is produced here, word for word but for its `...`."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.docs.test_contributing import PARTS, copied

ROOT = Path(__file__).resolve().parents[2]
MESSAGES = re.findall(r"^```text\n(.*?)\n```$", (ROOT / "docs/how-to/troubleshooting.md").read_text(), re.M | re.S)
Do = Callable[..., str]


@pytest.fixture
def say(tmp_path: Path) -> Do:
    """say(WORDS..., cwd=, NAME=value...) -> what a command that fails says on stderr."""

    def run(*words: str | Path, cwd: Path = ROOT, **environment: str) -> str:
        everything = {**os.environ, **environment}
        done = subprocess.run(words, cwd=cwd, env=everything, capture_output=True, text=True, check=False, timeout=600)
        assert done.returncode != 0
        return done.stderr

    return run


def page_has(start: str, said: str) -> None:
    """The one message of the page that begins so is in what was said."""
    (message,) = [message for message in MESSAGES if message.startswith(start)]
    pattern = re.escape(message).replace(re.escape("..."), ".*?")
    assert re.search(rf"^(?:.*: )?{pattern}", said, re.M | re.S), f"{message}\n--- was said:\n{said}"


def test_setting_up(say: Do, tmp_path: Path) -> None:
    page_has("tools/dev: python", say("tools/dev", "true", PYTHON="python3.99"))
    (tmp_path / "a:tree/tools").mkdir(parents=True)
    shutil.copy2(ROOT / "tools/dev", tmp_path / "a:tree/tools")
    page_has("tools/dev: the folder", say(tmp_path / "a:tree/tools/dev", "true"))
    page_has("ModuleNotFoundError", say(sys.executable, "-I", "-c", "import tilekiln", cwd=tmp_path))
    shutil.copytree(ROOT / "python/tilekiln", tmp_path / "python/tilekiln")
    python = (sys.executable, "-c", "import tilekiln; tilekiln.load('flash')")
    page_has("ImportError", say(*python, cwd=tmp_path, PYTHONPATH=str(tmp_path / "python")))


def test_building(say: Do, tmp_path: Path) -> None:
    scons = (sys.executable, "-m", "SCons", "-Q")
    page_has("tilekiln: no-such-compiler", say(*scons, "cxx=no-such-compiler"))
    page_has("tilekiln: codegen is", say(*scons, "vendor=codegen"))
    codegen = (sys.executable, "-m", "codegen")
    page_has("codegen: where:", say(*codegen, "list", "flash", "--where", "dtype=bf17"))
    page_has("codegen: receipt fp32_min", say(*codegen, "list", "fp32_min", "--where", "dtype=bf16"))
    scratch = copied(tmp_path / "tree", PARTS)
    broken = "receipt: mine\nabout: Half written.\nfamilies:\n  fmha_fwd:\n    keep: dtype=bf17\n"
    (scratch.root / "receipts/mine.yaml").write_text(broken)
    page_has("codegen: warning:", scratch.codegen("receipts"))
    (scratch.root / "receipts/mine.yaml").write_text(broken.replace("bf17", "bf16"))
    page_has("codegen: out of date", scratch.codegen("docs", code=2))


def test_calling(say: Do, build_library, binding: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    flash = build_library("flash")
    # A tree of its own, in which flash alone is built.
    shutil.copytree(ROOT / "python/tilekiln", tmp_path / "python/tilekiln")
    shutil.copytree(ROOT / "receipts", tmp_path / "receipts")
    for file in ("SConstruct", "VERSION"):
        shutil.copy2(ROOT / file, tmp_path)
    (tmp_path / "build" / "python-release").mkdir(parents=True)
    shutil.copy2(binding, tmp_path / "build" / "python-release")
    head = "import numpy as np, tilekiln as tk; q = np.ones((1, 4, 1, 64), np.float32); lib = tk.load('flash'); "

    def python(code: str, **environment: str) -> str:
        places = {"PYTHONPATH": str(tmp_path / "python"), "TILEKILN_PATH": str(flash)}
        return say(sys.executable, "-c", head + code, cwd=tmp_path, **places, **environment)

    page_has("tilekiln.NoKernelError: name:", python("tk.load('fp32')"))
    page_has(
        "tilekiln.NoKernelError: no kernel", python("lib.fmha_fwd(q, q, q, bias=np.zeros((1, 1, 4, 4), np.float32))")
    )
    on_gpu = "from tests.python.capsules import Exported; d = Exported(q, device_type=2); lib.fmha_fwd(d, d, d, out=d)"
    page_has("tilekiln.ArgumentError: q:", python(f"import sys; sys.path.append({str(ROOT)!r}); {on_gpu}"))
    page_has("tilekiln.ArgumentError: k:", python("lib.fmha_fwd(q, q[..., :32], q)"))
    page_has("tilekiln.ArgumentError: TILEK", python("lib.fmha_fwd(q, q, q)", TILEKILN_NUM_THREADS="many"))
    program = tmp_path / "program.c"
    program.write_text("const char* tilekiln_version(void);\nint main(void) { return tilekiln_version()[0] == 0; }\n")
    subprocess.run(["cc", program, flash, "-o", tmp_path / "linked"], check=True)
    page_has("error while loading", say(tmp_path / "linked", LD_LIBRARY_PATH=""))


def test_every_message_is_produced() -> None:
    """By the tests above, which name the beginning of each."""
    text = Path(__file__).read_text()
    begins = re.findall(r'page_has\(\s*"([^"]+)"', text)
    for message in MESSAGES:
        assert [begin for begin in begins if message.startswith(begin)], f"no test produces: {message}"
