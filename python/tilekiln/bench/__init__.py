# SPDX-License-Identifier: MIT
"""`tilekiln bench OPERATOR`: any operator on arrays made from its declaration, checked and timed."""
