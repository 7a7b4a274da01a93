// SPDX-License-Identifier: MIT
// RFC 1951: blocks, each stored or of Huffman codes for bytes, lengths and distances; codes of a length are consecutive,
// which is all that a decoder needs to know of them.
#include "kernels/runtime/inflate.h"

namespace tilekiln {
namespace {

struct Codes {
  uint16_t count[16] = {};  // codes by length
  uint16_t symbol[288];     // in the order of their codes

  // `lengths`: by symbol, 0 for none.
  void set(const uint8_t* lengths, int symbols) {
    for (uint16_t& of : count) of = 0;
    for (int i = 0; i < symbols; ++i) ++count[lengths[i]];
    count[0] = 0;
    uint16_t begin[16] = {};
    for (int bits = 1; bits < 15; ++bits) begin[bits + 1] = static_cast<uint16_t>(begin[bits] + count[bits]);
    for (int i = 0; i < symbols; ++i) {
      if (lengths[i] != 0) symbol[begin[lengths[i]]++] = static_cast<uint16_t>(i);
    }
  }
};

class Inflater {
 public:
  Inflater(const unsigned char* from, size_t bytes, char* to, size_t length)
      : at_(from), end_(from + bytes), to_(to), length_(length) {}

  bool run() {
    bool last = false;
    while (!last && sound_) {
      last = bits(1) != 0;
      switch (bits(2)) {
        case 0: stored(); break;
        case 1: fixed(); break;
        case 2: dynamic(); break;
        default: sound_ = false;
      }
    }
    return sound_ && done_ == length_;
  }

 private:
  uint32_t bits(int count) {
    while (held_ < count) {
      if (at_ == end_) return sound_ = false, 0;
      hold_ |= static_cast<uint32_t>(*at_++) << held_;
      held_ += 8;
    }
    const uint32_t value = hold_ & ((uint32_t(1) << count) - 1);
    hold_ >>= count;
    held_ -= count;
    return value;
  }

  int symbol(const Codes& codes) {
    int code = 0, first = 0, index = 0;
    for (int length = 1; length < 16 && sound_; ++length) {
      code |= static_cast<int>(bits(1));
      const int count = codes.count[length];
      if (code - count < first) return codes.symbol[index + code - first];
      index += count;
      first = (first + count) << 1;
      code <<= 1;
    }
    return sound_ = false, 0;
  }

  void put(char byte) {
    if (done_ == length_) {
      sound_ = false;
    } else {
      to_[done_++] = byte;
    }
  }

  void stored() {
    hold_ = 0, held_ = 0;
    const uint32_t count = bits(16);
    if ((bits(16) ^ count) != 0xffff || static_cast<size_t>(end_ - at_) < count) sound_ = false;
    for (uint32_t i = 0; i < count && sound_; ++i) put(static_cast<char>(*at_++));
  }

  void fixed() {
    uint8_t lengths[288];
    for (int i = 0; i < 288; ++i) lengths[i] = i < 144 ? 8 : i < 256 ? 9 : i < 280 ? 7 : 8;
    literals_.set(lengths, 288);
    for (int i = 0; i < 30; ++i) lengths[i] = 5;
    distances_.set(lengths, 30);
    block();
  }

  void dynamic() {
    static constexpr uint8_t order[19] = {16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15};
    uint8_t lengths[288 + 32] = {};
    const int literals = static_cast<int>(bits(5)) + 257, distances = static_cast<int>(bits(5)) + 1;
    const int given = static_cast<int>(bits(4)) + 4;
    for (int i = 0; i < given; ++i) lengths[order[i]] = static_cast<uint8_t>(bits(3));
    Codes code;
    code.set(lengths, 19);
    for (int i = 0; i < literals + distances && sound_;) {
      const int next = symbol(code);
      const uint8_t repeated = next == 16 && i > 0 ? lengths[i - 1] : 0;
      int times = 1;
      if (next == 16) times = 3 + static_cast<int>(bits(2)), sound_ = sound_ && i > 0;
      if (next == 17) times = 3 + static_cast<int>(bits(3));
      if (next == 18) times = 11 + static_cast<int>(bits(7));
      if (i + times > literals + distances) sound_ = false;
      for (; times > 0 && sound_; --times) lengths[i++] = next < 16 ? static_cast<uint8_t>(next) : repeated;
    }
    if (!sound_ || literals > 288 || distances > 30) {
      sound_ = false;
      return;
    }
    literals_.set(lengths, literals);
    distances_.set(lengths + literals, distances);
    block();
  }

  void block() {
    static constexpr uint16_t length_base[29] = {3,  4,  5,  6,  7,  8,  9,  10, 11,  13,  15,  17,  19,  23, 27,
                                                 31, 35, 43, 51, 59, 67, 83, 99, 115, 131, 163, 195, 227, 258};
    static constexpr uint8_t length_bits[29] = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2,
                                                2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 0};
    static constexpr uint16_t distance_base[30] = {1,    2,    3,    4,    5,    7,    9,    13,    17,    25,
                                                   33,   49,   65,   97,   129,  193,  257,  385,   513,   769,
                                                   1025, 1537, 2049, 3073, 4097, 6145, 8193, 12289, 16385, 24577};
    while (sound_) {
      int next = symbol(literals_);
      if (!sound_ || next == 256) return;
      if (next < 256) {
        put(static_cast<char>(next));
        continue;
      }
      next -= 257;
      if (next >= 29) break;
      const size_t length = length_base[next] + bits(length_bits[next]);
      const int code = symbol(distances_);
      if (!sound_ || code >= 30) break;
      const size_t distance = distance_base[code] + bits(code < 2 ? 0 : code / 2 - 1);
      if (distance > done_) break;
      for (size_t i = 0; i < length && sound_; ++i) put(to_[done_ - distance]);
    }
    sound_ = false;
  }

  const unsigned char *at_, *const end_;
  char* const to_;
  const size_t length_;
  size_t done_ = 0;
  uint32_t hold_ = 0;
  int held_ = 0;
  bool sound_ = true;
  Codes literals_, distances_;
};

}  // namespace

bool inflate(const unsigned char* from, size_t bytes, char* to, size_t length) noexcept {
  constexpr size_t head = 2, sum = 4;  // of the wrapping
  if (bytes < head + sum || (from[0] & 15) != 8 || (from[1] & 32) != 0) return false;
  if (!Inflater(from + head, bytes - head - sum, to, length).run()) return false;
  uint32_t a = 1, b = 0;
  for (size_t i = 0; i < length; ++i) {
    a = (a + static_cast<unsigned char>(to[i])) % 65521;
    b = (b + a) % 65521;
  }
  const unsigned char* const s = from + bytes - sum;
  return (b << 16 | a) == (uint32_t(s[0]) << 24 | uint32_t(s[1]) << 16 | uint32_t(s[2]) << 8 | s[3]);
}

}  // namespace tilekiln
