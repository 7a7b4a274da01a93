# SPDX-License-Identifier: MIT
"""Types of the YAML files. Everything else about them is checked where it is bound."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

# `description` is what an error says that a value must be.
Word = Annotated[str, Meta(pattern="^[a-z][a-z0-9_]*$", description="a name (small letters, digits and _)")]
TargetName = Annotated[str, Meta(pattern="^[a-z][a-z0-9_-]*$", description="a name (small letters, digits, _ and -)")]
Text = Annotated[str, Meta(min_length=1)]
_NUMBERS = "^[1-9][0-9]*(x[1-9][0-9]*)*$"
Numbers = (
    Annotated[str, Meta(pattern=_NUMBERS, description="numbers with x between them, as 64x64")]
    | Annotated[int, Meta(ge=1)]
)
Number = Annotated[int, Meta(ge=0)]
Small = Annotated[int, Meta(ge=0, le=255)]
Selection = Text | list[Text]  # one text, or a list of clauses that are OR-ed


class AxisFile(Struct, frozen=True, forbid_unknown_fields=True):
    name: Word
    about: str = ""  # of the other family if `values` is main or engine, else it must be there
    # A text: main, engine (those of the family whose engines hold this one), or the table.
    # No Word: msgspec 0.22 crashes over a second pattern in one union.
    values: Annotated[list[Word | Number], Meta(min_length=1)] | str | None = None
    holds: Literal["at_least", "equal"] | None = None  # of an integer axis: which problems an instance takes
    word: str | list[str] = ""  # of a list "" leaves a value out of names
    # Values that were appended: their rows have sources of their own, so that those of the others stay as they are.
    apart: list[Word | Number] = []


class TableFile(Struct, frozen=True, forbid_unknown_fields=True):
    """Values of integer axes that exist together, `64x128`, by the value of another axis."""

    by: Word
    values: dict[str, list[Numbers]]


class AlgorithmAxisFile(Struct, frozen=True, forbid_unknown_fields=True):
    """An axis of how instances answer: numbers (`of` names them), or `values`, or neither (yes and no)."""

    name: Word
    about: Text
    of: Annotated[list[Word], Meta(min_length=1)] | None = None
    values: Annotated[list[Word | Number], Meta(min_length=1)] | None = None
    default: Word | Number | bool | None = None
    word: str | list[Word] = ""
    most: list[Number] | None = None  # of each number: a kernel set may ask for any up to it, not only for a target's


class ChoiceFile(Struct, frozen=True, forbid_unknown_fields=True):
    """Steering of the choice between instances that all take a problem."""

    fit: dict[str, Word] = {}  # a size of the problem and the number of the tile that covers it


class RuleFile(Struct, frozen=True, forbid_unknown_fields=True):
    name: Word
    when: Selection
    says: Text


class PipelineFile(Struct, frozen=True, forbid_unknown_fields=True):
    """`shares`: sources that its engine needs beside its own, compiled once a target for all that name them.

    `own`: its engines are of the family's own room, where the others are those of another family.
    """

    name: Word
    about: Text
    shares: list[Text] = []
    own: bool = False


class EngineFile(Struct, frozen=True, forbid_unknown_fields=True):
    header: Text
    type: Text


class EntryFile(Struct, frozen=True, forbid_unknown_fields=True):
    """A member of the engine's type, a function for the signatures of `when`; {axis} is the value of that axis."""

    member: Text
    when: Selection | None = None


# An entry of a target's algorithms; codegen.algorithms says what a family's may hold.
Algorithm = dict[str, str | int | bool | list[str | int]]


class FamilyFile(Struct, frozen=True, forbid_unknown_fields=True):
    family: Word
    about: Text
    axes: Annotated[list[AxisFile], Meta(min_length=1)]
    pipelines: Annotated[list[PipelineFile], Meta(min_length=1)]
    engine: EngineFile | Word  # main, or the family whose engines hold this one too
    source_by: list[Word]
    # engine: targets and kernels that say nothing of it answer and refuse as they do the family whose engines hold it
    targets: Literal["engine"] | None = None
    companion_of: Word | None = None
    tables: Annotated[dict[str, TableFile], Meta(max_length=1)] = {}
    algorithm: list[AlgorithmAxisFile] = []
    sizes: list[Word] = []
    choice: ChoiceFile | None = None
    entries: list[EntryFile] = []
    fixed: dict[
        Word, list[Word]
    ] = {}  # by backend the pipelines with a <pipeline>_fixed.cpp: kernels of constant features
    base: Selection | None = None
    rules: list[RuleFile] = []
    # Target -> what its file would say of a family that the tree does not know: of one from outside.
    algorithms: dict[str, list[Algorithm]] = {}


class AbsentFile(Struct, frozen=True, forbid_unknown_fields=True):
    families: list[Word]
    says: Text


class BackendFile(Struct, frozen=True, forbid_unknown_fields=True):
    backend: Word
    about: Text
    device: Small
    machine: Word | None = None
    toolchain: Word | None = None
    planned: bool = False  # its targets are listed; nothing here asks for them, compiles or runs them yet
    for_tests: bool = False  # neither native nor all means its targets: they are built when they are named
    hub: Word | None = None  # what Hugging Face's kernels calls it
    engine: EngineFile | None = None  # of kernels of its own; else engines are the families', functions of the host
    limits: dict[str, Text] = {}  # the numbers that its targets must say, and what each is
    absent: list[AbsentFile] = []  # families without a kernel on any of its targets, with a reason


