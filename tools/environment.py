# SPDX-License-Identifier: MIT
"""Makes the environment of tools/dev: python3 tools/environment.py VENV [EXTRA-EXTRA...].

Runs under whatever Python the machine has, so that one that is too old is told so: nothing past Python 3.6 in here.
"""

import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# A CPU build has the local version +cpu; PyPI's torch 2.13.0 is the CUDA build, with gigabytes of packages behind it.
TORCH = "torch==2.13.0+cpu"
COMPILERS = (("g++", 12), ("clang++", 16))


class MissingError(Exception):
    """Something of the machine is missing; the message is one sentence that says what and what to do."""


def check_python():
    if sys.version_info < (3, 11):
        have = "%d.%d" % sys.version_info[:2]
        raise MissingError(
            "Python >= 3.11 is needed, %s is %s: install or name another in PYTHON" % (sys.executable, have)
        )
    try:
        import ensurepip  # noqa: F401
        import venv  # noqa: F401
    except ImportError:
        raise MissingError(
            "%s has no venv module: install it (Debian: apt install python3-venv)" % sys.executable
        ) from None
    import sysconfig

    if not os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h")):
        raise MissingError(
            "the headers of %s are missing: install them (Debian: apt install python3-dev)" % sys.executable
        )


def check_compiler():
    names = [os.environ["CXX"]] if os.environ.get("CXX") else [name for name, _ in COMPILERS]
    found = []
    for name in names:
        path = shutil.which(name)
        if path is None:
            continue
        predefined = subprocess.run(
            [path, "-dM", "-E", "-x", "c++", os.devnull], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False
        ).stdout.decode()
        kind, least = COMPILERS[1] if "__clang_major__" in predefined else COMPILERS[0]
        macro = "__clang_major__" if kind == "clang++" else "__GNUC__"
        version = re.search(r"#define %s (\d+)" % macro, predefined)
        if version and int(version.group(1)) >= least:
            return
        found.append("%s is version %s" % (path, version.group(1) if version else "unknown"))
    raise MissingError(
        "g++ >= 12 or clang++ >= 16 is needed and %s: install one (Debian: apt install g++) or name it in CXX"
        % (", ".join(found) or "there is none on PATH")
    )


def run(*command):
    # Session of its own, so that Ctrl-C reaches this program alone; pip would show where it was. It has the lock,
    # too: when this program is killed, the next one waits for what still writes.
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True, close_fds=False) as process:
        try:
            process.wait()
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    if process.returncode != 0:
        raise MissingError(
            "the environment could not be made: %s failed, its own message is above" % " ".join(command[:5])
        )


def make(venv, extras):
    """Makes `venv` in place (a venv cannot be moved) and stamps it last; removes what an interrupted run left."""
    print("tools/dev: making the environment %s (once)" % os.path.relpath(venv, os.getcwd()), flush=True)
    shutil.rmtree(venv, ignore_errors=True)
    run(sys.executable, "-m", "venv", venv)
    python = os.path.join(venv, "bin", "python")
    # The locks are complete, so pip resolves nothing; wheels only, so that no package runs code of its own to build.
    # Python compiles a module when it is first imported: all 13,000 of every extra would take a minute.
    install = [python, *"-m pip install -qq --disable-pip-version-check --no-compile --no-deps".split()]
    install += ["--only-binary", ":all:"]
    for lock in ["dev", *extras]:
        run(*install, "--require-hashes", "-r", os.path.join(ROOT, "requirements", lock + ".lock"))
    if "torch" in extras:
        try:
            run(*install, TORCH)
        except MissingError:
            raise MissingError(
                "no %s was found: set PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu, "
                "or PIP_FIND_LINKS to a folder that holds the file" % TORCH
            ) from None
    stamp = os.path.join(venv, "made")
    with open(stamp + ".new", "w") as file:
        file.write(venv + "\n")
    os.replace(stamp + ".new", stamp)


def made(venv):
    try:
        with open(os.path.join(venv, "made")) as file:
            return file.read() == venv + "\n"
    except OSError:
        return False


def main():
    for number in (signal.SIGTERM, signal.SIGHUP):  # they reach this program alone, and end what it runs, too
        signal.signal(number, signal.default_int_handler)
    venv, extras = sys.argv[1], [name for name in "".join(sys.argv[2:]).split("-") if name]
    try:
        check_python()
        check_compiler()
        os.makedirs(os.path.dirname(venv), exist_ok=True)
        # The kernel drops the lock when its holders die, however they die.
        with open(venv + ".lock", "w") as lock:
            os.set_inheritable(lock.fileno(), True)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                print("tools/dev: waiting for another tools/dev that is making the environment", flush=True)
                fcntl.flock(lock, fcntl.LOCK_EX)
            if not made(venv):
                make(venv, extras)
    except MissingError as error:
        print("tools/dev: %s" % error)
        return 1
    except OSError as error:
        where = os.path.dirname(venv)
        print(
            "tools/dev: the environment cannot be written below %s: %s: %s. Name a folder of yours in TILEKILN_VENV"
            % (where, error.strerror, error.filename)
        )
        return 1
    except KeyboardInterrupt:
        print("tools/dev: stopped; the unfinished environment is made anew next time")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
