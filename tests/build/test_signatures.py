# SPDX-License-Identifier: MIT
"""Dependencies of each file: all that its compiler reads, and nothing of what else is built.

The tools are fakes whose output is a digest of their commands and inputs, so whole builds take a second.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

# Three libraries that share some rows and engines: forward, backward, a KV cache, fp8.
RECEIPTS = ("fp32_min", "flash", "fp8")
SOME = ("target=cpu-generic", "where=dtype=fp32,fp8bf16 hdim_q=128 mode=batch mask=none bias=none lse=no")


@pytest.fixture
def fake(tree, fake_tools, monkeypatch):
    """A fresh tree that is built by fake tools."""
    monkeypatch.setenv("PATH", fake_tools["PATH"])
    return tree


def libraries(tree):
    return {path.name: path.read_bytes() for path in tree.root.glob("build/*/lib/*")}


@pytest.mark.day
def test_company_and_order_change_no_byte(fake):
    """A library has the same bytes alone, with others, and in any order; going from one to another makes nothing."""
    alone = {}
    for receipt in RECEIPTS:
        fake.built(f"receipt={receipt}", *SOME)
        alone |= {name: data for name, data in libraries(fake).items() if f"_{receipt}." in name}
        fake.built("-c", f"receipt={receipt}", *SOME)
    assert len(alone) == 3 * len(RECEIPTS)  # its other name has the number of the ABI
    for order in itertools.permutations(RECEIPTS):
        said = fake.built(f"receipt={','.join(order)}", *SOME)
        assert libraries(fake) == alone, order
    assert said.lines[-1] == "scons: `default' is up to date."
    for receipt in RECEIPTS:
        assert fake.built(f"receipt={receipt}", *SOME).lines[-1] == "scons: `default' is up to date."


def read_by_compiler(tree):
    """output -> the files of the tree that the real compiler reads for it, as compile_commands.json runs it."""
    found = {}
    for entry in json.loads((tree.root / "compile_commands.json").read_text()):
        command = [word for word in entry["arguments"] if word != "-c"]
        said = subprocess.run([*command, "-MM"], cwd=tree.root, capture_output=True, text=True, check=True).stdout
        words = said.replace("\\\n", " ").split()
        found[entry["output"]] = {os.path.normpath(word) for word in words if not word.endswith(":")}
    return found


@pytest.mark.day
@pytest.mark.turns(1)
def test_an_edited_header_remakes_what_includes_it(tree, fake_tools, pytestconfig):
    """24 headers of the day, or all, are edited in turn: what scons would compile is what g++ -MM says reads it."""
    arguments = [f"receipt={','.join(RECEIPTS)}", *SOME, "default"]
    if importlib.util.find_spec("jaxlib"):
        arguments.append("jax")
    said = tree.scons(*arguments, "compiledb", environment=fake_tools)
    assert said.code == 0, said.out + said.error
    reads = {path: read for path, read in read_by_compiler(tree).items() if (tree.root / path).exists()}
    assert len(reads) > 25
    folders = (tree.root / "include", tree.root / "kernels", tree.root / "python/binding")
    headers = sorted(str(path.relative_to(tree.root)) for folder in folders for path in folder.rglob("*.h"))
    assert len(headers) > 80
    if not pytestconfig.option.full:
        headers = random.Random(pytestconfig.option.sample_seed).sample(headers, 24)
    command = [sys.executable, Path(__file__).with_name("headers_probe.py"), tree.root, ",".join(headers), *arguments]
    environment = {**os.environ, **fake_tools, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    would = json.loads(done.stdout)
    assert would[""] == []
    compiled = {header: {path for path in made if path in reads} for header, made in would.items()}
    expected = {header: {path for path, read in reads.items() if header in read} for header in headers}
    # The manifest of a receipt holds the hashes of the folders that it is made from; these receipts hold attention.
    hashed = tuple(
        f"{folder}/" for folder in ("include", *(f"kernels/{n}" for n in ("attention", "backends", "runtime")))
    )
    manifests = {path for path in reads if path.endswith("/manifest.o")}
    assert len(manifests) == len(RECEIPTS)
    for header in headers:
        assert expected[header] <= compiled[header], header
        # SCons evaluates no #if, so an engine is made anew for the header of another instruction set as well.
        more = {path for path in compiled[header] - expected[header] if "/obj/engine/" not in path}
        assert more == (manifests if header.startswith(hashed) else set()), header
