# SPDX-License-Identifier: MIT
"""A build that is cut off leaves nothing half-written that a later build would trust, and says what was wrong.

Ctrl-C and kill -9 in the middle of a compile are in test_rebuild.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time

import pytest


def library(tree):
    return tree.root / f"build/{tree.variant}/lib/libtilekiln_fp32_min.so"


def make_stale(tree):
    """Takes away what a build makes at its end, and some objects: there is to compile, join, link and write."""
    place = tree.root / f"build/{tree.variant}"
    for path in [library(tree), *place.glob("obj/fp32_min/*.o"), *place.glob("obj/engine/*.o")]:
        path.unlink()
    tree.append("kernels/attention/fmha_fwd_pagedkv/host.cpp", "// changed\n")


@pytest.fixture
def small_disk(built_tree):
    """The build directory on a file system of its own: function(options) remounts it."""
    build = built_tree.root / "build"
    aside = built_tree.root / "aside"
    build.rename(aside)
    build.mkdir()

    def mount(*options):
        return subprocess.run(["mount", *options, str(build)], capture_output=True, check=False).returncode == 0

    if os.geteuid() != 0 or not mount("-t", "tmpfs", "-o", "size=200m", "tmpfs"):
        pytest.skip("only root can mount a small file system")
    try:
        subprocess.run(["cp", "-a", f"{aside}/.", str(build)], check=True)
        yield lambda options: mount("-o", f"remount,{options}")
    finally:
        subprocess.run(["umount", "-l", str(build)], check=True)


@pytest.mark.parametrize("spare_kb", [8, 200, 600])
@pytest.mark.day
def test_disk_full(built_tree, small_disk, finished, spare_kb):
    """Little, some and nearly enough room: it ends in the generator, a compiler or the linker, and never lies."""
    place = built_tree.root / "build"
    make_stale(built_tree)
    free = os.statvfs(place)
    used = (free.f_blocks - free.f_bfree) * free.f_frsize
    assert small_disk(f"size={used // 1024 + spare_kb}k")
    said = built_tree.scons(*built_tree.SMALL)
    assert said.code != 0
    assert "No space left on device" in said.out + said.error
    assert "Traceback" not in said.out + said.error
    assert not library(built_tree).exists() or library(built_tree).stat().st_size > 1e6
    assert small_disk("size=200m")
    finished()


@pytest.mark.day
def test_read_only_output(built_tree, small_disk, finished):
    make_stale(built_tree)
    assert small_disk("ro")
    before = built_tree.files("build")
    said = built_tree.scons(*built_tree.SMALL)
    assert said.code == 2
    assert said.error == (
        f"tilekiln: build/{built_tree.variant}/lock cannot be written: Read-only file system. "
        "Build in a tree of yours, as of git worktree add.\n"
    )
    assert built_tree.files("build") == before
    assert small_disk("rw")
    finished()


@pytest.mark.day
def test_files_that_may_not_grow(built_tree, finished):
    """A limit of file sizes below that of the library: the linker is stopped by SIGXFSZ or by an error."""
    make_stale(built_tree)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, before[1]))
    try:
        said = built_tree.scons(*built_tree.SMALL)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert said.code != 0
    assert "failed: " in said.out
    assert not library(built_tree).exists()
    finished()


def products(tree):
    place = tree.root / f"build/{tree.variant}"
    return {
        str(path.relative_to(place)): path.read_bytes() for path in place.rglob("*") if path.suffix in (".o", ".so")
    }


@pytest.fixture(scope="module")
def undisturbed(copy_build):
    """Products of an undisturbed build of the stale tree."""
    tree = copy_build()
    make_stale(tree)
    tree.built(*tree.SMALL)
    return products(tree)


@pytest.fixture
def finished(built_tree, undisturbed):
    """The next build ends well, with the bytes of one that was never disturbed, and nothing half-written about."""

    def check():
        built_tree.built(*built_tree.SMALL)
        found = products(built_tree)
        assert [path for path in undisturbed if found.get(path) != undisturbed[path]] == []
        assert found.keys() == undisturbed.keys()
        names = [path.name for path in (built_tree.root / "build").rglob("*")]
        assert [name for name in names if ".new" in name or name.endswith(".tmp")] == []

    return check


def test_a_killed_build_is_swept(built_tree, script, tmp_path):
    """Leftovers of kill -9 beside the targets go with the next build; a waiting lock does not outlive it."""
    launcher = script("hangs", [f"touch {tmp_path}/started", "exec sleep 100"])
    make_stale(built_tree)
    command = [sys.executable, "-m", "SCons", "-Q", *built_tree.SMALL, f"launcher={launcher}"]
    build = subprocess.Popen(command, cwd=built_tree.root, stdout=subprocess.DEVNULL, start_new_session=True)
    wait_for(tmp_path / "started", build)
    half = built_tree.root / f"build/{built_tree.variant}/obj/attention/fmha_fwd_pagedkv/host.o.{build.pid}.new"
    half.write_bytes(b"half")
    os.killpg(build.pid, signal.SIGKILL)
    build.wait()
    said = built_tree.built(*built_tree.SMALL)
    assert "waiting" not in said.out
    assert not half.exists()


def wait_for(path, build):
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline
        assert build.poll() is None
        time.sleep(0.02)


@pytest.mark.day
def test_two_builds_at_once(built_tree, script, tmp_path, finished):
    """The second waits for the first, says so, and finds nothing left to do."""
    launcher = script(
        "slow", [f"touch {tmp_path}/started", f"while [ ! -e {tmp_path}/go ]; do sleep 0.05; done", 'exec "$@"']
    )
    make_stale(built_tree)
    command = [sys.executable, "-m", "SCons", "-Q", *built_tree.SMALL]
    first = subprocess.Popen([*command, f"launcher={launcher}"], cwd=built_tree.root, stdout=subprocess.PIPE, text=True)
    wait_for(tmp_path / "started", first)
    second = subprocess.Popen(command, cwd=built_tree.root, stdout=subprocess.PIPE, text=True)
    assert second.stdout.readline() == (
        f"waiting: another build is at work in build/{built_tree.variant} (process {first.pid})\n"
    )
    (tmp_path / "go").touch()
    said, also = first.communicate()[0], second.communicate()[0]
    assert (first.returncode, second.returncode) == (0, 0)
    assert "compile kernels/attention/fmha_fwd_pagedkv/host.cpp" in said
    assert also.splitlines()[-1] == "scons: `default' is up to date."
    finished()
