# SPDX-License-Identifier: MIT
"""The launcher of attention's backward over all available libraries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from .._core.native import Launcher, NoKernelError
from ._refusals import Refused, one_error
from .operators import at_hand

if TYPE_CHECKING:
    from .library import Library


class BackwardLauncher(Launcher):
    """One backward problem, whose workspace is prepared apart from the run, in stream order if wanted.

        launcher = tk.BackwardLauncher(dtype="bf16", hdim_q=64, hdim_v=64, nhead_q=8, batch=3, seqlen_q=700,
                                       seqlen_k=400, mode="group", deterministic=True)
        workspace = np.empty(launcher.workspace_size, np.uint8)
        launcher.prepare(workspace, seqstart_q, seqstart_k, stream=stream)
        launcher.run(dout, q, k, v, out, lse, workspace=workspace, ..., stream=stream)

    `workspace_size` needs no sequence starts: it is enough for any. `prepare` with a stream never waits.
    """

    def __new__(
        cls,
        *,
        dtype: Literal["fp32", "fp16", "bf16"],
        hdim_q: int,
        hdim_v: int,
        nhead_q: int,
        batch: int,
        seqlen_q: int,
        seqlen_k: int,
        nhead_k: int | None = None,
        mode: Literal["batch", "group"] = "batch",
        mask: Literal["none", "window"] = "none",
        bias: Literal["none", "elementwise", "alibi"] = "none",
        dbias: bool = False,
        dropout: Literal["none", "apply", "store"] = "none",
        softcap: bool = False,
        sink: bool = False,
        deterministic: bool = False,
        workers: int = 0,
        device: tuple[int, int] = (1, 0),
        max_seqlen_q: int = 0,
        library: Library | None = None,
    ) -> BackwardLauncher:
        """The launcher of a problem.

        seqlen_q: batch mode: rows of each sequence; group mode: of all together, seqstart_q[-1]. seqlen_k: keys of
        each, of the longest. mask: 'window' with causal or a window. dropout: 'store' with randval. softcap, sink: is
        there one (sink: logits, or sink columns left of a window)? nhead_k: None is nhead_q. device: of the arrays and
        the workspace, DLPack's type and number: (1, 0) is the host, (2, 0) cuda:0. max_seqlen_q: group mode: no
        sequence has more rows; 0 is seqlen_q. library: None is the first available one that has the kernels. Raises
        NoKernelError when none has.
        """
        problem = {
            "dtype": dtype, "hdim_q": hdim_q, "hdim_v": hdim_v, "nhead_q": nhead_q,
            "nhead_k": nhead_q if nhead_k is None else nhead_k, "mode": mode, "batch": batch, "seqlen_q": seqlen_q,
            "seqlen_k": seqlen_k, "mask": mask, "bias": bias, "dbias": dbias, "dropout": dropout, "softcap": softcap,
            "sink": sink, "deterministic": deterministic, "workers": workers, "device": device,
            "max_seqlen_q": max_seqlen_q,
        }  # fmt: skip
        refused = []
        for candidate in at_hand() if library is None else [library]:
            try:
                made: BackwardLauncher = super().__new__(cls, candidate, "fmha_bwd", **problem)  # type: ignore[assignment]
                return made
            except NoKernelError as refusal:
                refused.append(Refused(candidate.receipt, refusal))
        raise one_error(refused)

    def __repr__(self) -> str:
        return f"<tilekiln.BackwardLauncher {self.library.instance_name(self.instances[1])}>"
