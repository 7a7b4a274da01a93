// SPDX-License-Identifier: MIT
// The engine of gemm by tiles for one target: compiled once with the target's flags and -DTILEKILN_TARGET=<its name>, every instance of
// that target is a row over it. What it has no function for, its target does not list.
#include "kernels/gemm/cpu/amx_groups.h"

#define TILEKILN_JOIN(a, b, c) a##b##c
#define TILEKILN_ENGINE(target) TILEKILN_JOIN(tilekiln_, target, _gemm_amx)

// Functions in the order of Dtype. Rows of a are packed as they lie, whatever their type.
extern "C" const tilekiln::matrix::Engine TILEKILN_ENGINE(TILEKILN_TARGET) = {
    {nullptr, tilekiln::cpu::run_tiles<tilekiln::cpu::Fp16Tiles, tilekiln::cpu::fp16>,
     tilekiln::cpu::run_tiles<tilekiln::cpu::Bf16Tiles, tilekiln::cpu::bf16>,
     tilekiln::cpu::run_tiles<tilekiln::cpu::Int8Tiles, tilekiln::cpu::int8>,
     tilekiln::cpu::run_tiles<tilekiln::cpu::Bf16Tiles, tilekiln::cpu::fp8>,
     tilekiln::cpu::run_tiles<tilekiln::cpu::Bf16Tiles, tilekiln::cpu::bf8>},
    {},
    tilekiln::cpu::add_unit,
    tilekiln::cpu::tiled_groups,
    tilekiln::cpu::quantise_row,
    tilekiln::cpu::quantise_out,
    tilekiln::cpu::combine,
    sizeof(tilekiln::cpu::TileScratch),
    tilekiln::cpu::kMostTileColumns,
    nullptr,
    0,
    tilekiln::cpu::kBlockRows,
    {tilekiln::cpu::run_tiles<tilekiln::cpu::FloatTiles<3>, tilekiln::cpu::By3>,
     tilekiln::cpu::run_tiles<tilekiln::cpu::FloatTiles<6>, tilekiln::cpu::By6>},
    {{},
     {},
     tilekiln::cpu::kPackColumns<tilekiln::cpu::bf16>,
     tilekiln::cpu::kPackColumns<tilekiln::cpu::int8>,
     tilekiln::cpu::kPackColumns<tilekiln::cpu::fp8>,
     tilekiln::cpu::kPackColumns<tilekiln::cpu::bf8>}};
