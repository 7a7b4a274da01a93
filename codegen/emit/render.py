# SPDX-License-Identifier: MIT
"""Plans to sources, through jinja2. jinja2 is imported when something is rendered, never to list."""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from codegen.emit import files, includes
from codegen.emit.generated import Engine, Generated, Source, merged
from codegen.emit.kernels import of_instances, of_plan
from codegen.emit.manifest import deflated, manifest, pinned, source_hashes
from codegen.emit.operators import header, python_table
from codegen.emit.operators import render as operators
from codegen.emit.tables import AlgorithmTables, FamilyTable, RowSource, TargetTable, initialisers
from codegen.plan import held
from codegen.plan.plan import Instance, Plan, algorithms_of
from codegen.schema import axes as axes_module
from codegen.schema import tuned
from codegen.schema.axes import CODES, INTEGERS, Axis, Family
from codegen.schema.errors import CodegenError
from codegen.schema.operators import Operator
from codegen.schema.targets import check_buildable
from codegen.schema.tree import Tree

if TYPE_CHECKING:
    import jinja2


def _c_type(axis: Axis) -> str:
    return {axes_module.BOOLEAN: "bool", axes_module.INTEGER: "unsigned"}.get(axis.kind, _camel(axis.name))


def _camel(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))


def _asked(every: Iterable[Operator], family: Family) -> dict[str, list[str]]:
    """By axis and code the arguments that ask for a value, as literals of C++, where their names are not the axis's."""
    found: dict[str, list[str]] = {}
    for operator in every:
        if operator.file.stages[operator.main] != family.name:
            continue
        for name, said in operator.file.signature.items():
            axis = family.axis_of[name]
            by_value = {"yes": said} if isinstance(said, str) and axis.kind == axes_module.BOOLEAN else said
            if isinstance(by_value, str):
                continue
            by = [by_value.get(value) for value in axis.values]
            words = [[one] if isinstance(one, str) else one if isinstance(one, list) else [] for one in by]
            other = [[] if {*listed} <= {name, "host", "form"} else listed for listed in words]
            if any(other):
                found[name] = [c_string(" or ".join(listed)) if listed else "nullptr" for listed in other]
    return found


def _enumerator(value: str) -> str:
    """A number is no C++ name: 16 becomes _16."""
    return f"_{value}" if value.isdecimal() else value


def c_string(text: str) -> str:
    """A C++ string literal of it, in UTF-8."""
    named = {'"': '\\"', "\\": "\\\\"}
    inside = (named.get(c, c if c >= " " and c != "\x7f" else f"\\{ord(c):03o}") for c in text)
    return f'"{"".join(inside)}"'


def c_lines(text: str) -> str:
    """A C++ string literal of several lines, one a line."""
    return "\n".join(f"    {c_string(line)}" for line in text.splitlines(keepends=True))


def environment(folder: str) -> jinja2.Environment:
    """The templates below `folder`, each compiled once."""
    import jinja2

    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        auto_reload=False,
        autoescape=False,
    )


class Renderer:
    """The templates of a tree's kernels."""

    def __init__(self, root: Tree) -> None:
        self.tree = root
        self.environment = environment(os.path.join(root.root, "kernels"))
        self.environment.filters.update(
            camel=_camel,
            quoted=c_string,
            dtype_code=operators.dtype_code,
            listed=operators.listed,
            quoted_lines=c_lines,
            ctype=_c_type,
            enumerator=_enumerator,
        )

    def template(self, name: str) -> jinja2.Template:
        return self.environment.get_template(name)

    def text(self, name: str, **context: Any) -> bytes:
        return self.template(name).render(context).encode()


@functools.lru_cache(1)
def _of_tree(root: Tree) -> tuple[Renderer, dict[str, bytes]]:
    """Templates and units of host code of the last tree: templates take longer to compile than to fill."""
    return Renderer(root), held.units(root)


def _row(instance: Instance) -> str:
    codes, integers = instance.packed & CODES, instance.packed >> INTEGERS
    return f"{{{codes:#x}u, {integers:#x}u, {instance.how.number}, {instance.target.index}}}"


def _row_sources(plan: Plan) -> tuple[list[RowSource], list[tuple[int, int]]]:
    """The sources of rows of a plan, and for each instance its (source, index)."""
    masks = {
        name: sum(axis.field << axis.shift for axis in map(family.axis_of.__getitem__, family.file.source_by))
        for name, family in plan.tree.families.items()
    }
    grouped: dict[tuple[str, str, int, str], list[Instance]] = {}
    numbers: dict[tuple[str, str, int, str], int] = {}
    refs = []
    for instance in plan.instances:
        family = instance.family_
        apart = _apart(instance) if family.axes_apart else ""
        key = (family.name, instance.target.name, instance.packed & masks[family.name], apart)
        members = grouped.setdefault(key, [])
        refs.append((numbers.setdefault(key, len(numbers)), len(members)))
        members.append(instance)
    return [_row_source(members) for members in grouped.values()], refs


