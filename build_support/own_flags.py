# SPDX-License-Identifier: MIT
"""cxxflags= and ldflags=: flags of whoever packages Tilekiln, for all of the host's code.

They stand before ours, so that what decides results, instruction sets and visibility stays ours. What is taken is
listed here: hardening, debug information, paths in it, warnings. Other flags may change results or what the objects
are; a vendored tree takes any.
"""

from __future__ import annotations

import os
import re
import shlex

from .options import UsageError

# Variables of the environment, by the options that take their flags.
COMPILED = ("CPPFLAGS", "CXXFLAGS")
LINKED = ("LDFLAGS",)
# Patterns of whole flags.
_STANDARD_LIBRARY = r"-stdlib=lib(std)?c\+\+"  # of clang
_CXX = (
    r"-g\S*", r"-O(?!fast)\S*", r"-W(?!l,|a,|p,)\S*", r"-w", r"-pipe", r"-m64",
    r"-[DU]_FORTIFY_SOURCE(=\d)?", r"-Wp(,-[DU]_FORTIFY_SOURCE(=\d)?)+", r"-(Wp,-)?D_GLIBCXX_ASSERTIONS(=1)?",
    r"-f(file|debug|macro)-prefix-map=\S+",
    r"-fstack-protector\S*", r"-fno-stack-protector", r"-fstack-clash-protection", r"-fcf-protection(=\w+)?",
    r"-mbranch-protection=\S+", r"-ftrivial-auto-var-init=\w+", r"-fzero-call-used-regs=\S+", r"-fhardened",
    r"-f(no-)?omit-frame-pointer", r"-m(no-)?omit-leaf-frame-pointer", r"-f(no-)?plt", r"-fPIC",
    r"-fdebug-types-section", r"-f(no-)?asynchronous-unwind-tables", r"-f(no-)?semantic-interposition",
    r"-fno-delete-null-pointer-checks", r"-fno-strict-(aliasing|overflow)", r"-fwrapv", r"-fexceptions",
    r"-fdiagnostics-\S+", r"-frecord-\S+", r"-mtune=\S+", _STANDARD_LIBRARY,
)  # fmt: skip
_LD = (
    r"-Wl(,-z,(no)?(relro|now|execstack|separate-code|defs)|,-z,pack-relative-relocs|,--(no-)?as-needed|,-O\d"
    r"|,--sort-common|,--hash-style=\w+|,--build-id(=\w+)?|,-Bsymbolic(-functions)?|,--no-undefined"
    r"|,--package-metadata=\S+|,--no-copy-dt-needed-entries)+",
    _STANDARD_LIBRARY,
)
_WHY = {
    r"-flto\S*|-fwhole-program": "objcopy keeps instruction sets apart, and cannot see into link-time code",
    r"-Ofast|-f\S*-math\S*|-f(no-)?signed-zeros|-f(fp-contract|excess-precision)=\S+|-mfpmath=\S+":
        "it changes results",
    r"-m(arch|cpu)=\S+|-m(no-)?(avx|sse|fma|f16c|amx)\S*": "target= chooses the instruction sets",
    r"-fsanitize\S*": "mode=sanitize and mode=thread are the builds with sanitizers",
    r"-std=\S+|-fno-(exceptions|rtti)|-fvisibility\S*": "the sources need their own",
}  # fmt: skip


def words(option: str, text: str) -> tuple[str, ...]:
    """The flags of cxxflags= or ldflags=. UsageError for one that is not taken."""
    try:
        listed = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"{option}={text!r} must be flags as a shell reads them: {error}.") from None
    taken = [*_CXX, *_LD] if option == "ldflags" else _CXX
    for word in listed:
        why = next((why for pattern, why in _WHY.items() if re.fullmatch(pattern, word)), "")
        if why or not any(re.fullmatch(pattern, word) for pattern in taken):
            what = why or "it is none of hardening, debug information, prefix maps, warnings, tuning and -stdlib="
            raise UsageError(
                f"{option}: {word} is not taken: {what}. Leave it out; a vendored tree (vendor=DIR) takes flags of "
                "make and CMake."
            )
    return tuple(listed)


def not_taken(given: dict[str, str]) -> str:
    """A sentence on flags of the environment where the options do not name them; "" where there is nothing to say."""
    left = [("cxxflags", name) for name in COMPILED if os.environ.get(name, "").strip() and not given["cxxflags"]]
    left += [("ldflags", name) for name in LINKED if os.environ.get(name, "").strip() and not given["ldflags"]]
    if not left:
        return ""
    say = " ".join(
        f'{option}="{" ".join(f"${name}" for of, name in left if of == option)}"'
        for option in dict.fromkeys(option for option, _ in left)
    )
    return f"{', '.join(name for _, name in left)} of the environment is not taken; to take it, say {say}"
