# SPDX-License-Identifier: MIT
"""Parsing of options, shared by the commands of `tilekiln`."""

from __future__ import annotations

import argparse


def count(text: str) -> int:
    """The type of an option that is a number of 1 or more."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"was {text!r}, must be an integer of 1 or more")
    return int(text)