def _apart(instance: Instance) -> str:
    """The words of the values whose rows have sources of their own."""
    codes = ((axis, axis.code_in(instance.packed)) for axis in instance.family_.axes_apart)
    return "".join(axis.words[code] for axis, code in codes if code in axis.apart)


def _row_source(members: list[Instance]) -> RowSource:
    """Named by its key and its content, so that receipts with equal rows share the source."""
    first = members[0]
    family = first.family_
    words = [axis.words[axis.code_in(first.packed)] for axis in map(family.axis_of.__getitem__, family.file.source_by)]
    content = "\n".join(f"{instance.name} {_row(instance)}" for instance in members)
    key = (
        "".join([*words, _apart(first)]).strip("_") + "-" + hashlib.blake2b(content.encode(), digest_size=6).hexdigest()
    )
    symbol = f"{family.name}_{first.target.word}_{key.replace('-', '_')}"
    return RowSource(f"rows/{family.name}/{first.target.name}/{key}.cpp", symbol, members)


def _engines(plan: Plan) -> dict[tuple[str, str, str], Engine]:
    """By (target, family, pipeline), those that an instance uses."""
    found: dict[tuple[str, str, str], Engine] = {}
    for instance in plan.instances:
        key = (instance.target.name, instance.family_.name, instance.how.pipeline)
        if key not in found:
            pipeline = instance.how.pipeline
            owner = instance.family_.owner(pipeline)
            compiled = plan.tree.target(instance.target.engines or instance.target.name)
            symbol = f"tilekiln_{compiled.word}_{owner.name}_{pipeline}"
            source = f"{owner.room}/{compiled.backend}/{pipeline}.cpp"
            found[key] = Engine(source, compiled.name, symbol, (plan.receipt,), owner.shares(pipeline))
    return found


def _fixed(render: Renderer, plan: Plan) -> tuple[list[Engine], list[bytes], list[int]]:
    """Of a receipt with `features: fixed` a kernel for each combination on each target: with its source, and by
    instance which it is."""
    known: dict[tuple[str, str, str, int, str], int] = {}
    engines, texts, numbers = list[Engine](), list[bytes](), list[int]()
    names: list[list[str]] = []
    held = zip(plan.instances, of_instances(plan), strict=True) if plan.source.fixed else []
    for instance, kernels in held:
        family, codes, pipeline = instance.family_, instance.packed & CODES, instance.how.pipeline
        compiled = plan.tree.target(instance.target.engines or instance.target.name)
        if pipeline not in family.file.fixed.get(compiled.backend, []):
            what = f"{family.name} has no kernels of fixed features of {pipeline} for {instance.target.name}"
            raise CodegenError(f"receipt {plan.receipt}: features: was fixed, but {what}")
        own = kernels[0].name if kernels else ""  # of a backend with kernels: the one whose features are fixed
        key = (compiled.name, family.name, pipeline, codes, own)
        if key not in known:
            known[key] = len(engines)
            path = f"fixed/{family.name}/{compiled.name}/{pipeline}-{codes:x}{own and f'-{own}'}.cpp"
            symbol = f"tilekiln_{compiled.word}_{family.name}_{pipeline}_{codes:x}{own and '_'}{own.replace('-', '_')}"
            engine = Engine(path, compiled.name, symbol, (plan.receipt,), made=True)
            shown = [axis for axis in family.axes if axis.kind != axes_module.INTEGER]
            text = " ".join(f"{axis.name}={axis.values[axis.code_in(instance.packed)]}" for axis in shown)
            source = f"{family.room}/{compiled.backend}/{pipeline}_fixed.cpp"
            of = {"pipeline": f"tilekiln_{compiled.word}_{family.name}_{pipeline}", "image": f"{symbol}_image"}
            context = {
                "engine": engine,
                "family": family,
                "codes": codes,
                "text": text,
                "source": source,
                "of": of if own else None,
            }
            texts.append(render.text("runtime/fixed.cpp.jinja", **context))
            engines.append(engine)
            names.append([])
        names[known[key]].append(instance.name)
        numbers.append(known[key])
    engines = [msgspec.structs.replace(one, instances=tuple(own)) for one, own in zip(engines, names, strict=True)]
    return engines, texts, numbers


