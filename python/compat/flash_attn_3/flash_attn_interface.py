# SPDX-License-Identifier: MIT
"""flash_attn_interface by Tilekiln: importing flash_attn_3 puts tilekiln.compat.flash_attn_3's in this one's place."""

import flash_attn_3  # noqa: F401
