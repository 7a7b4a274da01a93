# SPDX-License-Identifier: MIT
"""The wheels: what is in them, that their tags are honest, and that a clean environment runs them."""

from __future__ import annotations

import csv
import dataclasses
import hashlib
import importlib.metadata
import io
import json
import os
import re
import subprocess
import sys
import zipfile
from base64 import urlsafe_b64encode
from pathlib import Path

import pytest

from build_support import extension_python, hf_kernels, platform_tag, wheels
from tests.conftest import shared_objects

ROOT = Path(__file__).resolve().parents[2]
VERSION = (ROOT / "VERSION").read_text().strip()
LAUNCHER = " ".join(shared_objects())
RECEIPTS = ("fp32_min", "fp8")
"""Small, built for other tests too, and neither can do what the other does."""


@pytest.fixture(scope="session")
def packed(scons, build_library) -> Path:
    """The directory of the variant in which two receipts are packed, as wheels and for Hugging Face."""
    libraries = [build_library(receipt) for receipt in RECEIPTS]
    scons(f"receipt={','.join(RECEIPTS)}", "wheel", "hf-kernels")
    return libraries[0].parents[1]


def wheel_of(packed: Path, name: str) -> Path:
    every = (packed / "wheel").glob(f"{name}-{VERSION}-*.whl")
    [found] = [path for path in every if not re.search(r"-cp\d+t-", path.name)]  # those for Pythons without a GIL
    return found


NAMES = ("tilekiln_python", *(f"tilekiln_{receipt}" for receipt in RECEIPTS))


def test_every_file_of_the_package_is_in_the_wheel():
    words = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "python/tilekiln"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    listed = {path.removeprefix("python/") for path in done.stdout.split("\0") if path and (ROOT / path).is_file()}
    assert wheels.package_files(str(ROOT)).keys() == listed
    assert "tilekiln/_generated/operators.json" in listed


@pytest.mark.parametrize("name", NAMES)
def test_record_and_metadata(packed, name):
    path = wheel_of(packed, name)
    with zipfile.ZipFile(path) as archive:
        files = {entry.filename: archive.read(entry) for entry in archive.infolist()}
        assert {entry.date_time for entry in archive.infolist()} == {wheels.DATE}
    information = f"{name}-{VERSION}.dist-info"
    recorded = {row[0]: row[1:] for row in csv.reader(io.StringIO(files[f"{information}/RECORD"].decode()))}
    assert recorded.keys() == files.keys()
    for file, data in files.items():
        if not file.endswith("/RECORD"):
            digest = urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            assert recorded[file] == [f"sha256={digest}", str(len(data))]
    metadata = importlib.metadata.PathDistribution(zipfile.Path(path, f"{information}/")).metadata
    assert (metadata["Name"], metadata["Version"]) == (name.replace("_", "-"), VERSION)
    tag = path.name.removesuffix(".whl").removeprefix(f"{name}-{VERSION}-")
    assert f"Tag: {tag}\n" in files[f"{information}/WHEEL"].decode()
    if name == "tilekiln_python":
        assert tag.startswith("cp311-abi3-")
        assert metadata.get_all("Requires-Dist") == [
            "numpy>=2",
            "ml-dtypes",
            'rich; extra == "demo"',
            'packaging; extra == "install"',
        ]
        sources = {str(file.relative_to(ROOT / "python")) for file in (ROOT / "python/tilekiln").rglob("*.py")}
        assert sources <= files.keys()
        assert "tilekiln/_binding.abi3.so" in files
    else:
        assert tag.startswith("py3-none-")
        assert metadata.get_all("Requires-Dist") == [f"tilekiln-python=={VERSION}"]
        receipt = name.removeprefix("tilekiln_")
        assert files[f"{name}/libtilekiln_{receipt}.so"] == (packed / f"lib/libtilekiln_{receipt}.so").read_bytes()


@pytest.mark.needs("auditwheel")
@pytest.mark.parametrize("name", NAMES)
def test_the_tag_is_what_auditwheel_finds(packed, name):
    path = wheel_of(packed, name)
    command = [sys.executable, "-m", "auditwheel", "show", str(path)]
    said = " ".join(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())
    found = re.search(r'is consistent with the following platform tag: "(\w+)"', said)
    assert found, said
    assert path.name.endswith(f"-{found[1]}.whl")
    assert found[1].startswith("manylinux_2_")


