# SPDX-License-Identifier: MIT
"""Tables and types of every operator, made by `python -m codegen write`; `tables` reads `operators.json`."""
