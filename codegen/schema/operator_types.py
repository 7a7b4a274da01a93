# SPDX-License-Identifier: MIT
"""The words of an operator.yaml and of an area's arguments.yaml, as types.

Names are plain texts here: `model` checks how they look and what they lead to. (msgspec 0.20 frees a pattern twice that
stands in several members of a union.)
"""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from msgspec import Meta, Struct

from codegen.schema.launchers import LauncherFile
from codegen.schema.yaml_types import Text

Word = Text

# Fields below are named `float` and `int`, so their types go by other names.
Real = float
Whole = int

Letter = Text  # a length that arrays share
Dtype = Literal[
    "fp32", "fp16", "bf16", "fp8", "bf8", "fp8fnuz", "bf8fnuz", "int8", "int16", "int32", "int64",
    "uint8", "uint16", "uint32", "uint64", "fp64", "bool",
]  # fmt: skip
DTYPES: tuple[Dtype, ...] = get_args(Dtype)
Dtypes = Text | list[Dtype]  # one, several, or "as q": that of another array
Shape = Text  # letters of lengths

RANGES = {
    "finite": "finite",
    "0 or above": "0 or a finite number above",
    "off or above": "0 (off) or a finite number above",
    "above 0": "a finite number above 0",
    "[0, 1)": "at least 0 and below 1",
    "[0, 1]": "from 0 to 1",
    "(0, 1]": "above 0 and at most 1",
}
Range = Literal["finite", "0 or above", "off or above", "above 0", "[0, 1)", "[0, 1]", "(0, 1]"]


class SymbolFile(Struct, frozen=True, forbid_unknown_fields=True):
    """A length that arrays share."""

    name: Text  # in messages about the arrays that callers must give
    word: Text | None = None  # in the shapes of all other arrays; the name unless said
    short: Text | None = None  # in the shapes of those that callers must give
    of: Word | None = None  # the array that says it
    host: Word | None = None  # the field of the call where a function of host.cpp leaves it
    least: Whole | None = None
    most: Whole | None = None
    divides: Letter | None = None
    multiple: Letter | Whole | None = None
    power_of_two: bool = False
    equal: list[Word] | None = None  # the order in which arrays are asked for it
    says: Text | dict[str, Text] | None = None  # where the right length comes from, by form


class ArgumentFile(Struct, frozen=True, forbid_unknown_fields=True):
    """One of the kinds (KINDS), then what holds for it."""

    about: str = ""
    array: Dtypes | None = None  # read
    result: Dtypes | None = None  # written; made when it is not given
    written: Dtypes | None = None  # written, when given
    float: Real | Text | None = None  # derived: null in C, and then from the sizes
    int: Whole | None = None
    flag: bool | None = None
    word: list[Word] | Literal["axis"] | None = None  # axis: the values of the axis of its name
    pair: Literal["int32", "uint64"] | None = None
    dims: Word | None = None  # dimensions of that array
    threads: Literal[True] | None = None
    instance: Literal[True] | None = None
    stream: Literal[True] | None = None
    executor: Literal[True] | None = None
    # arrays
    place: bool = False  # given by position, and required
    optional: bool = False  # by position, but None is allowed
    required: bool = False  # by name
    form: Word | None = None  # the entry of `forms` that says its shape; its own name unless said
    like: Word | None = None  # shape of another array
    shape: list[Shape] | Shape | None = None
    one: bool = False  # of one element, whatever its dimensions
    ones: list[Letter] | None = None  # lengths that may be 1 instead
    only: dict[Word, Dtype | list[Dtype]] | None = None  # given only where that array has this dtype, or one of these
    when: dict[Dtype, list[Dtype]] | None = None  # other dtypes where `as` has this one
    chosen_by: Word | None = None  # the argument that names the dtype of a new result
    asked_by: Word | None = None  # the argument that asks for a result
    unless_said: Word | None = None  # asked_by is absent: a result is asked for when this argument is given
    in_place: Word | None = None  # an array that it may be: its memory with its strides
    ask: bool = False  # True in place of the array asks for a new one
    read: Literal["host", "either"] | None = None  # either: by kernels where the backend has some
    instead_of: Literal["read"] | None = None  # a number above 0: arrays with `read` stay on a device
    strides: Literal["either", "any"] | None = (
        None  # row- or column-major; unless said, the last dimension is contiguous
    )
    shape_by: Word | None = None  # the function of host.cpp that says the shape, from the arguments before it
    written_with: Word | None = None  # an array that is read, and written too when that argument is given
    # presence
    not_with: Word | None = None
    needs: Word | None = None
    together: list[Word] | None = None
    says: Text | None = None
    # scalars
    range: Range | None = None
    least: Whole | None = None
    least_is: Text | None = None
    most: Whole | None = None
    names: Annotated[list[Word], Meta(min_length=2, max_length=2)] | None = None
    items: Annotated[list[Word], Meta(min_length=2, max_length=3)] | None = None
    default: Annotated[list[Whole], Meta(min_length=2, max_length=2)] | None = None
    absent: Whole | None = None

    def only_of(self) -> dict[str, list[str]]:
        """Arrays of which this depends, and the dtypes that they must have."""
        return {name: [of] if isinstance(of, str) else list(of) for name, of in (self.only or {}).items()}


