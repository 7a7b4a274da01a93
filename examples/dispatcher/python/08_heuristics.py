"""A heuristic of yours: four tile profiles of a GPU, picked by the number of queries, and a pipeline of the CPU's."""

from dispatch_example import attention, normal, over, verdict
from tilekiln.dispatcher import Algorithm, Call, Dispatcher, KernelSet, Problem, Registry, Signature

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

# On this machine: many queries by the lanes of decoding, because we say so. The answer is the same.
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
