# SPDX-License-Identifier: MIT
"""A gradient that no library has on a device is refused at the forward. Fake tensors: no device is needed."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.usefixtures("binding"), pytest.mark.torch]


@pytest.mark.host_only("its library has no kernels of a GPU")
def test_refused_at_the_forward(flash: object, monkeypatch: pytest.MonkeyPatch) -> None:
    import tilekiln as tk
    from tilekiln.torch import calls
    from torch._subclasses.fake_tensor import FakeTensorMode

    monkeypatch.setattr("tilekiln.api.operators._at_hand", lambda: [flash])  # of the CPU alone, whatever GPU is here
    with FakeTensorMode():
        q = torch.empty(1, 8, 2, 64, device="cuda", dtype=torch.bfloat16)
        leaf = torch.empty_like(q).requires_grad_()
        with pytest.raises(tk.NoKernelError, match="an input requires grad: without a gradient call it"):
            calls.forward(leaf, q, q)
        with torch.no_grad():
            out = calls.forward(leaf, q, q)[0]
    assert (out.device.type, out.shape) == ("cuda", q.shape)


@pytest.mark.host_only("its library has no kernels of a GPU")
def test_sizes_that_vary(flash: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """As torch.compile(dynamic=True) traces them: the same refusal, no error of a size that has no number yet."""
    import tilekiln as tk
    from tilekiln.torch import calls
    from torch.fx.experimental.proxy_tensor import make_fx

    monkeypatch.setattr("tilekiln.api.operators._at_hand", lambda: [flash])

    def attend(like: object) -> object:
        q = torch.empty_like(like, device="cuda", dtype=torch.bfloat16)
        return calls.forward(q.requires_grad_(), q, q)[0]

    with pytest.raises(tk.NoKernelError, match="an input requires grad"):
        make_fx(attend, tracing_mode="symbolic")(torch.empty(1, 8, 2, 64))
