# SPDX-License-Identifier: MIT
"""tilekiln.torch.distributed: parts of a sequence in two and three processes give what one call gives."""

from __future__ import annotations

import itertools
import os
import pathlib
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("binding")]
torch = pytest.importorskip("torch")
HERE = pathlib.Path(__file__).resolve().parent


def processes(flash, case: str, *worlds: int, norms=None, **environment: str) -> None:
    """Run a case of distributed_processes.py, with the libraries of flash, and of norm_default where it is given."""
    path = os.pathsep.join([str(HERE.parents[1] / "python"), os.environ.get("PYTHONPATH", "")])
    given = {**os.environ, "PYTHONPATH": path, "TILEKILN_NUM_THREADS": "1"}
    given["TILEKILN_PATH"] = os.pathsep.join(str(one.path) for one in (flash, norms) if one)
    command = [sys.executable, str(HERE / "distributed_processes.py"), case, *map(str, worlds)]
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=300, env={**given, **environment}
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout == "equal\n"


def test_parts_are_the_whole(flash, request: pytest.FixtureRequest) -> None:
    """Forward, LSE and gradients, by every way, placement and mask, of lengths that nothing divides, packed or not."""
    full = request.config.getoption("--full")
    processes(flash, "equal", *((1, 2, 3, 4, 5) if full else (2, 3)), TILEKILN_DRAWN="150" if full else "30")


def test_processes_that_disagree(flash) -> None:
    """All raise within ten seconds, and agree again; so where one ends."""
    processes(flash, "disagreements", 2, 3)


@pytest.mark.day
def test_equal_bits_decode_plans_and_traces(flash, load) -> None:
    """With the operator `merge`, which adds up two parts in one pass."""
    processes(flash, "steady", 2, 3, norms=load("norm_default", targets="all"))


@pytest.mark.day
@pytest.mark.transformers
def test_models(flash) -> None:
    """Of Transformers, inside context_parallel of PyTorch and ours, under FSDP2, with checkpoints, packed, windows."""
    processes(flash, "models", 2)


def test_placements() -> None:
    """Every row is held once; zigzag costs all alike; cu_seqlens and positions are those of the rows."""
    from tilekiln.torch.distributed import positions, shard, shard_cu_seqlens
    from tilekiln.torch.distributed.parts import Mask, calls_between, last_step
    from tilekiln.torch.distributed.placement import PLACEMENTS, Layout

    for lengths, world in itertools.product([(96,), (97,), (3,), (40, 0, 7, 1)], (1, 2, 3, 5)):
        starts, packed = torch.tensor([0, *lengths]).cumsum(0), len(lengths) > 1
        cu_seqlens = starts if packed else None
        for placement in PLACEMENTS:
            cut = {"placement": placement, "world": world, "cu_seqlens": cu_seqlens}
            rows = [shard(torch.arange(sum(lengths)), dim=0, rank=rank, **cut) for rank in range(world)]
            assert torch.equal(torch.cat(rows).sort().values, torch.arange(sum(lengths)))
            for rank in range(world):
                its = positions(None if packed else lengths[0], rank=rank, **cut)
                own = shard_cu_seqlens(starts, placement=placement, rank=rank, world=world).tolist()
                for i, (begin, end) in enumerate(itertools.pairwise(own)):
                    assert torch.equal(its[begin:end] + starts[i], rows[rank][begin:end])
    layout = Layout("zigzag", (4096,), 4)
    costs = [
        sum(call.scores for source in range(4) for call in calls_between(layout, rank, layout, source, Mask(None, 0)))
        for rank in range(4)
    ]
    assert costs == [4096 * 4097 / 8] * 4
    rows = Layout("contiguous", (4096,), 4)  # a window's keys go to the neighbour alone, but for those of sinks
    for mask, steps in ((Mask(100, 0), [1, 1, 1, 0]), (Mask(100, 0, 4), [3, 1, 1, 0]), (Mask(None, 0), [3, 2, 1, 0])):
        assert [last_step(rows, rows, source, 4, mask) for source in range(4)] == steps


def test_merge_of_parts() -> None:
    """Also of rows that see nothing in one part, or in any."""
    from tilekiln.torch.distributed import merge

    torch.manual_seed(0)
    scores, v = torch.randn(2, 3, 5, 12, dtype=torch.float64), torch.randn(2, 12, 3, 4, dtype=torch.float64)
    scores[:, :, 1, :7] = scores[:, :, 2] = -torch.inf
    parts = [(slice(0, 7)), slice(7, 12)]

    def attend(s: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        return torch.einsum("bhqk,bkhd->bqhd", s.softmax(-1).nan_to_num(0.0), values)

    outs = [attend(scores[..., one], v[:, one]) for one in parts]
    out, lse = merge(outs, [scores[..., one].logsumexp(-1) for one in parts])
    torch.testing.assert_close(out, attend(scores, v).float())
    torch.testing.assert_close(lse, scores.logsumexp(-1).float())
    assert (out[:, 2] == 0).all()


def test_context_parallel_of_an_unknown_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Never attention over this process's part alone, unsaid."""
    from tilekiln.torch.distributed.context import THEIRS, active

    def inner_fn() -> None: ...

    assert active() is None
    inner_fn.__module__ = f"{THEIRS}._attention"
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", inner_fn)
    with pytest.raises(NotImplementedError, match=r"torch: is .*, whose context_parallel is not known here"):
        active()


def test_bad_input() -> None:
    from tilekiln import ArgumentError
    from tilekiln.torch.distributed import merge, positions, ring_attention, shard

    x = torch.zeros(1, 4, 2, 32)
    with pytest.raises(ArgumentError, match="group: there was none, must be made first"):
        ring_attention(x, x, x)
    with pytest.raises(ArgumentError, match="rank: was 2, must be at least 0 and below 2, the processes"):
        shard(x, rank=2, world=2)
    with pytest.raises(ArgumentError, match="rank: was 1 and world None, must both be given"):
        shard(x, rank=1)
    with pytest.raises(ArgumentError, match="placement: was 'spiral', must be one of 'contiguous', 'zigzag'"):
        shard(x, rank=0, world=2, placement="spiral")
    with pytest.raises(ArgumentError, match="dim: was 4, must be a dimension of x, which has 4"):
        shard(x, rank=0, world=2, dim=4)
    with pytest.raises(
        ArgumentError, match="cu_seqlens: was \\[1, 4\\], must be the starts of whole sequences, 0 first"
    ):
        shard(x, rank=0, world=2, cu_seqlens=[1, 4])
    with pytest.raises(ArgumentError, match="x: had 4 rows, must have 5, the end of cu_seqlens"):
        shard(x, rank=0, world=2, cu_seqlens=[0, 5])
    with pytest.raises(ArgumentError, match="seqlen: was None, must be given, or cu_seqlens, not both"):
        positions(rank=0, world=2)
    with pytest.raises(ArgumentError, match="lses: were 0, must be as many as outs, 1, and at least 1"):
        merge([x], [])
