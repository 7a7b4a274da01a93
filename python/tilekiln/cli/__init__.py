# SPDX-License-Identifier: MIT
"""Commands of `tilekiln` besides `bench` and `tune`."""
