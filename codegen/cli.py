# SPDX-License-Identifier: MIT
"""`python -m codegen`: what the YAML means, for people. Commands are a table; each is a few lines here or a module."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from codegen.plan.plan import resolve
from codegen.schema.errors import CodegenError, nearest, warn
from codegen.schema.tree import take_kernel_sets, take_operators, tree
from codegen.tell import listing
from codegen.tell.options import Command, Given, Option, columns, help_of, parse, words_of

PROGRAM = "python -m codegen"
SELECTION = """A selection is axis=value[,value] and axis!=value[,value]: conditions side by side must all hold, the
word 'or' separates clauses of which one must hold. Booleans are yes and no. `python -m codegen axes` lists the axes.
family=NAME narrows to a family, with its companions."""
FORMATS = """csv is one table with a column for every axis, empty where a family has no such axis. json is one object,
and a list of them for several receipts. Of planned targets, whose kernels no library holds yet, all but names say so
and have a column ck_name, CK's own name of each instance."""

_TARGET = Option("--target", "T", "targets, comma separated, or native (this machine's best) or all", "native")
_FAMILY = Option("--family", "F", "only this family")
_WHERE = Option("--where", "S", "only instances that this selection allows")
_OPERATORS = Option(
    "--operators", "DIR", "operators from outside too: the folder of one or of several; comma separated"
)
_KERNEL_SETS = Option("--kernel-set", "FILE", "kernel sets (YAML) too, each a receipt of its name; comma separated")
_NAME = Option("--name", "P", "only instances whose name, or CK's, is like this pattern: * any text, ? a letter, [ab]")
_FORMAT = Option("--format", "F", "names, table, json or csv", "names", ("names", "table", "json", "csv"))


def _say(text: str, code: int = 0) -> int:
    if sys.stdout is None:
        raise CodegenError("there is no standard output to write the answer to")
    try:
        sys.stdout.write(text if text.endswith("\n") else text + "\n")
        sys.stdout.flush()
    except BrokenPipeError:  # `| head` has read enough
        _forget_output()
    except OSError as error:  # a full disk
        _forget_output()
        raise CodegenError(f"the answer cannot be written: {error.strerror}") from error
    return code


def _forget_output() -> None:
    """Sends stdout to /dev/null, so that the end of the process does not try again to write to a closed pipe."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def help_pages() -> list[tuple[str, str]]:
    """The overview and every command's help, with their titles."""
    return [(PROGRAM, overview()), *((command.name, help_of(command, PROGRAM)) for command in COMMANDS)]


def _targets(given: Given) -> list[str]:
    return words_of(given["--target"])


def _list(given: Given) -> int:
    receipts = list(dict.fromkeys(tree().receipt(word).name for word in given[0].split(",") if word))
    if not receipts:
        raise CodegenError(f"list: '{given[0]}' names no receipt")
    plans = [resolve(receipt, _targets(given), given["--where"], given["--family"]) for receipt in receipts]
    if given["--name"]:
        plans = [listing.like(plan, given["--name"]) for plan in plans]
        if not any(plan.instances for plan in plans):
            raise CodegenError(
                f"list: no instance's name is like '{given['--name']}'; quote it for the shell: '*d128*'"
            )
    planned = dict.fromkeys(name for plan in plans for name in plan.planned)
    if planned and given["--format"] == "names":
        warn(f"planned, no library holds these kernels yet: {', '.join(planned)}")
    if not given["--count"]:
        return _say(listing.FORMATS[given["--format"]](plans))
    if given["--format"] != "names":
        raise CodegenError(f"list takes --count or --format {given['--format']}, not both")
    return _say(str(sum(len(plan.instances) for plan in plans)))


def _receipts(given: Given) -> int:
    if given[0]:
        return _say(listing.receipt(tree(), given[0], _targets(given)))
    return _say(listing.receipts(tree(), _targets(given)))


def _explain(given: Given) -> int:
    from codegen.tell.explain import explain

    answer = explain(tree(), given[0], given[1], _targets(given))
    return _say(answer.text, 0 if answer.listed else 1)


