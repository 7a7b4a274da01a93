# SPDX-License-Identifier: MIT
"""The field table: rows of tools/field.yaml timed beside their peers, on the CPU and on a GPU."""
