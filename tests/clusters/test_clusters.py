# SPDX-License-Identifier: MIT
"""The page on clusters: an installation's module, and both jobs by a Slurm and a Dask of this machine."""

from __future__ import annotations

import getpass
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.build.test_launchers import free_port
from tests.clients.conftest import overlay  # noqa: F401
from tests.conftest import ROOT, Scons

PAGE = ROOT / "docs/how-to/clusters.md"
ATTENTION = """
import numpy as np, tilekiln as tk
ones = np.ones((1, 8, 2, 64), np.float32)
print(tk.load("flash").path, float(tk.attention(ones, ones, ones).sum()), tk.load("flash").num_threads)
"""
MODULE = 'module() { eval "$(modulecmd bash "$@")"; }\n'  # as a login shell has it
CONFIGURATION = """
ClusterName=here
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
SlurmctldPort={control}
SlurmdPort={node}
AuthInfo=socket={place}/munge.socket
StateSaveLocation={place}/state
SlurmdSpoolDir={place}/spool
SlurmctldPidFile={place}/control.pid
SlurmdPidFile={place}/node.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobAcctGatherType=jobacct_gather/none
NodeName={host} NodeAddr=127.0.0.1 CPUs={cores} State=UNKNOWN
PartitionName=main Nodes={host} Default=YES State=UP
"""


@contextmanager
def daemon(*command: str | Path, log: Path, **environment: str) -> Iterator[None]:
    with log.open("w") as file:
        started = subprocess.Popen(command, env={**os.environ, **environment}, stdout=file, stderr=subprocess.STDOUT)
    try:
        yield
    finally:
        started.terminate()
        started.wait(30)


@pytest.fixture
def slurm(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Environment in which sbatch finds a cluster that is this machine."""
    place, host = tmp_path / "slurm", socket.gethostname().partition(".")[0]
    (place / "state").mkdir(parents=True)
    (place / "spool").mkdir()
    (place / "munge.key").write_bytes(secrets.token_bytes(128))
    (place / "munge.key").chmod(0o400)
    cores = str(os.cpu_count())
    ports = {"control": free_port(), "node": free_port()}
    text = CONFIGURATION.format(host=host, user=getpass.getuser(), cores=cores, place=place, **ports)
    (place / "slurm.conf").write_text(text)
    own = {"SLURM_CONF": str(place / "slurm.conf")}
    with ExitStack() as stack:
        files = [f"--{what}-file={place}/munge.{what}" for what in ("key", "pid", "log", "seed")]
        munge = ["munged", "--foreground", "--force", f"--socket={place}/munge.socket", *files]
        stack.enter_context(daemon(*munge, log=place / "munge.out"))
        stack.enter_context(daemon("slurmctld", "-D", log=place / "control.out", **own))
        stack.enter_context(daemon("slurmd", "-D", log=place / "node.out", **own))
        deadline = time.monotonic() + 60
        while (
            "idle"
            not in subprocess.run(
                ["sinfo", "-h"], env={**os.environ, **own}, capture_output=True, text=True, check=False
            ).stdout
        ):
            assert time.monotonic() < deadline, "".join(path.read_text() for path in place.glob("*.out"))
            time.sleep(0.5)
        yield own


@pytest.fixture
def modules(scons: Scons, tmp_path: Path) -> str:
    """The folder of the modules of an installation, which has moved to a path with a blank."""
    scons("receipt=flash", "install", f"prefix={tmp_path / 'prefix'}")
    return str(Path(shutil.move(tmp_path / "prefix", tmp_path / "shared files"), "share/modulefiles"))


@pytest.mark.needs("modulecmd")
@pytest.mark.day
def test_the_module(modules: str) -> None:
    script = f"{MODULE}module load tilekiln; module list; env; module unload tilekiln; echo then $TILEKILN_PATH."
    environment = {"PATH": os.environ["PATH"], "MODULEPATH": modules, "CPATH": "/mine"}
    said = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, check=True)
    prefix = modules.removesuffix("/share/modulefiles")
    for line in (f"TILEKILN_PATH={prefix}/lib", f"CPATH={prefix}/include:/mine", f"CMAKE_PREFIX_PATH={prefix}"):
        assert line in said.stdout.splitlines()
    assert said.stdout.endswith("then .\n")
    assert f"tilekiln/{(ROOT / 'VERSION').read_text().strip()}" in said.stderr


@pytest.mark.needs("slurmctld", "slurmd", "munged", "modulecmd")
@pytest.mark.day
@pytest.mark.turns(1)
def test_its_jobs(
    modules: str,
    slurm: dict[str, str],
    binding: Path,
    overlay: Callable[[str], Path],  # noqa: F811
    tmp_path: Path,
) -> None:
    (tmp_path / "attention.py").write_text(ATTENTION)
    (tmp_path / "decode.txt").write_text("fmha_fwd seqlen_q=12,14,16 seqlen_k=64 nhead_q=2 nhead_k=2\n")
    jobs = re.findall(r"^```bash\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    (tmp_path / "login").write_text(MODULE)
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("TILEKILN_")},
        **slurm,
        "BASH_ENV": str(tmp_path / "login"),
        "MODULEPATH": modules,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join([str(overlay("dask")), str(ROOT / "python")]),
    }
    said = []
    for number, job in enumerate(jobs):
        (tmp_path / f"{number}.sh").write_text(job)
        done = subprocess.run(
            ["sbatch", "--wait", f"{number}.sh"], cwd=tmp_path, env=environment, capture_output=True, text=True,
            check=False, timeout=300,
        )  # fmt: skip
        output = (tmp_path / ("attention.out", "tune.out")[number]).read_text()
        assert done.returncode == 0, done.stderr + output
        said.append(output)
    prefix = modules.removesuffix("/share/modulefiles")
    assert said[0].endswith(f"{prefix}/lib/libtilekiln_flash.so 1024.0 2\n")
    assert "  - receipt: flash\n" in said[0]
    assert "flash.tuned.json: 3 problems" in said[1]
    assert (tmp_path / "flash.tuned.json").is_file()
