# SPDX-License-Identifier: MIT
"""Runs at the start of every Python of test_binding_sanitized.py: there the sanitized binding is the first."""

import os

import tilekiln

tilekiln.__path__.append(os.environ["TILEKILN_SANITIZED_BINDING"])
