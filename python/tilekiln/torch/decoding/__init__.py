# SPDX-License-Identifier: MIT
"""Decode steps of models on a GPU: fused layers, and a step as one CUDA graph."""
