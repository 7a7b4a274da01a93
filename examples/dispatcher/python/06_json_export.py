"""A registry as JSON, for other tools, and back: the same registry."""

import json
import tempfile
from pathlib import Path

import tilekiln as tk
from dispatch_example import verdict
from tilekiln.dispatcher import KernelSet, Registry, Signature

registry = Registry("decoder")
decoder = KernelSet("decoder").add(Signature("fwd").dtype("bf16").hdim(64).mask("causal").lse("any"))
registry.add_all(decoder.of(tk.load("flash")))
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "kernels.json"
    registry.to_file(path)
    whole = json.loads(path.read_text())
    print(f"{whole['metadata']['registry_name']}: {sorted(whole['statistics'])}")
    verdict("counts", all(sum(of.values()) == len(whole["kernels"]) for of in whole["statistics"].values()), "add up")
    back = Registry("decoder")
    back.from_file(path)
    verdict("export, import, export", back.to_json() == path.read_text(), "the same bytes")
