// Element types of tiles in shared memory, as TMA and wgmma see them.
//
// Invariants: kBytes is the size of an element. kAtom elements along k are 32 bytes, the depth of one wgmma. The
// instructions of wgmma.h and the conversions of ptx.h are of the one element that the build names, BuildElement; tiles
// of another are refused by mma.
#pragma once

namespace tilekiln::cuda {

struct bf16 { static constexpr int kBytes = 2, kAtom = 16; };
struct fp16 { static constexpr int kBytes = 2, kAtom = 16; };

#ifdef TILEKILN_FP16
using BuildElement = fp16;
#else
using BuildElement = bf16;
#endif

}  // namespace tilekiln::cuda