KINDS = (
    "array",
    "result",
    "written",
    "float",
    "int",
    "flag",
    "word",
    "pair",
    "dims",
    "threads",
    "instance",
    "stream",
    "executor",
)


class CallFile(Struct, frozen=True, forbid_unknown_fields=True):
    """The C++ side that the functions of host.cpp take."""

    header: Text
    type: Text | None = None  # what read() fills
    problem: Text | None = None  # instead: what the engine takes. host.cpp has fill and launch, all else is made
    index: Text | None = None  # the struct of the arrays with `read: host`

    @property
    def filled(self) -> str:
        """Type that read() fills: runtime/entry.h has the one around a problem."""
        return self.type or f"StageCall<{self.problem}>"


class NumberFile(Struct, frozen=True, forbid_unknown_fields=True):
    """A number of a call, given by a C function tilekiln_<operator>_<number>(args, type*)."""

    type: Literal["int32", "uint64"]
    about: Text


class UntouchedFile(Struct, frozen=True, forbid_unknown_fields=True):
    """Calls that may leave rows of their results as they are; new results are then zeroed."""

    form: list[Word] = []
    given: list[Word] = []


class IndependentFile(Struct, frozen=True, forbid_unknown_fields=True):
    """A length along which a call equals one call for each index: results and arrays begin with it, or lack it."""

    length: Letter
    unless: list[Word] = []  # arguments that, given and not 0, tie the indices together


class GroupedFile(Struct, frozen=True, forbid_unknown_fields=True):
    """Longer calls that `instead` takes as well, where heads of the first array share those of the others."""

    most: int  # the length up to which it does
    times: int  # the length may be so many times the heads that share one
    fewest: int  # the other arrays' length from which it does


class InsteadFile(Struct, frozen=True, forbid_unknown_fields=True):
    """Another operator, of the same arrays and results, which answers calls with a small length."""

    by: Word
    length: Letter
    most: dict[Literal["cpu", "cuda"], int]  # the length up to which it does, by the device of the arrays
    fewest: int  # the other arrays' length from which it does
    dtypes: list[Word]  # of the first array
    unless: list[Word] = []  # arguments of both operators that do not mean the same
    grouped: dict[Literal["cpu", "cuda"], GroupedFile] = {}


class TorchFile(Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of the operator of PyTorch, beyond the arguments."""

    backward: Word | None = None  # the operator of its derivative
    asks: dict[Word, Word] = {}  # a flag, and the `written` array that it makes one more result
    without: list[Word] = []  # arguments that it has not
    contiguous: list[Word] = []  # arrays by position that are copied when their last dimension is not contiguous


Axis = Word | dict[str, Word | list[Word] | dict[str, Word | dict[str, dict[str, Word]]]]
Steps = list[Text | list[Word]]


class AreaFile(Struct, frozen=True, forbid_unknown_fields=True):
    """arguments.yaml: what the operators of an area share."""

    groups: dict[Word, dict[Word, ArgumentFile]]
    symbols: dict[Letter, SymbolFile] = {}
    exchange: dict[Word, Word] = {}
    together: bool = False  # a library that holds one of its operators holds all


class OperatorFile(Struct, frozen=True, forbid_unknown_fields=True):
    operator: Word
    about: Text
    details: Text  # for the header and the page: shapes, aliasing, what is read when
    call: CallFile
    stages: Annotated[list[Word], Meta(min_length=1)]
    forms: dict[Word, dict[Word, str]]
    arguments: dict[str, ArgumentFile | None]
    area: Word | None = None  # of one from outside: the area of the tree whose groups and lengths it takes
    form_of: list[Word] | None = None  # whose dimensions choose the form; the first array that names its dtypes
    main: Word | None = None  # the stage that `instance` is of; the first unless said
    optional: dict[str, Word] = {}  # stages that a call may do without: what asks for them
    order: Steps | None = None
    symbols: dict[Letter, SymbolFile] = {}
    symbol_order: list[Letter | list[Letter]] | None = None
    alike: Word | None = None  # an operator whose arguments of the same names this one hands on
    signature: dict[Word, Axis] = {}
    untouched: UntouchedFile = UntouchedFile()
    work: list[Text] = []
    python_order: list[Word] | None = None
    numbers: dict[Word, NumberFile] = {}
    launcher: LauncherFile | None = None
    independent: IndependentFile | None = None
    instead: InsteadFile | None = None
    torch: TorchFile = TorchFile()
    reference: Word | None = None  # its module in python/tilekiln/reference; the operator's name unless said
    tests: Word | None = None  # its file in tests/python; test_<operator> unless said
    defaults: str = ""  # the comment of the C function that makes the defaults