def _images(plan: Plan, engines: Sequence[Engine], numbers: Sequence[int]) -> list[Engine]:
    """Kernels launched by engines of fixed features, of backends whose toolchain compiles kernels."""
    found: dict[str, Engine] = {}
    for instance, kernels, number in (
        zip(plan.instances, of_instances(plan), numbers, strict=True) if plan.source.fixed else []
    ):
        engine = engines[number]
        if kernels and engine.symbol not in found:
            kernel, codes = kernels[0], instance.packed & CODES
            found[engine.symbol] = Engine(
                kernel.file.source,
                kernel.target,
                f"{engine.symbol}_image",
                engine.receipts,
                instances=engine.instances,
                kernel=kernel.name,
                codes=codes,
            )
    return list(found.values())


def _kernels(plan: Plan) -> dict[str, Engine]:
    if plan.source.fixed:
        return {}
    return {
        symbol: Engine(kernel.file.source, kernel.target, symbol, (plan.receipt,), kernel=kernel.name)
        for symbol, kernel in of_plan(plan).items()
    }


def _table(
    render: Renderer,
    plan: Plan,
    row_sources: list[RowSource],
    refs: list[tuple[int, int]],
    fixed: list[str],
    info: dict[str, Any],
) -> bytes:
    """`fixed`: by instance its kernel's symbol; empty unless the receipt asks for such kernels."""
    families = _families(plan)
    engines = _engines(plan)
    hows = AlgorithmTables()
    targets = [
        TargetTable(
            target,
            [
                (family.name, [_address(engines.get((target.name, family.name, pipe))) for pipe in family.pipelines])
                for family in families
            ],
            [hows.entry(family, algorithms_of(plan.tree, plan.source, target, family)) for family in families],
            any(plan.tree.refusals(target, family) for family in families),
        )
        for target in plan.target_list
    ]
    # A backend with kernels of its own says what its engines are.
    own = {engine.target: plan.tree.target(engine.target).backend_.engine for engine in engines.values()}
    types = {
        engine.symbol: (own[engine.target] or plan.tree.families[name].engine).type
        for (_, name, _), engine in engines.items()
    }
    types |= {
        symbol: (i.target.backend_.engine or i.family_.engine).type
        for symbol, i in zip(fixed, plan.instances, strict=False)
        if symbol not in types
    }
    return render.text(
        "runtime/table.cpp.jinja",
        plan=plan,
        families=families,
        tables=[FamilyTable(plan, family) for family in families],
        headers=list(
            dict.fromkeys(kind.header for kind in (*(family.engine for family in families), *own.values()) if kind)
        ),
        engines=types,
        sources=row_sources,
        targets=targets,
        algorithm_numbers=list(hows.numbers),
        size_ranges=list(hows.ranges),
        size_clauses=list(hows.clauses),
        algorithm_lists=list(hows.lists),
        tuned=tuned.pinned(pinned(plan)),
        fixed=initialisers((f"&{symbol}" for symbol in fixed), 4),
        plan_refs=initialisers(f"{{{source},{index}}}" for source, index in refs),
        **info,
    )


def _address(engine: Engine | None) -> str:
    return f"&{engine.symbol}" if engine else "nullptr"


def _families(plan: Plan) -> list[Family]:
    return list(dict.fromkeys(instance.family_ for instance in plan.instances))


class Rendered(NamedTuple):
    """The sources of some plans: `contents` by path, and what `generate` answers and remembers of them."""

    contents: dict[str, bytes]
    ledgers: dict[str, files.Ledger]
    generated: Generated


def generate(
    plans: Sequence[Plan],
    out_dir: str | os.PathLike[str],
    build_info: Mapping[str, Any],
    write: bool = True,
    inputs: str = "",
    headers: str = "",
) -> Generated:
    """Write the sources of some plans under `out_dir`, sharing what they have in common.

    Files that did not change keep their time; files that no receipt of this out_dir needs any more go. build_info has
    version, mode, cxx, cxx_version and flags. With write=False nothing is touched; `written` and `removed` say what
    would be.
    `inputs` is remembered for codegen.emit.inputs.prepare. `headers`: a folder, from out_dir, for the headers that
    follow from the tree alone; without it they lie in out_dir too.
    """
    made = render(plans, build_info, inputs, headers)
    changes = files.update(os.fspath(out_dir), made.contents, made.ledgers, write=write)
    made.generated.written, made.generated.removed = changes
    return made.generated