@pytest.mark.needs("auditwheel")
def test_the_table_of_symbol_versions_is_that_of_auditwheel():
    import auditwheel

    policies = json.loads((Path(auditwheel.__file__).parent / "policy/manylinux-policy.json").read_text())
    for policy in policies:
        if policy["name"].startswith("manylinux_"):
            least = int(policy["name"].rpartition("_")[2])
            row = [row for row in platform_tag.COMPANIONS if row[0] <= least][-1]
            for column, word in enumerate(("GLIBCXX", "CXXABI", "GCC"), 1):
                versions = [v for v in policy["symbol_versions"]["x86_64"][word] if v[0].isdigit()]
                parts = [[*map(int, version.split(".")), 0] for version in versions]
                assert row[column] == max(part[0 if word == "GCC" else 2] for part in parts), (policy["name"], word)


def test_tags_of_other_binaries(tmp_path):
    """Newer than all that is known, or in need of a library that not every machine has: no manylinux."""
    (tmp_path / "c.c").write_text("int f(void) { return 1; }\n")
    (tmp_path / "mine.c").write_text("int f(void); int g(void) { return f(); }\n")
    machine = os.uname().machine
    for command in (
        ["g++", "-x", "c", "-shared", "-fPIC", "-o", "libmine.so", "c.c"],
        ["g++", "-x", "c", "-shared", "-fPIC", "-o", "user.so", "mine.c", "-x", "none", "./libmine.so"],
    ):
        subprocess.run(command, cwd=tmp_path, check=True)
    assert platform_tag.platform_tag([str(tmp_path / "libmine.so")]) == f"manylinux_2_5_{machine}"
    assert platform_tag.platform_tag([str(tmp_path / "user.so")]) == f"linux_{machine}"
    assert platform_tag._glibc("GLIBCXX_3.4.30") == 35
    assert platform_tag._glibc("GLIBCXX_3.4.99") is None
    assert platform_tag._glibc("SOMETHING_1") is None


def test_a_plugin_comes_with_the_receipt_of_its_name(packed):
    """vLLM looks for its plugins among entry points, and libraries are found by one too."""
    files = [str(packed / f"lib/libtilekiln_fp8.{suffix}") for suffix in ("so", "json")]
    read = importlib.metadata.EntryPoints._from_text_for  # type: ignore[attr-defined]
    found = read(wheels.kernels(str(ROOT), VERSION, "vllm", *files).entry_points, None)
    assert {(one.group, one.value) for one in found} == {
        ("tilekiln.libraries", "tilekiln_vllm:library"),
        ("vllm.general_plugins", "tilekiln.compat.vllm:register"),
        ("vllm.platform_plugins", "tilekiln.compat.vllm:platform"),
    }
    assert wheels.kernels(str(ROOT), VERSION, "fp8", *files).entry_points.count("[") == 1


def test_same_bytes_and_older_ones_go(packed, tmp_path, monkeypatch):
    files = [str(packed / f"lib/libtilekiln_fp8.{suffix}") for suffix in ("so", "json")]
    wheel = wheels.kernels(str(ROOT), VERSION, "fp8", *files)
    older = tmp_path / "tilekiln_fp8-0.0.1-py3-none-any.whl"
    other = tmp_path / "tilekiln_fp8_more-0.0.1-py3-none-any.whl"
    of_one_python = tmp_path / "tilekiln_fp8-0.0.1-cp313-cp313t-linux_x86_64.whl"
    older.touch()
    other.touch()
    of_one_python.touch()
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    path, written = wheels.write(wheel, str(tmp_path))
    assert written
    assert Path(path).read_bytes() == wheel_of(packed, "tilekiln_fp8").read_bytes()
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted([Path(path).name, other.name, of_one_python.name])
    before = Path(path).stat()
    assert wheels.write(wheel, str(tmp_path)) == (path, False)
    assert Path(path).stat().st_mtime_ns == before.st_mtime_ns


def repacked(name: str, directory: Path) -> None:
    """A wheel of an installed package, so that pip finds what ours need without a network."""
    installed = importlib.metadata.distribution(name)
    tag = next(line.partition(": ")[2] for line in installed.read_text("WHEEL").splitlines() if line.startswith("Tag:"))
    stem = f"{name.replace('-', '_')}-{installed.version}"
    with zipfile.ZipFile(directory / f"{stem}-{tag}.whl", "w", zipfile.ZIP_STORED) as archive:
        for file in installed.files:
            if ".." not in file.parts and file.name not in ("direct_url.json", "INSTALLER") and file.suffix != ".pyc":
                archive.write(file.locate(), str(file))


