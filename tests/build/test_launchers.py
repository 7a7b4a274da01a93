# SPDX-License-Identifier: MIT
"""launcher= with the real programs. Every hit, miss and job is read from their own statistics and logs.

A small library, or some units of one, built in two trees: what a tree's neighbour has compiled is not compiled again.
"""

from __future__ import annotations

import json
import os
import pwd
import re
import shutil
import socket
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.programs import need


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


@contextmanager
def served(command: list[str], port: int, environment: dict[str, str] | None = None) -> Iterator[None]:
    """The daemon `command`, from when it listens on `port` of this machine."""
    variables = {**os.environ, **(environment or {})}
    daemon = subprocess.Popen(command, env=variables, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 30
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            assert daemon.poll() is None, f"{command[0]} ended with {daemon.returncode}"
            assert time.monotonic() < deadline, f"{command[0]} does not listen on {port}"
            time.sleep(0.02)
        yield
    finally:
        daemon.terminate()
        daemon.wait(30)


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[str]:
    """HOST:PORT of a Redis that forgets everything at the end."""
    need("redis-server")
    port = free_port()
    command = ["redis-server", "--bind", "127.0.0.1", "--port", str(port), "--save", "", "--dir", str(tmp_path)]
    with served(command, port):
        yield f"127.0.0.1:{port}"


@dataclass
class Farm:
    """Two machines, both this one: what distcc needs to know, and the jobs that each has done."""

    environment: dict[str, str]
    logs: list[Path]

    def jobs(self) -> list[int]:
        return [len(re.findall(r"\bCOMPILE_OK\b", log.read_text())) for log in self.logs]


@pytest.fixture
def farm() -> Iterator[Farm]:
    need("distcc", "distccd")
    with ExitStack() as stack:
        # Not pytest's directory, which is closed to `nobody`: distccd does not work as root.
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tilekiln-distcc-")))
        place.chmod(0o755)
        user = ["--user", "nobody"] if os.getuid() == 0 else []
        ports, logs = [free_port(), free_port()], [place / "0/log", place / "1/log"]
        for port, log in zip(ports, logs, strict=True):
            log.parent.mkdir()
            if user:
                os.chown(log.parent, pwd.getpwnam("nobody").pw_uid, -1)
            command = ["distccd", "--daemon", "--no-detach", "--listen", "127.0.0.1", "--port", str(port)]
            command += ["--allow", "127.0.0.1", "--enable-tcp-insecure", *user, "--jobs", "2"]
            command += ["--log-level", "info", "--log-file", str(log)]
            stack.enter_context(served(command, port, {"TMPDIR": str(log.parent)}))
        (place / "client").mkdir()
        hosts = " ".join(f"127.0.0.1:{port}/1" for port in ports)  # one job each at a time
        # No fallback: a job that fails there fails here.
        yield Farm({"DISTCC_HOSTS": hosts, "DISTCC_FALLBACK": "0", "DISTCC_DIR": str(place / "client")}, logs)


@pytest.fixture
def trees(copy_sources, tmp_path):
    return copy_sources(tmp_path / "tree"), copy_sources(tmp_path / "elsewhere" / "another-tree")


def nothing_done(said) -> bool:
    return not any(said.actions(verb) for verb in ("compile", "join", "link", "write"))


def library(tree) -> str:
    return f"build/{tree.variant}/lib/libtilekiln_fp32_min.so"


def some_units(tree) -> list[str]:
    """Rows, table and manifest of a release build and host code of two operators: some ten units and no engine."""
    objects = f"build/{tree.variant}/obj"
    return [
        f"{objects}/rows",
        f"{objects}/fp32_min",
        *(f"{objects}/attention/fmha_fwd_{name}/host.o" for name in ("pagedkv", "splitkv")),
    ]


def objects(tree) -> dict[str, bytes]:
    return {path: (tree.root / path).read_bytes() for path in tree.files("build") if path.endswith(".o")}


@contextmanager
def environment(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> Iterator[None]:
    """Launchers get their settings through scons's own environment."""
    with monkeypatch.context() as patch:
        for name in list(os.environ):
            if name.startswith(("CCACHE_", "SCCACHE_", "DISTCC_")):
                patch.delenv(name)
        for name, value in variables.items():
            patch.setenv(name, value)
        yield


def ccache_counts() -> Counter[str]:
    said = subprocess.run(["ccache", "--print-stats"], capture_output=True, text=True, check=True).stdout
    return Counter({name: int(count) for name, count in (line.split("\t") for line in said.splitlines())})


@pytest.mark.day
@pytest.mark.turns(1)
def test_ccache(trees, small_build, tmp_path, monkeypatch):
    """A cold library, the same in another tree, no launcher again, and another variant, whose host code is the same."""
    need("ccache")
    first, second = trees
    with environment(monkeypatch, {"CCACHE_DIR": str(tmp_path / "ccache")}):
        compiled = len(first.built(*first.SMALL, "launcher=ccache", library(first)).actions("compile"))
        cold = ccache_counts()
        assert compiled > 20
        assert (cold["cache_miss"], cold["direct_cache_hit"] + cold["preprocessed_cache_hit"]) == (compiled, 0)
        assert len(second.built(*second.SMALL, "launcher=ccache", library(second)).actions("compile")) == compiled
        warm = ccache_counts() - cold
        assert (warm["cache_miss"], warm["direct_cache_hit"]) == (0, compiled)
        assert nothing_done(second.built(*second.SMALL, library(second)))
        assert nothing_done(second.built(*second.SMALL, "launcher=ccache", library(second)))
        assert not {name for name, count in (ccache_counts() - cold - warm).items() if count and "stamp" not in name}
        before, *part = ccache_counts(), *second.SMALL, "where=hdim_q=64"
        own = [
            what
            for what in second.built(*part, "launcher=ccache").actions("compile")
            if not what.startswith(("kernels/", "python/"))
        ]
        other = ccache_counts() - before
        assert (other["cache_miss"], other["direct_cache_hit"] > 5) == (len(own), True)  # rows, table, manifest
    expected = (small_build / library(first)).read_bytes()
    assert [(tree.root / library(tree)).read_bytes() for tree in trees] == [expected] * 2


@pytest.mark.day
def test_distcc(trees, farm, monkeypatch):
    """Every compile is a job of one of the daemons, and gives what it gives here."""
    first, second = trees
    receipt, units = "receipt=fp32_min", some_units(first)
    with environment(monkeypatch, farm.environment):
        compiled = first.built(receipt, "launcher=distcc", "-j2", *units).actions("compile")
    assert sum(farm.jobs()) == len(compiled) > 5
    assert min(farm.jobs()) >= 1
    second.built(receipt, *units)
    assert sum(farm.jobs()) == len(compiled)
    assert objects(first) == objects(second)


@pytest.mark.day
@pytest.mark.turns(0)
def test_ccache_distcc_and_redis(trees, farm, redis, tmp_path, monkeypatch):
    """Units compiled by a farm; then another machine, with nothing of its own, takes all of them from Redis."""
    need("ccache")
    first, second = trees
    receipt, units = "receipt=fp32_min", some_units(first)
    shared = {**farm.environment, "CCACHE_REMOTE_STORAGE": f"redis://{redis}"}
    launcher = "launcher=ccache distcc"
    with environment(monkeypatch, {**shared, "CCACHE_DIR": str(tmp_path / "one")}):
        compiled = len(first.built(receipt, launcher, "-j2", *units).actions("compile"))
        cold = ccache_counts()
    assert (cold["cache_miss"], cold["remote_storage_hit"]) == (compiled, 0)
    assert sum(farm.jobs()) == compiled > 5
    assert min(farm.jobs()) >= 1
    with environment(monkeypatch, {**shared, "CCACHE_DIR": str(tmp_path / "two")}):
        assert len(second.built(receipt, launcher, "-j2", *units).actions("compile")) == compiled
        warm = ccache_counts()
    assert (warm["cache_miss"], warm["direct_cache_hit"], warm["remote_storage_hit"]) == (0, compiled, compiled)
    assert sum(farm.jobs()) == compiled
    assert objects(first) == objects(second)


@contextmanager
def sccache_server(monkeypatch: pytest.MonkeyPatch, storage: dict[str, str]) -> Iterator[Callable]:
    """A server that the first compile starts; gives counts() -> (hits, misses)."""
    variables = {"SCCACHE_SERVER_PORT": str(free_port()), "SCCACHE_IDLE_TIMEOUT": "120", **storage}
    with environment(monkeypatch, variables):

        def counts() -> tuple[int, int]:
            command = ["sccache", "--show-stats", "--stats-format=json"]
            deadline = time.monotonic() + 30
            while True:
                stats = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)["stats"]
                hits, misses = (sum(stats[f"cache_{word}"]["counts"].values()) for word in ("hits", "misses"))
                # Objects are put away, and counted, after the compiler's exit.
                if hits + misses == stats["requests_executed"] and misses == stats["cache_writes"]:
                    break
                assert time.monotonic() < deadline, stats
                time.sleep(0.05)
            assert stats["cache_errors"]["counts"] == {}
            assert stats["not_cached"] == {}
            return hits, misses

        try:
            yield counts
        finally:
            subprocess.run(["sccache", "--stop-server"], capture_output=True, check=False)


@pytest.mark.needs("sccache")
@pytest.mark.parametrize("storage", ["directory", "redis"])
def test_sccache(trees, tmp_path, monkeypatch, storage, request):
    """One server finds another's entries, for a tree that lies elsewhere."""
    first, second = trees
    place = (
        {"SCCACHE_DIR": str(tmp_path / "sccache")}
        if storage == "directory"
        else {"SCCACHE_REDIS_ENDPOINT": f"redis://{request.getfixturevalue('redis')}"}
    )
    receipt, units = "receipt=fp32_min", some_units(first)
    with sccache_server(monkeypatch, place) as counts:
        compiled = len(first.built(receipt, "launcher=sccache", *units).actions("compile"))
        assert compiled > 5
        assert counts() == (0, compiled)
    with sccache_server(monkeypatch, place) as counts:
        assert len(second.built(receipt, "launcher=sccache", *units).actions("compile")) == compiled
        assert counts() == (compiled, 0)
        assert nothing_done(second.built(receipt, *units))
        assert counts() == (compiled, 0)
    assert objects(first) == objects(second)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("", []),
        ("ccache", ["ccache"]),
        ("nice -n 5", ["nice", "-n", "5"]),
        ("ccache distcc", ["env", "CCACHE_PREFIX=distcc", "ccache"]),
    ],
)
def test_words(monkeypatch, value, words):
    from build_support import launchers

    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.delenv("CCACHE_PREFIX", raising=False)
    assert launchers.words(value) == words


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("ccache no-farm", "launcher=no-farm is not on PATH. Install it or leave launcher= out."),
        ("distcc ccache", "launcher=distcc ccache: ccache looks into the command behind it, so it goes first."),
        (
            "sccache distcc",
            "launcher=sccache distcc: sccache runs compilers itself, also on other machines (sccache-dist). "
            "Write launcher=sccache.",
        ),
        (
            "ccache distcc",
            "launcher=ccache distcc and CCACHE_PREFIX=icecc say different things. "
            "Unset CCACHE_PREFIX, or write launcher=ccache.",
        ),
        ("'ccache", "launcher='ccache: No closing quotation. Close the quote."),
    ],
)
def test_wrong_words(monkeypatch, value, message):
    from build_support import launchers
    from build_support.options import UsageError

    monkeypatch.setattr(shutil, "which", lambda name: None if name == "no-farm" else f"/usr/bin/{name}")
    monkeypatch.setenv("CCACHE_PREFIX", "icecc")
    with pytest.raises(UsageError, match=f"^{re.escape(message)}$"):
        launchers.words(value)
