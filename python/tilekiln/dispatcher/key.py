# SPDX-License-Identifier: MIT
"""A key: what one kernel answers and how. Signature, algorithm and target; all of it makes the id."""

from __future__ import annotations

from .choice import chooser
from .words import text, value_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from .words import Value


class Key:
    """family, signature, algorithm, target and receipt.

    A field that the signature has without a value it answers with any value; one that it has not it does not know.
    algorithm: what callers cannot see, as pipeline and tiles. receipt: whose kernel it is; "": everybody's. It may not
    change once it was asked for its id.
    """

    __slots__ = ("_id", "algorithm", "family", "receipt", "signature", "target")

    def __init__(
        self,
        family: str,
        signature: Mapping[str, Any] | None = None,
        algorithm: Mapping[str, Any] | None = None,
        target: str = "",
        receipt: str = "",
    ) -> None:
        self.family, self.target, self.receipt = family, target, receipt
        self.signature: dict[str, Value] = {name: value_of(value) for name, value in (signature or {}).items()}
        self.algorithm: dict[str, Value] = {name: value_of(value) for name, value in (algorithm or {}).items()}
        self._id: str | None = None

    @classmethod
    def of(
        cls, family: str, signature: dict[str, Value], algorithm: dict[str, Value], target: str, receipt: str
    ) -> Key:
        """The key of values that are in order; it keeps them."""
        made = cls.__new__(cls)
        made.family, made.target, made.receipt = family, target, receipt
        made.signature, made.algorithm, made._id = signature, algorithm, None
        return made

    @property
    def id(self) -> str:
        """A readable beginning and a hash of every field, so that keys that differ anywhere have different ids:
        "fmha_fwd-bf16-128x128-0f3c..". The order in which fields were said is no difference."""
        if self._id is None:
            begin, signature = self.family, self.signature
            dtype, q, v = signature.get("dtype"), signature.get("hdim_q"), signature.get("hdim_v")
            if dtype is not None:
                begin += f"-{dtype}"
            if q is not None:
                begin += f"-{q}"
            if v is not None:
                begin += f"-{v}" if q is None else f"x{v}"
            self._id = f"{begin}-{chooser().key_digits(self.identity())}"
        return self._id

    def identity(self) -> str:
        """Every field, each with 0x1f after it: family, signature and algorithm by name, target, receipt."""
        parts = [self.family, *_sorted(self.signature), "", *_sorted(self.algorithm), "", self.target, self.receipt, ""]
        return "\x1f".join(parts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Key) and self.identity() == other.identity()

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"<tilekiln.dispatcher.Key {self.id}>"


def _sorted(values: Mapping[str, Value]) -> list[str]:
    return sorted([f"{name}={text(value)}" for name, value in values.items()])
