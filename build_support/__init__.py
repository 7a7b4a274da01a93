# SPDX-License-Identifier: MIT
"""Modules of SConstruct and SConscript. Nothing here knows an axis, and only `graph` knows SCons."""