def render(plans: Sequence[Plan], build_info: Mapping[str, Any], inputs: str = "", headers: str = "") -> Rendered:
    """Contents of all files that `generate` writes."""
    plans = list({plan.receipt: plan for plan in plans}.values())
    for plan in plans:
        check_buildable(plan.target_list)
    renderer, units = _of_tree(plans[0].tree)
    hashes = source_hashes(plans[0].tree.places)
    contents: dict[str, bytes] = {}
    digests: dict[str, str] = {}
    ledgers: dict[str, files.Ledger] = {}
    parts = []

    def add(path: str, data: bytes) -> str:
        contents[path], digests[path] = data, files.digest(data)
        return path

    def source_of(path: str, kind: str, plan: Plan, instances: tuple[str, ...] = ()) -> Source:
        return Source(path, digests[path], kind, (plan.receipt,), instances, tuple(includes.named(contents[path])))

    for plan in plans:
        families, holds = _families(plan), held.operators(plan)
        # Headers of every family: kernels/runtime is compiled for receipts that lack one just as well.
        place = f"{headers}/kernels/generated" if headers else "kernels/generated"
        family_headers = {f"{place}/{name}.h": family for name, family in plan.tree.families.items()}
        operator_headers = []
        for path, family in family_headers.items():
            if path not in contents:
                plain = [axis for axis in family.axes if axis.kind != axes_module.INTEGER]
                asked = _asked(plan.tree.operators.values(), family)
                add(path, renderer.text("runtime/key.h.jinja", family=family, plain=plain, asked=asked))
        for path, text in units.items():
            operator_headers.append(f"{headers}/{path}" if headers else path)
            if operator_headers[-1] not in contents:
                add(operator_headers[-1], text)
        for name, operator in plan.tree.operators.items():
            if operator.outside:  # those of the tree are committed
                operator_headers.append(add(f"include/{header.path(operator)}", header.text(operator).encode()))
            checked = operators.context(operator, plan.tree.operators)
            known = {
                "operator": checked,
                "operator_table": operators.table(operator),
                "operator_entries": {**checked, "on_devices": plan.tree.is_on_devices(operator.file.stages)},
            }
            for file, context in known.items():
                path = f"{place}/operators/{name}{file.removeprefix('operator')}.h"
                if path not in contents:
                    add(path, renderer.text(f"runtime/{file}.h.jinja", **context))
                operator_headers.append(path)
        row_sources, refs = _row_sources(plan)
        sources = []
        for source in row_sources:
            if source.path not in contents:
                add(source.path, _rows(renderer, source))
            names_ = tuple(i.name for i in source.instances)
            sources.append(source_of(source.path, "rows", plan, names_))
        text = manifest(plan, families, build_info, held.sources(plan, hashes), python_table.of_outside(plan))
        info = {"version": build_info["version"]}
        add(f"{plan.receipt}/manifest.json", text)
        kernels, texts, numbers = _fixed(renderer, plan)
        for kernel, written in zip(kernels, texts, strict=True):
            add(kernel.source, written)
        fixed = [kernels[number].symbol for number in numbers]
        table = add(f"{plan.receipt}/table.cpp", _table(renderer, plan, row_sources, refs, fixed, info))
        code = renderer.text("runtime/manifest.cpp.jinja", receipt=plan.receipt, manifest=_literal(deflated(text)))
        sources.append(source_of(table, "table", plan))
        listed = renderer.text("runtime/operators.cpp.jinja", operators=holds)
        operators_path = add(f"{plan.receipt}/operators.cpp", listed)
        sources.append(source_of(operators_path, "operators", plan))
        code_path = add(f"{plan.receipt}/manifest.cpp", code)
        sources.append(source_of(code_path, "manifest", plan))
        part = Generated(
            sources,
            [*family_headers, *operator_headers],
            [
                *({e.symbol: e for e in _engines(plan).values()} | _kernels(plan)).values(),
                *kernels,
                *_images(plan, kernels, numbers),
            ],
            host={plan.receipt: held.host(holds, [target.backend for target in plan.target_list])},
        )
        if plan.source.size_budget:
            part.size_budgets[plan.receipt] = plan.source.size_budget
        used = [*part.headers, *(source.path for source in sources), f"{plan.receipt}/manifest.json"]
        used += [kernel.source for kernel in kernels]
        result = msgspec.Raw(msgspec.json.encode(part))
        ledgers[plan.receipt] = files.Ledger(inputs, {path: digests[path] for path in used}, result)
        parts.append(part)
    return Rendered(contents, ledgers, merged(parts))


def _literal(data: bytes) -> str:
    """Bytes as C string literals: compiled in a tenth of the time of a list of numbers."""
    escapes = [f"\\{byte:03o}" for byte in range(256)]
    lines = (data[at : at + 32] for at in range(0, len(data), 32))
    return "\n".join(f'  "{"".join(map(escapes.__getitem__, line))}"' for line in lines)


def _rows(render: Renderer, source: RowSource) -> bytes:
    first = source.instances[0]
    return render.text(
        "runtime/rows.cpp.jinja",
        family=first.family_.name,
        target=first.target.name,
        symbol=source.symbol,
        count=source.size,
        rows=[(instance.name, _row(instance)) for instance in source.instances],
    )
