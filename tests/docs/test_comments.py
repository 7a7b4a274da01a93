"""A comment names the thing: none begins with a relative clause (CONTRIBUTING.md, house rules)."""

import re
import subprocess

import pytest

from tests.conftest import ROOT

BEGINS = r"^\s*(//[/!]?|/\*+|#|\{#-?) ?(What|Where|Which|Whose|Who|Whoever|That of) "
COMMENT = re.compile(r"\s*(//|/\*|\* |#(?!include|if|el|endif|define|undef|pragma|error))")


def clauses() -> list[str]:
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


def test_no_comment_begins_with_a_relative_clause() -> None:
    wrong = "\n".join(clauses())
    assert not wrong, f"a comment names the thing; these begin with a relative clause:\n{wrong}"


@pytest.mark.parametrize("begins", ["// What", "# Where", "  /// Which", "/* Whose", "// That of", "//Who", "{#- What"])
def test_a_relative_clause_is_found(begins: str) -> None:
    assert re.match(BEGINS, f"{begins} runs a stage.")


@pytest.mark.parametrize(
    "text", ["// Whatever it is", "# Whether a stage runs", "// The stage: What", "run();  // What"]
)
def test_other_words_are_not(text: str) -> None:
    assert not re.match(BEGINS, text)
