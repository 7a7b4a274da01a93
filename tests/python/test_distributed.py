"""tilekiln.torch.distributed: parts of a sequence in two and three processes give what one call gives."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("binding")]
torch = pytest.importorskip("torch")
HERE = pathlib.Path(__file__).resolve().parent


def test_parts_are_the_whole(flash) -> None:
    """Forward, LSE and gradients, by the ring and by the exchange of heads, causal or not, fp32 and bf16."""
    path = os.pathsep.join([str(HERE.parents[1] / "python"), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "TILEKILN_PATH": str(flash.path)}
    command = [sys.executable, str(HERE / "distributed_processes.py")]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout == "equal\n"


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


def test_bad_input() -> None:
    from tilekiln import ArgumentError
    from tilekiln.torch.distributed import merge, ring_attention

    x = torch.zeros(1, 4, 2, 32)
    with pytest.raises(ArgumentError, match="group: there was none, must be made first"):
        ring_attention(x, x, x)
    with pytest.raises(ArgumentError, match="lses: were 0, must be as many as outs, 1, and at least 1"):
        merge([x], [])
