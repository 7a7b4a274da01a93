// SPDX-License-Identifier: MIT
// Element types of tiles in shared memory, as TMA and wgmma see them.
//
// Invariants: kBytes is the size of an element. kAtom elements along k are 32 bytes, the depth of one wgmma. The
// instructions of wgmma.h and the conversions of ptx.h are of the one element that the build names, BuildElement; tiles
// of another are refused by mma.
#pragma once

namespace tilekiln::cuda {

struct bf16 { static constexpr int kBytes = 2, kAtom = 16; };
struct fp16 { static constexpr int kBytes = 2, kAtom = 16; };
struct e4m3 { static constexpr int kBytes = 1, kAtom = 32; };
struct e5m2 { static constexpr int kBytes = 1, kAtom = 32; };
struct s8 { static constexpr int kBytes = 1, kAtom = 32; };

// The 16-bit type of the build: its element, or what is made of elements of 8 bits.
#ifdef TILEKILN_FP16
using BuildHalf = fp16;
#else
using BuildHalf = bf16;
#endif
#if defined(TILEKILN_INT8)
using BuildElement = s8;
#elif defined(TILEKILN_FP8)
using BuildElement = e4m3;
#elif defined(TILEKILN_BF8)
using BuildElement = e5m2;
#else
using BuildElement = BuildHalf;
#endif
// The type of what is stored of sums.
#ifdef TILEKILN_FP32
using BuildOut = float;
#else
using BuildOut = BuildHalf;
#endif
// True where the build's PTX is also made one for fp16 (build_support/toolchains/exchange.py).
#ifdef TILEKILN_EXCHANGED
constexpr bool kExchanged = true;
#else
constexpr bool kExchanged = false;
#endif

}  // namespace tilekiln::cuda
