# SPDX-License-Identifier: MIT
"""aiter.utility: dtypes."""
