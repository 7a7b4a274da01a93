# SPDX-License-Identifier: MIT
"""A comment or docstring begins with no relative clause; other words that lean on a neighbour tools/house.py counts."""

import ast
import re
import subprocess

import pytest

from tests.conftest import ROOT

CLAUSE = (
    "(What|Where|Which|Whose|Who|Whom|Whoever|That|How|Why"
    "|(Along|At|By|For|From|In|Of|On|To|Under|With) (how|what|where|which|whom|whose)) "
)
BEGINS = rf"^\s*(//[/!]?|/\*+|#|\{{#-?) ?{CLAUSE}"
COMMENT = re.compile(r"\s*(//|/\*|\* |#(?!include|if|el|endif|define|undef|pragma|error))")


def comments() -> list[str]:
    """FILE:LINE:TEXT of each comment of the tree that begins with a relative clause."""
    words = ["git", "grep", "--untracked", "-nE", BEGINS, "--", ":!*.md", ":!tests/codegen/golden"]
    found = []
    listed = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert listed.returncode in (0, 1), listed.stderr
    for hit in listed.stdout.splitlines():
        path, number, _ = hit.split(":", 2)
        before = (ROOT / path).read_text().splitlines()[: int(number) - 1]
        if not before or not COMMENT.match(before[-1]):  # else it goes on with a comment that begins above
            found.append(hit)
    return found


def docstrings(text: str) -> list[str]:
    """LINE:TEXT of each docstring of a Python source, variables' too, that begins with a relative clause."""
    found: list[str] = []
    if not re.search(rf"[\"']\s*{CLAUSE}", text):  # parsing all files takes seconds
        return found
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            said = node.value.value.strip()
            if re.match(CLAUSE, said):
                found.append(f"{node.lineno}: {said.splitlines()[0]}")
    return found


def test_no_comment_begins_with_a_relative_clause() -> None:
    wrong = "\n".join(comments())
    assert not wrong, f"a comment names the thing; these begin with a relative clause:\n{wrong}"


def test_no_docstring_begins_with_a_relative_clause() -> None:
    words = [
        "git",
        "ls-files",
        "--cached",
        "--others",
        "--exclude-standard",
        "*.py",
        "*.pyi",
        "SConstruct",
        "*SConscript",
    ]
    listed = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    there = [path for path in listed if (ROOT / path).is_file()]  # some may be removed and not yet committed so
    assert len(there) > 500
    wrong = "\n".join(f"{path}:{hit}" for path in there for hit in docstrings((ROOT / path).read_text()))
    assert not wrong, f"a docstring names the thing; these begin with a relative clause:\n{wrong}"


@pytest.mark.parametrize(
    "begins",
    ["// What", "# Where", "  /// Which", "/* Whose", "// That of", "//Who", "{#- What", "// How", "// By what"],
)
def test_a_relative_clause_is_found(begins: str) -> None:
    assert re.match(BEGINS, f"{begins} runs a stage.")


@pytest.mark.parametrize(
    "text",
    ["// Whatever it is", "# Whether a stage runs", "// The stage: What", "run();  // What", "// By whatever it is"],
)
def test_other_words_are_not(text: str) -> None:
    assert not re.match(BEGINS, text)


def test_docstrings_of_all_kinds_are_read() -> None:
    text = '''"""What it is."""
A = 1
"""How many there are."""
class B:
    """
    Which one.
    """
    async def c():
        "Of what it is made."
        return "What is returned"
'''
    assert docstrings(text) == ["1: What it is.", "3: How many there are.", "5: Which one.", "9: Of what it is made."]
    assert docstrings('"""Whether it is."""\nA = 1\n"""The one that is meant."""\n') == []
