# SPDX-License-Identifier: MIT
"""Operators: what callers call. One operator.yaml declares one; everything that says its arguments is made from it."""
