# SPDX-License-Identifier: MIT
"""Limits.

Made by `python -m codegen operators --write` from the families' family.yaml and kernels/targets; change that.
"""
# fmt: off
# ruff: noqa: E501, E701, E702, RUF100

from __future__ import annotations

TILE_MOST = {'batched_gemm': {'tile_m': 256, 'tile_n': 256, 'tile_k': 1024}, 'flatmm': {'tile_m': 256, 'tile_n': 256, 'tile_k': 1024}, 'gemm': {'tile_m': 256, 'tile_n': 256, 'tile_k': 1024}, 'gemm_list': {'tile_m': 256, 'tile_n': 256, 'tile_k': 1024}, 'gemm_multi_d': {'tile_m': 256, 'tile_n': 256, 'tile_k': 1024}, 'gemm_quant': {'tile_m': 256, 'tile_n': 256, 'tile_k': 1024}, 'grouped_gemm': {'tile_m': 256, 'tile_n': 256, 'tile_k': 1024}}
LDS_BYTES = {'gfx1100': 65536, 'gfx1201': 65536, 'gfx1250': 327680, 'gfx90a': 65536, 'gfx942': 65536, 'gfx950': 163840}
GPU_PRODUCTS = {'cuda-sm80': {'batched_gemm': ('ampere', '128x128x16'), 'gemm': ('ampere', '128x128x16'), 'gemm_list': ('ampere', '128x128x16'), 'gemm_multi_d': ('ampere', '128x128x16')}, 'cuda-sm90a': {'batched_gemm': ('hopper', '128x256x32'), 'flatmm': ('words', '128x128x64'), 'gemm': ('hopper', '128x256x32'), 'gemm_list': ('hopper', '128x256x32'), 'gemm_multi_d': ('hopper', '128x256x32'), 'gemm_quant': ('quantised', '128x256x32'), 'grouped_gemm': ('groups', '128x256x32')}, 'hip-gfx1100': {'batched_gemm': ('waves', '128x128x16'), 'gemm': ('waves', '128x128x16'), 'gemm_multi_d': ('waves', '128x128x16')}, 'hip-gfx1201': {'batched_gemm': ('waves', '128x128x16'), 'gemm': ('waves', '128x128x16'), 'gemm_multi_d': ('waves', '128x128x16')}, 'hip-gfx90a': {'batched_gemm': ('waves', '128x128x16'), 'gemm': ('waves', '128x128x16'), 'gemm_multi_d': ('waves', '128x128x16')}, 'hip-gfx942': {'batched_gemm': ('waves', '128x128x16'), 'gemm': ('waves', '128x128x16'), 'gemm_multi_d': ('waves', '128x128x16')}, 'hip-gfx950': {'batched_gemm': ('waves', '128x128x16'), 'gemm': ('waves', '128x128x16'), 'gemm_multi_d': ('waves', '128x128x16')}}
GPU_TILES = {'cuda-sm80': [], 'cuda-sm90a': ['64x64x32', '64x128x32', '64x192x32', '64x256x32', '128x64x32', '128x128x32', '128x192x32', '128x256x32', '192x64x32', '192x128x32', '192x192x32', '256x64x32', '256x128x32', '64x64x64', '64x128x64', '128x128x64', '64x64x32 two', '128x64x32 two', '192x64x32 two', '64x64x64 two', '64x64x32 most', '64x128x32 most', '64x192x32 most', '64x64x64 most', '64x128x64 most', '64x64x32 interwave', '64x128x32 interwave', '64x192x32 interwave', '64x256x32 interwave', '64x128x64 interwave'], 'hip-gfx1100': [], 'hip-gfx1201': [], 'hip-gfx90a': [], 'hip-gfx942': [], 'hip-gfx950': []}
