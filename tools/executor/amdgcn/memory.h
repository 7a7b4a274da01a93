// Bytes that an instruction moves, and where a loaded value goes in its register.
#pragma once
#include <algorithm>

#include "operands.h"

namespace amdgcn {

enum class Extend { none, u8, i8, u16, i16, low_half, high_half };

/// A loaded word to a lane of a register: extended, or to one half of it.
inline void put_loaded(Wave& wave, int vgpr, int lane, u32 value, Extend extend, bool defined) {
  u32& to = wave.vgpr[vgpr][lane];
  switch (extend) {
    case Extend::none: to = value; break;
    case Extend::u8: to = value & 0xff; break;
    case Extend::i8: to = u32(i32(i8(value))); break;
    case Extend::u16: to = value & 0xffff; break;
    case Extend::i16: to = u32(i32(i16(value))); break;
    case Extend::low_half: to = (to & 0xffff0000) | (value & 0xffff); break;
    case Extend::high_half: to = (to & 0xffff) | value << 16; break;
  }
  wave.vgpr_defined[vgpr] = (wave.vgpr_defined[vgpr] & ~(1ull << lane)) | u64(defined) << lane;
}

inline int words(int bytes) { return (bytes + 3) / 4; }

template <class Body> inline void each_active(const Wave& wave, Body body) {
  const u64 exec = wave.exec();
  each_lane([&](int lane) {
    if (lane_of(exec, lane)) body(lane);
  });
}

}  // namespace amdgcn
