# SPDX-License-Identifier: MIT
"""Names of upstream's packages that compatibility modules have not, with the reasons that those give.

They are python/compat/upstream.yaml's; wheels have no YAML, so python/tilekiln/_generated/absent.json is made of it.
"""

from __future__ import annotations

import json
import os

import yaml

SOURCE = "python/compat/upstream.yaml"
PATH = "python/tilekiln/_generated/absent.json"


def contents(root: str) -> dict[str, str]:
    """Text by path from the root of the tree; nothing in a tree without the compatibility modules' list."""
    source = os.path.join(root, SOURCE)
    if not os.path.isfile(source):
        return {}
    with open(source, encoding="utf-8") as file:
        listed = yaml.safe_load(file)
    reasons = {
        name: one["absent"]
        for package in listed.values()
        for name, one in package["modules"].items()
        if one.get("absent")
    }
    made = []
    for name, of in reasons.items():
        lines = ",\n".join(f"  {json.dumps(reason)}: {json.dumps(names)}" for reason, names in of.items())
        made.append(f" {json.dumps(name)}: {{\n{lines}\n }}")
    return {PATH: "{\n" + ",\n".join(made) + "\n}\n"}
