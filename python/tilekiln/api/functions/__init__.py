# SPDX-License-Identifier: MIT
"""Score and mask functions of attention: written in Python, compiled just in time."""
