# SPDX-License-Identifier: MIT
"""aiter.ops: attention, norms, activations, rotary embedding, quantisation, routing, matrix products."""