@pytest.fixture(scope="session")
def clean_python(packed, tmp_path_factory):
    """An environment of its own in which `pip install` put our wheels and what they ask for."""
    place = tmp_path_factory.mktemp("clean")
    for name in ("numpy", "ml-dtypes", "rich", "pygments", "markdown-it-py", "mdurl"):
        repacked(name, place)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", place / "venv"], check=True)
    python = place / "venv/bin/python"
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q", "--no-index"]
    command += ["--disable-pip-version-check", "--find-links", str(place), "--find-links", str(packed / "wheel")]
    asked = ["tilekiln-python[demo]", *(name.replace("_", "-") for name in NAMES[1:])]
    done = subprocess.run([*command, *asked], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return python


def start(python: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Outside the tree, without any of its environment."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TILEKILN", "PYTHON"))}
    command = [str(python), *arguments]
    return subprocess.run(command, cwd=python.parent, env=kept, capture_output=True, text=True, check=False)


def run(python: Path, *arguments: str) -> str:
    done = start(python, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.day
def test_a_clean_environment_runs_the_demo(clean_python):
    said = run(clean_python, "-m", "tilekiln.cli.demo", *RECEIPTS)
    for receipt in RECEIPTS:
        assert f"{receipt}: " in said


@pytest.mark.day
def test_the_package_brings_its_command(clean_python):
    command = str(clean_python.with_name("tilekiln"))
    assert "fp32_min" in run(clean_python, command, "info")
    words = ("fmha_fwd", "hdim_q=128", "hdim_v=128", "seqlen_q=5", "seqlen_k=7", "nhead_q=1", "nhead_k=1")
    said = run(clean_python, command, "bench", *words, "--repeat", "1", "--receipt", "fp32_min")
    assert "; right, " in said


SIDE_BY_SIDE = """
import numpy as np, ml_dtypes, tilekiln as tk
libraries = {library.receipt: library for library in tk.libraries()}
print(*sorted(libraries), tk.__version__)
ones = np.ones((1, 8, 1, 128), np.float32)
eights = np.ones((1, 8, 1, 64), ml_dtypes.float8_e4m3fn)
streams = [tk.Stream(), tk.Stream()]
outs = [np.zeros_like(ones), np.zeros(eights.shape, ml_dtypes.bfloat16)]
libraries["fp32_min"].fmha_fwd(ones, ones, ones, out=outs[0], stream=streams[0])
libraries["fp8"].fmha_fwd(eights, eights, eights, out=outs[1], stream=streams[1])
for stream in streams:
    stream.synchronize()
print(*(float(out.astype(np.float32).sum()) for out in outs))
print(*(float(tk.attention(a, a, a).astype(np.float32).sum()) for a in (ones, eights)))
tk.load("flash")
"""


@pytest.mark.day
def test_two_receipts_in_one_process(clean_python):
    done = start(clean_python, "-c", SIDE_BY_SIDE)
    assert done.stdout.splitlines() == [f"fp32_min fp8 {VERSION}", "1024.0 512.0", "1024.0 512.0"], done.stderr
    assert done.stderr.splitlines()[-1] == (
        f"  build it: tools/dev scons receipt=flash wheel, in a tree of Tilekiln {VERSION}; then "
        "pip install --no-index --find-links WHEELS tilekiln-flash"
    )


JIT = """
import sys, numpy as np, tilekiln as tk
library = tk.jit("softmax dtype=fp32")
x = np.arange(6, dtype=np.float32).reshape(2, 3)
print(round(float(library.softmax(x).sum()), 5), library.receipt)
"""


@pytest.mark.day
def test_jit_builds_from_the_wheel_of_the_sources(packed, clean_python, tmp_path):
    """Without it, the error names it; with it kernels are built, once; without a compiler, that is what is said."""
    from tilekiln.api import _jit_key  # its binding is built now

    assert _jit_key.SOURCES == wheels.SOURCES
    told = (
        f"import os; os.environ.update(TILEKILN_JIT={str(tmp_path / 'store')!r}, TILEKILN_JIT_OPTIONS={LAUNCHER!r})\n"
    )
    done = start(clean_python, "-c", told + JIT)
    assert f"pip install --no-index --find-links WHEELS tilekiln-sources=={VERSION}" in done.stderr.splitlines()[-1]
    place = tmp_path / "needs"
    place.mkdir()
    for name in ("scons", "jinja2", "markupsafe", "pyyaml", "msgspec"):
        repacked(name, place)
    command = [sys.executable, "-m", "pip", "--python", str(clean_python), "install", "-q", "--no-index"]
    command += ["--disable-pip-version-check", "--find-links", str(place), "--find-links", str(packed / "wheel")]
    subprocess.run([*command, "tilekiln-sources"], check=True)
    nowhere = "os.environ['PATH'] = os.environ['CXX'] = ''\n"
    done = start(clean_python, "-c", told + nowhere + JIT)
    assert "RuntimeError: the kernel could not be built" in done.stderr
    assert "Install g++ >= 12 or clang++ >= 16" in done.stderr
    assert run(clean_python, "-c", told + JIT) == "2.0 norm_default\n"
    # Found by the next process, with nothing left to run a build with.
    assert run(clean_python, "-c", told + "import subprocess; subprocess.Popen = None\n" + JIT) == "2.0 norm_default\n"
    installed = next(clean_python.parents[1].glob("lib/*/site-packages/tilekiln_sources/tree"))
    assert not (installed / "build").exists()  # it may not be ours to write


def test_sanitized_wheels_are_refused(tree):
    said = tree.scons("receipt=fp32_min", "mode=sanitize", "wheel")
    assert (said.code, said.error) == (
        2,
        "tilekiln: target wheel with mode=sanitize: a plain Python cannot load a sanitized library. "
        "Use mode=release.\n",
    )


@pytest.mark.day
def test_hf_layout(packed, clean_python):
    """The layout that `kernels` reads, file by file, and that its module works by itself."""
    repository = packed / "hf-kernels/tilekiln-fp32-min"
    [variant] = (repository / "build").iterdir()
    machine = os.uname().machine
    assert re.fullmatch(rf"torch-stable-abi2\d+-cpu-{machine}-linux", variant.name)
    metadata = json.loads((variant / "metadata.json").read_text())
    assert re.fullmatch(r"tilekiln_fp32_min_cpu_[0-9a-f]{12}", metadata["id"])
    assert (metadata["name"], metadata["backend"], metadata["python-depends"]) == (repository.name, {"type": "cpu"}, [])
    files = {str(path.relative_to(variant)) for path in variant.rglob("*") if path.is_file()}
    assert files == {*metadata["digest"]["files"], "metadata.json"}
    # Import as kernels does it, under a name of its own; tilekiln is installed too, and the one that came along is
    # taken.
    code = (
        "import importlib.util, sys, numpy as np\n"
        f"spec = importlib.util.spec_from_file_location({metadata['id']!r}, {str(variant / '__init__.py')!r})\n"
        "module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(module)\n"
        "ones = np.ones((1, 8, 1, 128), np.float32)\n"
        "print(module.library.receipt, float(module.attention(ones, ones, ones).sum()))\n"
        "import tilekiln\n"
        "print(tilekiln.__file__)\n"
    )
    assert run(clean_python, "-c", code).splitlines() == ["fp32_min 1024.0", str(variant / "tilekiln/__init__.py")]


@pytest.mark.torch
def test_hf_module_has_the_functions_of_flash_attn(packed):
    [variant] = (packed / "hf-kernels/tilekiln-fp32-min/build").iterdir()
    code = (
        "import importlib.util, sys, torch\n"
        f"spec = importlib.util.spec_from_file_location('a_kernel', {str(variant / '__init__.py')!r})\n"
        "module = sys.modules['a_kernel'] = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(module)\n"
        "print(hasattr(module, '__no_such'), hasattr(module, 'no_such'), 'tilekiln.compat.flash_attn' in sys.modules)\n"
        "ones = torch.ones(1, 8, 1, 128)\n"
        "print(module.attention(ones, ones, ones).sum().item(), module.flash_attn_varlen_func.__name__)\n"
    )
    said = run(Path(sys.executable), "-P", "-c", code)
    assert said.splitlines() == ["False False True", "1024.0 flash_attn_varlen_func"]


def test_hf_torch_is_the_one_we_test_with():
    text = (ROOT / "tools/environment.py").read_text()
    assert f'TORCH = "torch=={hf_kernels.TORCH[0]}.{hf_kernels.TORCH[1]}.' in text


def test_the_python_of_the_extension(tmp_path):
    """python=: what is none is refused; this one's is of the stable ABI."""
    old = tmp_path / "old"
    answer = (
        '{"version": "3.10.2 (x)", "number": [3, 10], "suffix": "", "include": "", "numpy": null, "free_threaded": 0}'
    )
    old.write_text(f"#!/bin/sh\necho '{answer}'\n")
    old.chmod(0o755)
    for program, said in (
        ("/nowhere/python", "python=/nowhere/python: must be the program of a Python >= 3.11: [Errno 2]"),
        ("/bin/true", "python=/bin/true: must be the program of a Python >= 3.11: "),
        (str(old), f"python={old}: is Python 3.10.2, must be 3.11 or newer"),
    ):
        command = [sys.executable, "-m", "SCons", "-Q", "receipt=fp32_min", "-n", f"python={program}"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert said in done.stderr
    assert extension_python.of(sys.executable) == extension_python.this()
    assert extension_python.this().in_wheel == ("cp311-abi3", ".abi3.so")
    one = dataclasses.replace(extension_python.this(), number=[3, 14], suffix=".cpython-314t.so", free_threaded=True)
    assert (one.in_wheel, one.macros) == (("cp314-cp314t", ".cpython-314t.so"), [])
