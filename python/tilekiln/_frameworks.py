"""Rare cases of other frameworks, and error texts, for the binding."""

import difflib
from typing import Any


def unknown_argument(function: str, name: str, known: tuple[str, ...]) -> str:
    """The text of the TypeError for a keyword that does not exist."""
    near = difflib.get_close_matches(name, known, 3, 0.6)
    help_ = f"did you mean {' or '.join(near)}?" if near else f"it has {', '.join(known)}"
    return f"{function}() has no argument {name!r}; {help_}"


def adopt(like: Any, made: Any) -> Any:
    """Hand a new NumPy array to the framework of `like`, which has __dlpack__ but no C exchange API.

    Shares memory when the framework does. Without an array namespace the result stays a NumPy array.
    """
    namespace = getattr(like, "__array_namespace__", None)
    return made if namespace is None else namespace().from_dlpack(Exported(made))


class Exported:
    """A NumPy array that other frameworks can take over whatever its dtype: NumPy itself exports no bf16."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        from ._binding import export

        if dl_device not in (None, (1, 0)):
            raise BufferError(f"this array is on the CPU, which is DLPack device (1, 0) and not {dl_device}")
        return export(self.array.copy() if copy else self.array, max_version is not None and max_version >= (1, 0))

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)
