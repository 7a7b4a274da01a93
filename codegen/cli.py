"""`python -m codegen`: the plan for people."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from codegen.errors import CodegenError
from codegen.plan import resolve


def main(arguments: Sequence[str]) -> int:
    try:
        if len(arguments) != 2 or arguments[0] != "list":
            raise CodegenError("usage: python -m codegen list RECEIPT")
        print("\n".join(instance.name for instance in resolve(arguments[1], ["native"]).instances))
        return 0
    except CodegenError as error:
        print(error, file=sys.stderr)
        return error.code