class KernelFile(Struct, frozen=True, forbid_unknown_fields=True):
    """An entry of a backend's builds.yaml: a kernel that its toolchain compiles, and the instances that launch it."""

    source: Text
    define: dict[str, int]
    kilobytes: int  # ceilings, held by tools/gpu
    target: TargetName | list[TargetName] | None = None  # whose libraries hold it; none: {architecture} in its name
    architectures: list[Word] = []  # of such a name; all that the backend's targets have by default
    vary: dict[Word, dict[str, int]] = {}  # by architecture what it defines otherwise
    further: dict[Word, list[Word]] = {}  # by architecture its dtypes beside `dtypes`
    local: int = 0
    uncovered: int = 0
    wgmma: bool = True
    exchanged: bool = False  # the PTX of fp16 is bf16's with other names of the element type
    family: Word | None = None
    when: Selection | None = None
    also: dict[Word, Selection] | None = None  # further families whose instances launch it
    pipeline: Word | None = None  # whose instances alone launch it
    dtypes: tuple[Word, ...] = ("bf16", "fp16")  # a kernel each; any: one for all


class RefusalFile(Struct, frozen=True, forbid_unknown_fields=True):
    """Signatures that a target does not answer, and why, as a sentence."""

    name: Word
    when: Selection
    says: Text


TileValue = str | int | bool | list[str | int]


class TileTableFile(Struct, frozen=True, forbid_unknown_fields=True):
    """Rows of `when` and values of algorithm axes. A tile may say where it is the `best`; an emit says its `pipeline`,
    lists of values, and `receipts` or `without` where not every receipt has it."""

    tiles: Annotated[list[dict[str, TileValue]], Meta(min_length=1)]
    emits: Annotated[list[dict[str, TileValue]], Meta(min_length=1)]


class TileRuleFile(Struct, frozen=True, forbid_unknown_fields=True):
    """Pairs of tiles and emits that are no algorithm, and why. `when` speaks of all axes and of `pipeline`."""

    name: Word
    when: Selection
    says: Text
    tables: list[Word] = []  # all by default


class CkNameFile(Struct, frozen=True, forbid_unknown_fields=True):
    """CK's name: {axis}, {pipeline} and {table} in `text` are said in `words`, where there is one for the value."""

    text: Text
    words: dict[str, dict[str, str]] = {}
    by_pipeline: dict[str, dict[str, str]] = {}  # further words of the text, by pipeline
    of_pipeline: dict[str, dict[str, dict[str, str]]] = {}  # the words of one pipeline


class TileTablesFile(Struct, frozen=True, forbid_unknown_fields=True):
    family: Word
    axes: Annotated[list[AlgorithmAxisFile], Meta(min_length=1)]
    pipelines: Annotated[list[PipelineFile], Meta(min_length=1)]
    tables: dict[str, TileTableFile]
    ck_name: CkNameFile | None = None  # none: how CK names these kernels is not known here
    rules: list[TileRuleFile] = []


class TargetFile(Struct, frozen=True, forbid_unknown_fields=True):
    target: TargetName
    backend: Word
    about: Text
    index: Small
    order: Small
    arch: Word
    flags: list[Text]
    isa: Word | None = None
    cpuid: list[Text] = []
    extends: TargetName | None = None
    beside: TargetName | None = None  # another that answers what this one does not: native is both
    for_tests: bool = False  # neither native nor all means it: it is built when it is named
    engines: TargetName | None = None  # of another target, whose algorithms it has too
    algorithms: dict[str, list[Algorithm]] | None = None
    refuses: dict[str, list[RefusalFile]] = {}
    planned: bool = False  # listed and explained; no library holds its kernels yet
    tiles: list[Word] = []  # the tables of the rooms' tiles.yaml that are its own, the first that a family has
    limits: dict[str, Annotated[int, Meta(ge=1)]] = {}  # what its hardware gives; the backend says which numbers


class AdditionFile(Struct, frozen=True, forbid_unknown_fields=True):
    values: Text
    reason: Text
    where: Selection | None = None  # what of the receipt is widened; all by default

    @property
    def text(self) -> str:
        where = [self.where] if isinstance(self.where, str) else self.where
        return self.values if where is None else f"{self.values} where {' or '.join(where)}"


class ReceiptFamilyFile(Struct, frozen=True, forbid_unknown_fields=True):
    keep: Selection | None = None
    only: Selection | None = None
    add: list[AdditionFile] = []


class ReceiptFile(Struct, frozen=True, forbid_unknown_fields=True):
    receipt: Word
    about: Text
    number: Annotated[int, Meta(ge=0)] | None = None  # of those that users know by number
    extends: Word | None = None
    without: list[Word] = []
    features: Literal["fixed"] | None = (
        None  # a kernel for each combination; else engines ask at run time. Not inherited
    )
    only: Selection | None = None  # of every inherited family that has the axes it names
    size_budget: Text | None = None  # of its release library, whatever the targets; not inherited
    tuned: Text | None = None  # the table of measured choices that it pins, beside this file; not inherited
    families: dict[str, ReceiptFamilyFile] = {}