def _check(given: Given) -> int:
    from codegen.tell import reach
    from codegen.tell.check import check

    if given["--reach"]:
        names = [word for word in given["--reach"].split(",") if word]
        listed = tree().all_receipts() if names == ["all"] else [tree().receipt(word) for word in names]
        return _say(reach.check(tree(), listed))
    return _say(check(tree()))


def _diff(given: Given) -> int:
    from codegen.tell.diff import diff, is_side

    words = given.arguments
    if not words[0] or not is_side(tree(), words[0]):
        return _diff_since(given, words[0] or "HEAD", words[1:])
    if len(words) != 2 or not words[1]:
        raise CodegenError(
            f"diff of receipts or manifests needs two, was {' '.join(filter(None, words))}; "
            f"what changed in one since a revision: diff HEAD {words[0]}"
        )
    for option in ("--where", "--stat"):
        if given[option]:
            raise CodegenError(f"diff {option} is of what changed since a revision, as HEAD, which comes first")
    targets = words_of(given["--target"] or "native")
    text, equal = diff(tree(), words[0], words[1], targets, bool(given["--names"]))
    return _say(text, 0 if equal else 1)


def _diff_since(given: Given, revision: str, receipts: Sequence[str]) -> int:
    from codegen.out.changes import Asked, diff

    if given["--names"]:
        raise CodegenError("diff --names is of two receipts or manifests: diff flash pytorch --names")
    options = []
    for name in (_OPERATORS.name, _KERNEL_SETS.name):
        if paths := [os.path.abspath(path) for path in words_of(given[name])]:
            options += [name, ",".join(paths)]
    targets = words_of(given["--target"] or "all")
    asked = Asked(revision, [name for name in receipts if name], targets, given["--where"], options)
    coloured = sys.stdout is not None and sys.stdout.isatty()
    text, code = diff(tree(), asked, bool(given["--stat"]), coloured)
    return _say(text, code) if text else code


def _verify(given: Given) -> int:
    from codegen.tell.verify import verify

    text, equal = verify(tree(), given[0])
    return _say(text, 0 if equal else 1)


def _validate(given: Given) -> int:
    from codegen.schema import ck_rules

    if given[0] == "-":
        text, source = sys.stdin.read(), "standard input"
    else:
        with open(given[0], encoding="utf-8") as file:
            text, source = file.read(), given[0]
    verdict = ck_rules.validate(ck_rules.read(text, source), ck_rules.rules(tree()))
    unused = f"On a CPU {', '.join(ck_rules.UNUSED)} have no effect: a tile is a block of the cache there."
    return _say("\n".join(filter(None, [str(verdict) or "all is well", unused])), 1 if verdict.errors else 0)


def _write(given: Given) -> int:
    from codegen.out.committed import stale, write

    if given["--operators"]:
        raise CodegenError(
            "write is of files that the tree holds; of operators from outside docs --write DIR writes pages, operators "
            "--stubs FILE types"
        )
    if not given["--check"]:
        return _say("\n".join(write(tree(), help_pages())) or "everything generated was up to date")
    if found := stale(tree(), help_pages()):
        return _say("\n".join([*(f"{path}: out of date" for path in found), "write them: python -m codegen write"]), 1)
    return _say("everything generated is up to date")


def _docs(given: Given) -> int:
    from codegen.tell.docs import FOLDER, check, write

    if given["--write"]:
        return _say(write(tree(), given["--write"], help_pages()))
    if given["--operators"]:
        raise CodegenError("docs --operators needs --write DIR: pages of operators from outside are none of this tree")
    check(tree(), FOLDER, help_pages())
    return _say(f"{FOLDER} is up to date")


def _operators(given: Given) -> int:
    from codegen.emit import files
    from codegen.emit.operators import header, stubs
    from codegen.emit.operators.written import check, write

    root = tree()
    made = [f"{one.document.shown}: a build makes {header.path(one)}" for one in root.outside_operators.values()]
    if given["--stubs"]:
        if not root.outside_operators:
            raise CodegenError("operators --stubs needs --operators DIR: type checkers know those of this tree")
        folder, name = os.path.split(given["--stubs"])
        text = stubs.outside_text(root.outside_operators).encode()
        changed = files.write_changed(folder or ".", {name: text})
        made.append(f"{given['--stubs']}: {'written' if changed else 'up to date'}")
    if given["--write"]:
        return _say("\n".join([write(root), *made]))
    check(root)
    return _say("\n".join(["everything made from operator.yaml is up to date", *made]))


