"""Golden files: what every receipt lists, and a sample of generated sources, so that a review sees what a change did.

tools/dev python tests/codegen/golden.py --write    makes them anew, after looking at why they differ
"""

from __future__ import annotations

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # for the command line above

from codegen.emit.manifest import source_hash, source_hashes  # noqa: E402
from codegen.emit.render import render  # noqa: E402
from codegen.plan import held  # noqa: E402
from codegen.plan.plan import resolve  # noqa: E402
from codegen.schema.places import Places  # noqa: E402
from codegen.schema.tree import tree  # noqa: E402
from codegen.tell import listing  # noqa: E402

FOLDER = ROOT / "tests" / "codegen" / "golden"
INFO = {"version": "0.0", "mode": "release", "cxx": "g++", "cxx_version": "12.2.0", "flags": ["-O2"]}
TARGETS = ["cpu-generic", "cpu-avx512bf16"]
RECEIPT, WHERE = "fp8", "dtype=fp8bf16 hdim_q=192 mode=batch sink=no softcap=no"
"""Its library's table, rows and manifest are shown."""
OPERATORS = ("fmha_fwd", "reduce", "softmax")
"""Their headers are shown: a call with a type and stages of its own, one whose host code says the shape of its result,
and the plainest. `codegen diff` shows what a change does to those of all others; tests/python compiles and runs them,
test_golden.py tests every family's packing and table."""


def plans() -> dict[str, str]:
    """plans/<receipt>.txt: clauses, counts by axis value, a digest of all names."""
    root = tree()
    return {f"plans/{r.name}.txt": listing.receipt(root, r.name, ["all"]) + "\n" for r in root.all_receipts()}


def sources() -> dict[str, str]:
    """sources/*.txt: what is generated for RECEIPT and OPERATORS. Hashes, which any edit changes, are zeroed."""
    hashes = source_hashes(Places(str(ROOT)))
    plan = resolve(RECEIPT, TARGETS, WHERE)
    real = re.compile("|".join([source_hash(held.sources(plan, hashes)), *hashes.values()]).encode())
    made = render([plan], INFO)
    paths = [
        *(source.path for source in made.generated.sources if source.kind != "manifest"),
        *(path for path in made.generated.headers if _shown(path)),
        f"{RECEIPT}/manifest.json",
    ]
    return {
        f"sources/{path}.txt": real.sub(lambda found: b"0" * len(found[0]), made.contents[path]).decode()
        for path in paths
    }


def _shown(header: str) -> bool:
    """Whether it is one of OPERATORS or of their families, which have the same names."""
    return re.sub("_(table|entries)$", "", pathlib.PurePath(header).stem) in OPERATORS


def current() -> dict[str, str]:
    return plans() | sources()


def stored() -> dict[str, str]:
    return {str(path.relative_to(FOLDER)): path.read_text() for path in sorted(FOLDER.rglob("*.*")) if path.is_file()}


def write() -> None:
    old, new = stored(), current()
    for path in old.keys() - new.keys():
        (FOLDER / path).unlink()
    for path, text in new.items():
        if old.get(path) != text:
            (FOLDER / path).parent.mkdir(parents=True, exist_ok=True)
            (FOLDER / path).write_text(text)
            print(f"{path}: written")


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit(__doc__)
    write()
