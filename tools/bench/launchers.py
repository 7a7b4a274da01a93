# SPDX-License-Identifier: MIT
"""launchers: a library built cold and warm with each compiler cache and a farm of two, in CPU seconds and ratios.

CPU time is user + system of scons, its children and the sccache server. Of a farm it is that of the machine that
builds; the daemons' is not counted. Warm is the same sources in another directory with nothing built. Launchers that
are not installed are left out, and said.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pathlib
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping

ROOT = pathlib.Path(__file__).resolve().parents[2]
PARTS = ("SConstruct", "SConscript", "VERSION", "build_support", "codegen", "include", "kernels", "receipts")
"""Not python/: the extension compiles and links at once, which no launcher sees."""


def copy(to: pathlib.Path) -> pathlib.Path:
    to.mkdir()
    for name in PARTS:
        source = ROOT / name
        (shutil.copytree if source.is_dir() else shutil.copy2)(source, to / name)
    (to / "tests").mkdir()
    (to / "tests/programs.yaml").write_text("programs: []\n")
    return to


def cpu() -> float:
    """CPU seconds of every child that has ended, and of theirs."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def build(tree: pathlib.Path, environment: Mapping[str, str], *arguments: str) -> None:
    kept = {name: value for name, value in os.environ.items() if name != "SCONSFLAGS"}
    variables = {**kept, **environment, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": ""}
    command = [sys.executable, "-m", "SCons", "-Q", *arguments]
    done = subprocess.run(command, cwd=tree, env=variables, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"scons {' '.join(arguments)} failed:\n{done.stdout}{done.stderr}")


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


@contextlib.contextmanager
def served(command: list[str], port: int, environment: Mapping[str, str]) -> Iterator[None]:
    variables = {**os.environ, **environment}
    daemon = subprocess.Popen(command, env=variables, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 30
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            if daemon.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"{' '.join(command)} does not listen on port {port}")
            time.sleep(0.02)
        yield
    finally:
        daemon.terminate()
        daemon.wait()


@contextlib.contextmanager
def nothing(place: pathlib.Path) -> Iterator[dict[str, str]]:
    yield {}


@contextlib.contextmanager
def ccache(place: pathlib.Path) -> Iterator[dict[str, str]]:
    yield {"CCACHE_DIR": str(place / "ccache")}


@contextlib.contextmanager
def sccache(place: pathlib.Path) -> Iterator[dict[str, str]]:
    port = free_port()
    settings = {"SCCACHE_DIR": str(place / "sccache"), "SCCACHE_SERVER_PORT": str(port)}
    daemon = {**settings, "SCCACHE_START_SERVER": "1", "SCCACHE_NO_DAEMON": "1"}
    with served(["sccache"], port, daemon):
        yield settings
        subprocess.run(["sccache", "--stop-server"], env={**os.environ, **settings}, capture_output=True, check=False)


@contextlib.contextmanager
def distcc(place: pathlib.Path) -> Iterator[dict[str, str]]:
    """Two daemons on this machine: what is left to do for the one that builds, not how fast a farm is."""
    with contextlib.ExitStack() as stack:
        # distccd does not work as root, and `nobody` must be able to write there.
        scratch = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tilekiln-distcc-")))
        scratch.chmod(0o777)
        (scratch / "client").mkdir()
        user = ["--user", "nobody"] if os.getuid() == 0 else []
        ports = [free_port(), free_port()]
        for port in ports:
            command = ["distccd", "--daemon", "--no-detach", "--listen", "127.0.0.1", "--port", str(port), *user]
            command += ["--allow", "127.0.0.1", "--enable-tcp-insecure", "--log-level", "critical"]
            stack.enter_context(served([*command, "--log-file", "/dev/null"], port, {"TMPDIR": str(scratch)}))
        hosts = " ".join(f"127.0.0.1:{port}" for port in ports)
        yield {"DISTCC_HOSTS": hosts, "DISTCC_FALLBACK": "0", "DISTCC_DIR": str(scratch / "client")}


@contextlib.contextmanager
def ccache_distcc(place: pathlib.Path) -> Iterator[dict[str, str]]:
    with ccache(place) as settings, distcc(place) as more:
        yield {**settings, **more}


CASES = {
    "": nothing,
    "cache=": nothing,
    "ccache": ccache,
    "sccache": sccache,
    "distcc": distcc,
    "ccache distcc": ccache_distcc,
}


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="tools/bench launchers", description=__doc__)
    parser.add_argument("receipt", nargs="?", default="fp32_min")
    receipt = parser.parse_args(argv).receipt
    print(f"receipt={receipt}\n{'':<24} {'cold':>8} {'warm':>8} s CPU {'cold':>7} {'warm':>7} of plain", flush=True)
    plain = 0.0
    for name, settings in CASES.items():
        program = "distccd" if "distcc" in name else name
        if name not in ("", "cache=") and shutil.which(program) is None:
            print(f"launcher={name}: {program} is not installed")
            continue
        with tempfile.TemporaryDirectory() as directory:
            place = pathlib.Path(directory)
            words = [f"cache={place / 'cache'}"] if name == "cache=" else [f"launcher={name}"] if name else []
            spent = []
            for tree in ("first", "second"):
                start = cpu()
                copied = copy(place / tree)
                with settings(place) as environment:
                    build(copied, environment, f"receipt={receipt}", *words)
                spent.append(cpu() - start)
            plain = plain or spent[0]
            label = f"launcher={name}" if name not in ("", "cache=") else name + "DIR" if name else "nothing"
            again = f"{spent[1]:8.2f}" if name not in ("", "distcc") else f"{'-':>8}"
            ratio = f"{spent[1] / plain:7.3f}" if name not in ("", "distcc") else f"{'-':>7}"
            print(f"{label:<24} {spent[0]:8.2f} {again}       {spent[0] / plain:7.2f} {ratio}", flush=True)
    return 0