def _sources(given: Given) -> int:
    from codegen.out.sources import tell

    if bool(given["--list"]) == bool(given["--write"]):
        raise CodegenError("sources needs --list or --write DIR, and not both")
    return _say(tell(given[0], _targets(given), given["--where"], given["--write"], given["--format"]))


_OF_GENERATE = {  # options of CK Tile's 01_fmha/generate.py (docs/how-to/generate-py.md)
    **dict.fromkeys(("--receipt", "-r"), "the receipt is the first word, list 2"),
    **dict.fromkeys(("--filter", "-f"), "write --name '*d128*fp16*', or --where 'hdim_q=128 dtype=fp16'"),
    **dict.fromkeys(("--api", "-a", "--direction", "-d"), "write --family fmha_fwd, fmha_bwd_dq_dk_dv, ..."),
    **dict.fromkeys(("--targets", "-t"), "write --target, as ck-gfx942 or hip-gfx942"),
    **dict.fromkeys(("--list_blobs", "-l"), "list itself shows them: list 2 > FILE"),
    **dict.fromkeys(("--output_dir", "-o"), "write sources 2 --write DIR"),
    **dict.fromkeys(("--mask", "-m"), "one kernel serves every mask: write --where mask=window"),
    "--optdim": "write --where 'hdim_q=64,128'",
}
_COMMANDS = (
    Command(
        "list",
        ("RECEIPT[,RECEIPT]",),
        "List the instances of receipts: one line each, the canonical name unless --format says otherwise.",
        f"{SELECTION}\n\n{FORMATS}",
        (_TARGET, _FAMILY, _WHERE, _NAME, _FORMAT, Option("--count", "", "only how many there are")),
        (
            ("list flash", "what `scons receipt=flash` builds on this machine"),
            ("list flash --target all --where 'dtype=bf16 hdim_q=128,192 mask!=none'", "a part of it, on every target"),
            ("list ck_default --where 'dtype=fp8bf16 or bias=alibi softcap=no' --format table", "as a table of axes"),
            ("list flash,fp8 --target all --count", "how many that is"),
            ("list 2 --target ck-gfx942 --name 'fmha_fwd_d128_fp16_*_nmask_*' --count", "by the names that CK gives"),
        ),
        _list,
        _OF_GENERATE,
    ),
    Command(
        "explain",
        ("RECEIPT", "'[FAMILY] axis=value ...'"),
        "Say whether a receipt lists a signature and why, which instances are nearest, and what builds it.",
        "Axes that are left out may have any value. The second argument may also be the name of an instance. "
        "Exit code 0 for yes, 1 for no.",
        (_TARGET,),
        (
            ("explain flash 'fmha_fwd dtype=bf16 hdim_q=128 hdim_v=128 bias=alibi softcap=yes'", "a rule forbids it"),
            ("explain flash 'dtype=fp16 hdim_q=64 sink=yes'", "no clause of the receipt has it; others do"),
        ),
        _explain,
    ),
    Command(
        "receipts",
        ("[RECEIPT]",),
        "List the receipts, or show one: its clauses, and how many instances each axis value has.",
        "",
        (_TARGET,),
        (("receipts", "all of them, with numbers and counts"), ("receipts flash", "what flash keeps, adds and counts")),
        _receipts,
    ),
    Command(
        "targets",
        (),
        "List the targets: flags, what the CPU must have, and whether this machine can run them.",
        "",
        (),
        (("targets", "all of them, slowest first"),),
        lambda given: _say(listing.targets(tree())),
    ),
    Command(
        "families",
        (),
        "List the kernel families.",
        "",
        (),
        (("families", "all of them"),),
        lambda given: _say(listing.families(tree())),
    ),
    Command(
        "axes",
        ("[FAMILY]",),
        "List the axes of a family (of every family) with their values, the head dims by dtype, and the rules.",
        "",
        (),
        (("axes", "of every family"), ("axes fmha_fwd", "of one")),
        lambda given: _say(listing.axes(tree(), given[0])),
    ),
    Command(
        "check",
        (),
        "Check every YAML file, every receipt on every target, and that every rule and clause matters.",
        "It also names the receipts that list more or less than docs/reference/receipts.md says, which is written by\n"
        "the command docs: what a change of axes, rules or head dims does to the receipts that there are.",
        (
            Option(
                "--reach",
                "RECEIPT[,RECEIPT]",
                "prove instead, of these or all, that each instance can be chosen by some legal problem, and that each "
                "legal problem has a kernel, on every target; what fails is listed",
            ),
        ),
        (
            ("check", "says what it checked, or file:line:column, what is wrong and the nearest right word"),
            ("check --reach flash", "nothing is built that nobody can call"),
        ),
        _check,
    ),
    Command(
        "diff",
        ("[REVISION]", "[RECEIPT ...]"),
        "Show what changed in generated text since a revision of git, or compare two receipts or manifests.",
        "Generated text is what receipts' libraries are made from and no tree holds: that of the revision, which its\n"
        "own generator writes, against that of the working tree, hashes zeroed. Without a revision it is HEAD;\n"
        "without receipts, some that list instances of every family; the word all is every receipt. Committed files\n"
        "that are generated too, such as C headers and reference pages, are in git diff.\n\n"
        "With two receipts, or two manifests (the .json beside a library), as A and B, these are compared, instance\n"
        "by instance.\n\n"
        "Exit code 0 when equal, 1 when they differ, 2 for an error.",
        (
            Option("--target", "T", "targets, comma separated, or native or all (default native of A and B, else all)"),
            Option("--where", "S", "since a revision: only instances that this selection allows"),
            Option("--stat", "", "since a revision: only how many lines changed in each file"),
            Option("--names", "", "of A and B: every name that only one has, not only counts by axis value"),
        ),
        (
            ("diff", "what the change in the working tree does to generated text"),
            ("diff main all --stat", "what a branch does to that of every receipt"),
            ("diff HEAD~3 gemm_default --target cpu-avx2 --where 'family=gemm dtype=bf16'", "a part of one"),
            ("diff flash pytorch", "what one user has and the other has not"),
            ("diff old/libtilekiln_flash.json build/avx512-release/lib/libtilekiln_flash.json", "two builds"),
            ("diff flash build/avx512-release/lib/libtilekiln_flash.json --target cpu-avx512", "is a build current?"),
        ),
        _diff,
    ),
    Command(
        "sources",
        ("RECEIPT",),
        "List or write the sources of a receipt's library: a tree that needs no Python, for a build system of yours.",
        "--format json says for every group of sources how it is compiled, and how the library is linked. "
        "--write leaves exactly the files that --list names, changes only what changed, and removes what is gone. "
        "`scons vendor=DIR` writes the same with a CMakeLists.txt and a Makefile.",
        (
            Option("--list", "", "name every file"),
            Option("--write", "DIR", "write them below DIR: a new folder, or one that this command has written"),
            _TARGET,
            _WHERE,
            Option("--format", "F", "of --list: names or json", "names", ("names", "json")),
        ),
        (
            ("sources fp32_min --list --target all", "paths, one a line"),
            ("sources fp32_min --list --target cpu-avx2,cpu-avx512 --format json", "with flags, for a program"),
        ),
        _sources,
    ),
    Command(
        "verify",
        ("LIBRARY",),
        "Make the plan of a library again from its manifest and say whether it is what it claims.",
        "Compared are the manifest inside and beside it, its table of instances, the plan, and the sources of this\n"
        "tree. Exit code 0 when all agree, 1 when something differs, which is named. Nothing of the library is run.",
        (),
        (("verify build/avx512-release/lib/libtilekiln_flash.so", "is it built from this tree?"),),
        _verify,
    ),
    Command(
        "validate",
        ("KERNEL",),
        "Say whether CK's dispatcher would accept a kernel that is written in its words.",
        "KERNEL is a JSON file, or - for standard input: an object of family, gfx_arch, data_type, mode, vlayout,\n"
        "hdim_q, hdim_v, bias, logits, dropout, paged_kv, page_size, pipeline, tile, wave, warp, block_per_cu and\n"
        "num_wave_groups; what is left out has the dispatcher's default. Exit code 0 if it is sound, warnings or not,\n"
        "1 for an error.",
        (),
        (("validate kernel.json", "names each rule that it breaks: what was, what must be"),),
        _validate,
    ),
    Command(
        "write",
        (),
        "Write every committed file that is generated: those of operators and docs, and golden files.",
        "Each that was not as it is now is named. What is measured is not generated, such as kernels' registers.",
        (Option("--check", "", "write nothing, name those that are out of date; exit code 1 if one is"),),
        (("write", "after every change of the YAML files or of the generator"),),
        _write,
    ),
    Command(
        "docs",
        (),
        "Write the reference pages of receipts, axes, rules, targets and commands.",
        "Without --write, say which pages of docs/reference are out of date; exit code 2 if one is.",
        (Option("--write", "DIR", "the folder of the pages"),),
        (("docs --write docs/reference", "after every change of the YAML files"),),
        _docs,
    ),
    Command(
        "operators",
        (),
        "Write the files of the tree that are made from operator.yaml, such as C headers.",
        "Without --write, say which of them are out of date; exit code 2 if one is.",
        (
            Option("--write", "", "write them"),
            Option("--stubs", "FILE", "also write there, for type checkers, the functions of operators from outside"),
        ),
        (("operators --write", "after every change of an operator.yaml"),),
        _operators,
    ),
)
_OF_RECEIPTS = ("list", "explain", "receipts", "diff", "sources", "verify")
COMMANDS = tuple(
    command._replace(options=(*command.options, _OPERATORS, *([_KERNEL_SETS] if command.name in _OF_RECEIPTS else [])))
    for command in _COMMANDS
)


