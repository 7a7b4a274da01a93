"""Golden files: what every receipt lists, and a sample of generated sources, so that a review sees what a change did.

tools/dev python tests/codegen/golden.py --write    makes them anew, after looking at why they differ
"""

from __future__ import annotations

import pathlib
import re
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # for the command line above

from codegen.emit.manifest import source_hash, source_hashes  # noqa: E402
from codegen.emit.render import generate  # noqa: E402
from codegen.plan import held  # noqa: E402
from codegen.plan.plan import resolve  # noqa: E402
from codegen.schema.places import Places  # noqa: E402
from codegen.schema.tree import tree  # noqa: E402
from codegen.tell import listing  # noqa: E402

FOLDER = ROOT / "tests" / "codegen" / "golden"
INFO = {"version": "0.0", "mode": "release", "cxx": "g++", "cxx_version": "12.2.0", "flags": ["-O2"]}
TARGETS = ["cpu-generic", "cpu-avx512bf16"]
SAMPLES = {
    "fp8": "dtype=fp8bf16 hdim_q=192 mode=batch sink=no softcap=no",
    "aiter_group": "family=fmha_fwd_splitkv dtype=bf16 hdim_q=96 bias=none sink=no softcap=no or "
    "family=fmha_batch_prefill kv_dtype=fp8 hdim_q=128 page_size=16 lookup=vllm mask=window bias=none sink=no lse=no",
    "aiter": "family=fmha_bwd_dq_dk_dv dtype=bf16 hdim_q=192 hdim_v=128 mode=batch mask=window sink=no softcap=no",
}


def plans() -> dict[str, str]:
    """plans/<receipt>.txt: clauses, counts by axis value, a digest of all names."""
    root = tree()
    return {f"plans/{r.name}.txt": listing.receipt(root, r.name, ["all"]) + "\n" for r in root.all_receipts()}


def sources() -> dict[str, str]:
    """sources/*.txt: everything generated for SAMPLES. The tree's hashes, which any edit changes, are zeroed."""
    hashes = source_hashes(Places(str(ROOT)))
    plans = [resolve(name, TARGETS, where) for name, where in SAMPLES.items()]
    real = re.compile("|".join([*(source_hash(held.sources(p, hashes)) for p in plans), *hashes.values()]).encode())
    with tempfile.TemporaryDirectory() as folder:
        generated = generate(plans, folder, INFO)
        manifests = [f"{name}/manifest.json" for name in SAMPLES]
        paths = [
            *(source.path for source in generated.sources if source.kind != "manifest"),
            *generated.headers,
            *manifests,
        ]
        read = {path: (pathlib.Path(folder) / path).read_bytes() for path in paths}
    return {
        f"sources/{path}.txt": real.sub(lambda found: b"0" * len(found[0]), data).decode()
        for path, data in read.items()
    }


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
