// An instance as the library holds it: one constexpr row. No std header, no function: a thousand rows compile in the
// time of one.
#pragma once

namespace tilekiln {

struct Row {
  unsigned long long signature;   // packed as the family's generated header says (tilekiln/generated/<family>.h)
  unsigned short tile_q, tile_k;  // queries and keys of a tile, as the family uses them; tile_k 0: a tile of rows only
  unsigned char target;           // index of the target in the fixed order of kernels/targets (Target::index)
  unsigned char pipeline;         // index of the pipeline in the family
  unsigned char rank;             // lower is preferred among instances that fit equally well
  unsigned char kv_load;          // KvLoad: which caches its loads reach (tilekiln/runtime/kv_load.h); 0 on targets without a limit
};

}  // namespace tilekiln