def overview() -> str:
    """Text of `--help` without a command."""
    rows = [(command.name + "".join(f" {a}" for a in command.arguments), command.about) for command in COMMANDS]
    return (
        "\n\n".join(
            [
                f"usage: {PROGRAM} COMMAND [arguments]",
                "Tilekiln's generator: receipts (YAML) to plans of kernel instances. It reads the tree it stands in.",
                "commands:\n" + columns(rows),
                f"A receipt is named or numbered: flash or 2. {PROGRAM} COMMAND --help says more, with examples.\n"
                f"{PROGRAM} --version prints the version of the tree. Errors go to stderr, with exit code 2.",
            ]
        )
        + "\n"
    )


def _run(words: Sequence[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        asked = [command for command in COMMANDS if words[1:2] == [command.name]]
        return _say(help_of(asked[0], PROGRAM) if asked else overview())
    if words[0] == "--version":
        return _say(f"tilekiln {tree().version}")
    for command in COMMANDS:
        if command.name == words[0]:
            given = parse(command, words[1:], PROGRAM)
            if given is None:
                return _say(help_of(command, PROGRAM))
            take_operators(words_of(given["--operators"]))
            take_kernel_sets(words_of(given.options.get("--kernel-set", "")))
            return command.run(given)
    near = nearest(words[0], [command.name for command in COMMANDS])
    listed = ", ".join(command.name for command in COMMANDS)
    raise CodegenError(f"no command '{words[0]}'" + (f"; nearest: {near[0]}" if near else "") + f"\ncommands: {listed}")


def main(words: Sequence[str]) -> int:
    """Run one command line; the exit code."""
    try:
        return _run(list(words))
    except CodegenError as error:
        print(f"codegen: {error}", file=sys.stderr)
        return error.code
    except OSError as error:  # of a file it reads or writes
        print(f"codegen: {f'{error.filename}: ' if error.filename else ''}{error.strerror or error}", file=sys.stderr)
        return 2
