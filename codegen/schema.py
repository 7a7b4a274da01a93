"""What the YAML files may hold, as types. Everything else about them is checked where it is bound."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

# `description` is what an error says that a value must be.
Word = Annotated[str, Meta(pattern="^[a-z][a-z0-9_]*$", description="a name (small letters, digits and _)")]
TargetName = Annotated[str, Meta(pattern="^[a-z][a-z0-9_-]*$", description="a name (small letters, digits, _ and -)")]
Text = Annotated[str, Meta(min_length=1)]
Pair = Annotated[
    str, Meta(pattern="^[1-9][0-9]{0,2}x[1-9][0-9]{0,2}$", description="two numbers from 1 to 999, as 64x64")
]
Number = Annotated[int, Meta(ge=0)]
Small = Annotated[int, Meta(ge=0, le=255)]
Selection = Text | list[Text]  # one text, or a list of clauses that are OR-ed


class AxisFile(Struct, frozen=True, forbid_unknown_fields=True):
    name: Word
    about: str = ""  # of the main family if `values: main`, else it must be there
    values: Annotated[list[Word | Number], Meta(min_length=1)] | Literal["head_dims", "main"] | None = None
    word: str | list[Word] = ""


class RuleFile(Struct, frozen=True, forbid_unknown_fields=True):
    name: Word
    when: Selection
    says: Text


class PipelineFile(Struct, frozen=True, forbid_unknown_fields=True):
    name: Word
    about: Text


class EngineFile(Struct, frozen=True, forbid_unknown_fields=True):
    header: Text
    type: Text


class FamilyFile(Struct, frozen=True, forbid_unknown_fields=True):
    family: Word
    about: Text
    axes: Annotated[list[AxisFile], Meta(min_length=1)]
    pipelines: Annotated[list[PipelineFile], Meta(min_length=1)]
    engine: EngineFile | Word  # main, or the family whose engines hold this one too
    batch_by: list[Word]
    companion_of: Word | None = None
    head_dims: dict[str, list[Pair]] = {}
    base: Selection | None = None
    rules: list[RuleFile] = []


class AlgorithmFile(Struct, frozen=True, forbid_unknown_fields=True):
    pipeline: Word
    tile: Pair | Annotated[int, Meta(ge=1, le=999)]  # queries x keys, or rows
    when: Selection | None = None
    rank: Small = 0


class TargetFile(Struct, frozen=True, forbid_unknown_fields=True):
    target: TargetName
    about: Text
    index: Small
    order: Small
    isa: Word
    arch: Word
    flags: list[Text]
    cpuid: list[Text]
    kv_offsets: Literal[32, 64] = 64  # bits of an offset into a paged KV cache
    extends: TargetName | None = None
    algorithms: dict[str, list[AlgorithmFile]] | None = None


class AdditionFile(Struct, frozen=True, forbid_unknown_fields=True):
    values: Text
    reason: Text


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
    size_budget: Text | None = None  # of its release library, whatever the targets; not inherited
    families: dict[str, ReceiptFamilyFile] = {}
