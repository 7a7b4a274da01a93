// SPDX-License-Identifier: MIT
// Bytes that an instruction moves, and where a loaded value goes in its register.
#pragma once
#include <algorithm>

#include "operands.h"

namespace amdgcn {

enum class Extend { none, u8, i8, u16, i16, low_half, high_half };

/// A loaded word, extended, or to one half of a register.
inline void put_word(u32& to, u32 value, Extend extend) {
  switch (extend) {
    case Extend::none: to = value; break;
    case Extend::u8: to = value & 0xff; break;
    case Extend::i8: to = u32(i32(i8(value))); break;
    case Extend::u16: to = value & 0xffff; break;
    case Extend::i16: to = u32(i32(i16(value))); break;
    case Extend::low_half: to = (to & 0xffff0000) | (value & 0xffff); break;
    case Extend::high_half: to = (to & 0xffff) | value << 16; break;
  }
}

inline void put_loaded(Wave& wave, int vgpr, int lane, u32 value, Extend extend, bool defined) {
  put_word(wave.vgpr[vgpr][lane], value, extend);
  wave.vgpr_defined[vgpr] = (wave.vgpr_defined[vgpr] & ~(1ull << lane)) | u64(defined) << lane;
}

/// Loads of lanes to the registers from one on: values at once, which of them are defined at the end.
class Loaded {
 public:
  Loaded(Wave& wave, int vgpr, int count, Extend extend) : wave(wave), vgpr(vgpr), count(count), extend(extend) {}
  ~Loaded() {
    const u64 exec = wave.exec();
    for (int i = 0; i < count; i++) {
      u64& defined = wave.vgpr_defined[vgpr + i];
      defined = (defined & ~exec) | (exec & ~undefined[i]);
    }
  }
  void put(int word, int lane, u32 value, bool defined) {
    put_word(wave.vgpr[vgpr + word][lane], value, extend);
    undefined[word] |= u64(!defined) << lane;
  }

 private:
  Wave& wave;
  int vgpr, count;
  Extend extend;
  u64 undefined[8] = {};
};

/// Tells whether all of up to four bytes are marked.
inline bool all_marked(const u8* marks, int bytes) {
  u32 word = 0x01010101;
  std::memcpy(&word, marks, size_t(bytes));
  return word == 0x01010101;
}

inline int words(int bytes) { return (bytes + 3) / 4; }

template <class Body> inline void each_active(const Wave& wave, Body body) {
  for (u64 left = wave.exec(); left; left &= left - 1) body(__builtin_ctzll(left));
}

}  // namespace amdgcn
