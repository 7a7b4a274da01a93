"""What the binding leaves to Python: rare cases of other frameworks, and texts."""

import difflib
from typing import Any


def unknown_argument(function: str, name: str) -> str:
    """The text of the TypeError for a keyword that does not exist."""
    from ._binding import ARGUMENTS

    near = difflib.get_close_matches(name, ARGUMENTS, 3, 0.6)
    help_ = f"did you mean {' or '.join(near)}?" if near else f"it has {', '.join(ARGUMENTS)}"
    return f"{function}() has no argument {name!r}; {help_}"


def adopt(like: Any, made: Any) -> Any:
    """Hand a new NumPy array to the framework of `like`, which has __dlpack__ but no C exchange API.

    Shares memory when the framework does. Without an array namespace the result stays a NumPy array.
    """
    namespace = getattr(like, "__array_namespace__", None)
    return made if namespace is None else namespace().from_dlpack(made)
