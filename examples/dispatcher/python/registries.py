# SPDX-License-Identifier: MIT
"""Registries: as JSON, every kernel by its id, a choice of yours, one for each use."""

import json
import tempfile
from pathlib import Path

import tilekiln as tk
from dispatch_example import attention, given, main, normal, over, verdict
from tilekiln import reference
from tilekiln.dispatcher import Algorithm, Call, Dispatcher, Instance, KernelSet, Problem, Registry, Signature


def _06_json_export() -> None:
    """A registry as JSON, for other tools, and back: the same registry."""
    registry, back = Registry("decoder"), Registry("decoder")
    decoder = KernelSet("decoder").add(Signature("fwd").dtype("bf16").hdim(64).mask("causal").lse("any"))
    registry.add_all(decoder.of(tk.load("flash")))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernels.json"
        registry.to_file(path)
        whole = json.loads(path.read_text())
        print(f"{whole['metadata']['registry_name']}: {sorted(whole['statistics'])}")
        add_up = all(sum(of.values()) == len(whole["kernels"]) for of in whole["statistics"].values())
        verdict("counts", add_up, "add up")
        back.from_file(path)
        verdict("export, import, export", back.to_json() == path.read_text(), "the same bytes")


def is_plain(kernel: Instance) -> bool:
    signature = kernel.key.signature
    off = ("bias", "dropout", "softcap", "skip_min_seqlen_q", "sink", "qscale")
    plain = all(signature.get(field) in (None, "none", "no") for field in off)
    return plain and kernel.key.family == "fmha_fwd" and signature["mode"] == "batch" and signature["dtype"] != "fp32"


def _07_stress_test() -> None:
    """Every kernel of a few features run by its id, each with a seed of its own. --num-kernels N: the first N (48)."""
    of, passed = over("flash"), 0
    kernels = of.registry.filter(is_plain)[: given.num_kernels or 48]
    for i, kernel in enumerate(kernels):
        signature = kernel.key.signature
        dtype, causal, lse = signature["dtype"], signature["mask"] == "window", signature["lse"] == "yes"
        q, k = (normal(1, rows, 1, signature["hdim_q"], dtype=dtype, seed=42 + i) for rows in (20, 30))
        v = normal(1, 30, 1, signature["hdim_v"], dtype=dtype, seed=i)
        made = of.run_explicit(kernel.key.id, Call("fmha_fwd", q, k, v, causal=causal, return_lse=lse))
        out, its_lse = made if lse else (made, None)
        passed += reference.excess(dtype, reference.forward(q, k, v, causal=causal), out, its_lse) <= 1
    distinct = len({kernel.key.id for kernel in kernels})
    verdict(f"{len(kernels)} kernels, {distinct} ids", passed == len(kernels) == distinct, f"{passed} right")


def _08_heuristics() -> None:
    """A heuristic of yours: four tile profiles of a GPU, picked by the number of queries; a pipeline of the CPU's."""
    # Declared for gfx942: there they are planned, here they are chosen.
    profiles = KernelSet("profiles")
    for rows in (16, 64, 128, 256):
        algorithm = Algorithm().tile(rows, 64, 32, 0, 0, 64).pipeline("qr").auto_fill()
        profiles.add(Signature("fwd").dtype("bf16").hdim(64), algorithm, "gfx942")
    registry = Registry("profiles")
    registry.add_all(profiles.listing())
    by_rows = {one.key.algorithm["tile_m0"]: one.key.id for one in registry.get_all()}

    def by_seqlen(problem: Problem) -> list[str]:
        seqlen = problem.number("seqlen_q")
        return ["no such kernel", by_rows[64 if seqlen <= 64 else 128 if seqlen <= 256 else 256]]

    def tile(of: Dispatcher, seqlen: int) -> object:
        return of.select(attention(seqlen_q=seqlen).gfx_arch("ck-gfx942").build()).key.algorithm["tile_m0"]

    of = Dispatcher(registry)
    print(f"{of.strategy}: tiles of 1, 200 and 2000 queries:", *(tile(of, seqlen) for seqlen in (1, 200, 2000)))
    of.set_heuristic(by_seqlen)
    print(f"{of.strategy}: tiles of 1, 200 and 2000 queries:", *(tile(of, seqlen) for seqlen in (1, 200, 2000)))
    of.set_heuristic(lambda problem: ["no such kernel"])
    verdict("nothing named is there", tile(of, 1) == 16, "the first fit")

    # Many queries, on this machine, by the lanes of decoding, because we say so. The answer is the same.
    cpu = over("flash")
    call = Call("fmha_fwd_splitkv", *(normal(1, rows, 2, 64, seed=rows) for rows in (20, 300, 300)))
    first = cpu.run(call)
    cpu.set_heuristic(lambda problem: [
        entry.id for entry in cpu.registry.index().entries
        if entry.instance.key.algorithm["pipeline"] == "dlanes" and entry.instance.supports(problem)
    ])  # fmt: skip
    chosen = cpu.plan(cpu.from_call(call)).stages[0].instance.key.algorithm["pipeline"]
    close = abs(cpu.run(call).astype("f4") - first.astype("f4")).max() < 0.02
    cpu.set_heuristic(None)
    verdict("splitkv of 20 queries", chosen == "dlanes" and close, chosen)


def _09_multi_registry() -> None:
    """Several registries: one for prefill, one for decoding, each with its own kernels, chosen by the problem."""
    kernels = over("flash").registry.filter(lambda one: one.key.family == "fmha_fwd_splitkv")
    prefill, decode = Registry("prefill"), Registry("decode")
    prefill.add_all(one for one in kernels if one.key.algorithm["pipeline"] != "dlanes")
    decode.add_all(one for one in kernels if one.key.algorithm["pipeline"] == "dlanes")
    of = {registry.name: Dispatcher(registry) for registry in (prefill, decode)}
    verdict("registries", 0 < len(prefill) < len(kernels) == len(prefill) + len(decode), "apart")
    for seqlen_q in (1, 512):
        problem = attention(seqlen_q=seqlen_q, seqlen_k=512).api_family("fwd_splitkv").lse().build()
        name = "decode" if seqlen_q <= 8 else "prefill"
        pipeline = of[name].select(problem).key.algorithm["pipeline"]
        verdict(f"{seqlen_q} queries from {name}", pipeline == ("dlanes" if name == "decode" else "qlanes"), pipeline)


if __name__ == "__main__":
    main(globals())
