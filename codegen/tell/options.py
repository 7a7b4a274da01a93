# SPDX-License-Identifier: MIT
"""A small command line: commands as a table, the same help on every Python, and errors that suggest.

argparse costs 6 ms of a listing's 70, words its help differently from one Python to the next, and suggests nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from codegen.schema.errors import CodegenError, nearest

WIDTH = 100


class Option(NamedTuple):
    name: str  # "--where"
    metavar: str  # "" for a switch
    about: str
    default: str = ""
    choices: tuple[str, ...] = ()


class Command(NamedTuple):
    name: str
    arguments: tuple[str, ...]  # "RECEIPT"; "[FAMILY]" may be left out; "[RECEIPT ...]" may be several, as the last
    about: str  # one line
    more: str  # paragraphs below it, may be ""
    options: tuple[Option, ...]
    examples: tuple[tuple[str, str], ...]  # command line after `python -m codegen`, and what it does
    run: Callable[[Given], int]
    elsewhere: Mapping[str, str] = {}  # options of another program that people have used before: what to write here


class Given:
    """Words given to a command: arguments by place, "" where left out; options by name, switches "" or "yes"."""

    def __init__(self, command: Command) -> None:
        self.command = command
        self.arguments: list[str] = []
        self.options = {option.name: option.default for option in command.options}

    def __getitem__(self, key: int | str) -> str:
        return self.options[key] if isinstance(key, str) else self.arguments[key]


def parse(command: Command, words: Sequence[str], program: str) -> Given | None:
    """None when help is asked for."""
    given, left = Given(command), list(words)
    known = {option.name: option for option in command.options}
    while left:
        word = left.pop(0)
        if word in ("-h", "--help"):
            return None
        if not word.startswith("-") or word == "-":
            given.arguments.append(word)
            continue
        name, equals, value = word.partition("=")
        option = known.get(name)
        if option is None:
            near = nearest(name, [*known, "--help"])
            if name in command.elsewhere:
                raise _usage(command, program, f"{command.name} has no option '{name}': {command.elsewhere[name]}")
            choice = f"nearest: {near[0]}" if near else f"options: {', '.join([*known, '--help'])}"
            raise _usage(command, program, f"{command.name} has no option '{name}'; {choice}")
        if not option.metavar:
            if equals:
                raise _usage(command, program, f"option {name} takes no value")
            value = "yes"
        elif not equals:
            if not left:
                raise _usage(command, program, f"option {name} needs a value: {name} {option.metavar}")
            value = left.pop(0)
        if option.choices and value not in option.choices:
            near = nearest(value, option.choices)
            choice = f"nearest: {near[0]}; " if near else ""
            raise CodegenError(f"{name} cannot be '{value}'; {choice}choices: {', '.join(option.choices)}")
        given.options[name] = value
    needed = [argument for argument in command.arguments if argument[0] != "["]
    if len(given.arguments) < len(needed):
        raise _usage(command, program, f"{command.name} needs {needed[len(given.arguments)]}")
    several = command.arguments[-1:] and command.arguments[-1].endswith("...]")
    if len(given.arguments) > len(command.arguments) and not several:
        extra = given.arguments[len(command.arguments)]
        quote = "; a selection of several words is one argument: quote it" if "=" in extra else ""
        raise _usage(command, program, f"{command.name} does not take '{extra}'{quote}")
    given.arguments += [""] * (len(command.arguments) - len(given.arguments))
    return given


def words_of(value: str) -> list[str]:
    """Those between commas."""
    return [word for word in value.split(",") if word]


def _usage(command: Command, program: str, message: str) -> CodegenError:
    return CodegenError(f"{message}\nusage: {usage(command, program)}")


def usage(command: Command, program: str) -> str:
    options = " [options]" if command.options else ""
    return f"{program} {command.name}{''.join(f' {a}' for a in command.arguments)}{options}"


def wrapped(text: str, indent: int, first: int = -1) -> str:
    """Words filled to WIDTH; every line but the first is indented, and the first has `first` columns used already."""
    lines, line = [], ""
    room = WIDTH - (indent if first < 0 else first)
    for word in text.split():
        if line and len(line) + 1 + len(word) > room:
            lines.append(line)
            line, room = word, WIDTH - indent
        else:
            line = f"{line} {word}" if line else word
    return ("\n" + " " * indent).join([*lines, line])


def columns(rows: Sequence[tuple[str, str]], indent: int = 2) -> str:
    left = max(len(first) for first, _ in rows)
    return "\n".join(f"{' ' * indent}{first:<{left}}  {wrapped(text, indent + left + 2)}" for first, text in rows)


def help_of(command: Command, program: str) -> str:
    parts = [f"usage: {usage(command, program)}", wrapped(command.about, 0)]
    parts += [
        wrapped(paragraph, 0) if paragraph[0] != " " else paragraph
        for paragraph in command.more.split("\n\n")
        if paragraph
    ]
    if command.options:
        rows = []
        for option in command.options:
            default = f" (default {option.default})" if option.default else ""
            rows.append((f"{option.name} {option.metavar}".rstrip(), option.about + default))
        parts.append("options:\n" + columns([*rows, ("--help", "this text")]))
    parts.append("examples:\n" + "\n".join(f"  # {about}\n  {program} {line}" for line, about in command.examples))
    return "\n\n".join(parts) + "\n"
