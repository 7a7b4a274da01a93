// SPDX-License-Identifier: MIT
// PTX ISA 9.0: "Integer Arithmetic Instructions", "Logic and Shift Instructions", and prmt and bfi.
#include <algorithm>
#include <type_traits>

#include "integers.h"
#include "lanes.h"

namespace ptx {

namespace {

/// Runs a binary operation on values of a type; 16 bits live in the low half of a lane.
template <class T, class F> Step binary(Warp& warp, const Instruction& in, u32 lanes, F f) {
  if constexpr (sizeof(T) == 8) {
    map2<u64, u64, u64>(warp, in, lanes, [&](u64 a, u64 b) { return u64(f(T(a), T(b))); });
  } else if constexpr (sizeof(T) == 4) {
    map2<u32, u32, u32>(warp, in, lanes, [&](u32 a, u32 b) { return u32(f(T(a), T(b))); });
  } else {
    map2<u32, u32, u32>(warp, in, lanes, [&](u32 a, u32 b) { return u32(u16(f(T(a), T(b)))); });
  }
  return Step::next;
}
template <class T, class F> Step unary(Warp& warp, const Instruction& in, u32 lanes, F f) {
  if constexpr (sizeof(T) == 8)
    map1<u64, u64>(warp, in, lanes, [&](u64 a) { return u64(f(T(a))); });
  else if constexpr (sizeof(T) == 4)
    map1<u32, u32>(warp, in, lanes, [&](u32 a) { return u32(f(T(a))); });
  else
    map1<u32, u32>(warp, in, lanes, [&](u32 a) { return u32(u16(f(T(a)))); });
  return Step::next;
}

#define BINARY(T, expression) \
  [](Machine&, Warp& warp, const Instruction& in, u32 lanes) { return binary<T>(warp, in, lanes, [](T a, T b) { return expression; }); }
#define UNARY(T, expression) \
  [](Machine&, Warp& warp, const Instruction& in, u32 lanes) { return unary<T>(warp, in, lanes, [](T a) { return expression; }); }

/// Operations of the six integer types, by the expression in a and b.
#define INTEGERS(d, type, expression)                                                                                 \
  ((type).bytes == 8 ? ((type).kind == 's' ? Handler(BINARY(i64, expression)) : Handler(BINARY(u64, expression)))     \
   : (type).bytes == 4 ? ((type).kind == 's' ? Handler(BINARY(i32, expression)) : Handler(BINARY(u32, expression)))   \
                       : ((type).kind == 's' ? Handler(BINARY(i16, expression)) : Handler(BINARY(u16, expression))))

void finish(Decode& d, const Type& type, int operands, Handler run) {
  d.end(operands, run);
  d.values(0, operands, type.bytes);
}

i64 divided(i64 a, i64 b) { return b == 0 ? -1 : b == -1 ? i64(-u64(a)) : a / b; }
i64 left_over(i64 a, i64 b) { return b == 0 ? a : b == -1 ? 0 : a % b; }

Step permute(Machine&, Warp& warp, const Instruction& in, u32 lanes) {
  map3<u32, u32, u32>(warp, in, lanes, [](u32 a, u32 b, u32 c) {
    const u64 both = u64(b) << 32 | a;
    u32 made = 0;
    for (int k = 0; k < 4; k++) {
      const u32 pick = c >> (4 * k) & 15;
      u32 byte = u32(both >> (8 * (pick & 7))) & 0xff;
      if (pick & 8) byte = byte & 0x80 ? 0xff : 0;
      made |= byte << (8 * k);
    }
    return made;
  });
  return Step::next;
}

/// Any function of three bits: that of a, b and c is bit 4 a + 2 b + c of a table.
Step look_up(Machine&, Warp& warp, const Instruction& in, u32 lanes) {
  const u32 *a = source<u32>(warp, in.operand[1]), *b = source<u32>(warp, in.operand[2]);
  const u32 *c = source<u32>(warp, in.operand[3]), *table = source<u32>(warp, in.operand[4]);
  u32* to = target<u32>(warp, in.operand[0]);
  u32 are = ~0u;
  for (int k = 1; k < 5; k++) are &= known(warp, in.operand[k]);
  each_lane(lanes, [&](int k) {
    u32 made = 0;
    for (int row = 0; row < 8; row++) {
      if (table[k] >> row & 1) made |= (row & 4 ? a[k] : ~a[k]) & (row & 2 ? b[k] : ~b[k]) & (row & 1 ? c[k] : ~c[k]);
    }
    to[k] = made;
  });
  mark(warp, in.operand[0], lanes, are);
  return Step::next;
}

template <class T> Step insert_bits(Machine&, Warp& warp, const Instruction& in, u32 lanes) {
  const T *a = source<T>(warp, in.operand[1]), *b = source<T>(warp, in.operand[2]);
  const u32 *at = source<u32>(warp, in.operand[3]), *count = source<u32>(warp, in.operand[4]);
  T* to = target<T>(warp, in.operand[0]);
  u32 are = ~0u;
  for (int k = 1; k < 5; k++) are &= known(warp, in.operand[k]);
  each_lane(lanes, [&](int k) {
    const u32 from = at[k] & 0xff, length = count[k] & 0xff;
    T made = b[k];
    for (u32 bit = 0; bit < length && from + bit < 8 * sizeof(T); bit++)
      made = (made & ~(T(1) << (from + bit))) | (a[k] >> bit & 1) << (from + bit);
    to[k] = made;
  });
  mark(warp, in.operand[0], lanes, are);
  return Step::next;
}

template <bool kSigned> Step field(Machine&, Warp& warp, const Instruction& in, u32 lanes) {
  map3<u32, u32, u32>(warp, in, lanes, [](u32 a, u32 b, u32 c) {
    const u32 from = b & 0xff, count = c & 0xff;
    const u32 sign = kSigned && count ? a >> std::min(from + count - 1, 31u) & 1 : 0;
    u32 made = 0;
    for (u32 bit = 0; bit < 32; bit++) made |= (bit < count && from + bit < 32 ? a >> (from + bit) & 1 : sign) << bit;
    return made;
  });
  return Step::next;
}
u64 reversed(u64 a) {
  u64 made = 0;
  for (int bit = 0; bit < 64; bit++) made |= (a >> bit & 1) << (63 - bit);
  return made;
}

}  // namespace

namespace integers {

#define ARITHMETIC(name, expression)                                        \
  void name(Decode& d, const Type& type) {                                  \
    if (type.kind != 's' && type.kind != 'u') d.refuse("the type is no integer's"); \
    finish(d, type, 3, INTEGERS(d, type, expression));                      \
  }
ARITHMETIC(add, a + b)
ARITHMETIC(sub, a - b)
ARITHMETIC(least, a < b ? a : b)
ARITHMETIC(most, a < b ? b : a)

void div(Decode& d, const Type& type) {
  if (type.kind != 's' && type.kind != 'u') d.refuse("the type is no integer's");
  finish(d, type, 3,
         type.kind == 's'
             ? (type.bytes == 8 ? Handler(BINARY(i64, divided(a, b))) : Handler(BINARY(i32, divided(a, b))))
         : type.bytes == 8 ? Handler(BINARY(u64, b ? a / b : ~u64(0)))
                           : Handler(BINARY(u32, b ? a / b : ~u32(0))));
  if (type.bytes == 2) d.refuse("16 bits are not divided here");
}

void abs(Decode& d, const Type& type) {
  if (type.kind != 's' || type.bytes == 2) d.refuse("the type is unknown here");
  finish(
      d, type, 2,
      type.bytes == 8 ? Handler(UNARY(i64, a < 0 ? -u64(a) : u64(a))) : Handler(UNARY(i32, a < 0 ? -u32(a) : u32(a))));
}
void neg(Decode& d, const Type& type) {
  if (type.kind != 's') d.refuse("the type is unknown here");
  finish(d, type, 2,
         type.bytes == 8   ? Handler(UNARY(u64, -a))
         : type.bytes == 4 ? Handler(UNARY(u32, -a))
                           : Handler(UNARY(u16, -a)));
}

/// mul and mad: .lo, .hi, .wide.
void mul(Decode& d, bool adds) {
  const int which = d.one_of({"lo", "hi", "wide"});
  const Type type = type_of(d, d.next());
  if (type.kind != 's' && type.kind != 'u') d.refuse("the type is no integer's");
  const bool is_signed = type.kind == 's';
  const int operands = adds ? 4 : 3;
  Handler run = nullptr;
#define MULTIPLY(To, T, expression)                                                                                  \
  (adds ? Handler([](Machine&, Warp& warp, const Instruction& in, u32 lanes) {                                        \
     map3<To, std::conditional_t<sizeof(T) == 8, u64, u32>, To>(warp, in, lanes, [](auto x, auto y, To c) { const T a = T(x), b = T(y); return To(To(expression) + c); }); \
     return Step::next;                                                                                               \
   })                                                                                                                 \
        : Handler([](Machine&, Warp& warp, const Instruction& in, u32 lanes) {                                        \
            map2<To, std::conditional_t<sizeof(T) == 8, u64, u32>, std::conditional_t<sizeof(T) == 8, u64, u32>>(     \
                warp, in, lanes, [](auto x, auto y) { const T a = T(x), b = T(y); return To(expression); });          \
            return Step::next;                                                                                        \
          }))
  if (which == 0 && type.bytes == 8) run = MULTIPLY(u64, u64, a * b);
  if (which == 0 && type.bytes == 4) run = MULTIPLY(u32, u32, a * b);
  if (which == 0 && type.bytes == 2) run = MULTIPLY(u32, u16, u16(u32(a) * b));
  if (which == 1 && type.bytes == 8)
    run = is_signed ? MULTIPLY(u64, i64, u64((__int128(a) * b) >> 64))
                    : MULTIPLY(u64, u64, u64((static_cast<unsigned __int128>(a) * b) >> 64));
  if (which == 1 && type.bytes == 4)
    run = is_signed ? MULTIPLY(u32, i32, u32((i64(a) * b) >> 32)) : MULTIPLY(u32, u32, u32((u64(a) * b) >> 32));
  if (which == 2 && type.bytes == 4)
    run = is_signed ? MULTIPLY(u64, i32, u64(i64(a) * b)) : MULTIPLY(u64, u32, u64(a) * b);
  if (which == 2 && type.bytes == 2)
    run = is_signed ? MULTIPLY(u32, i16, u32(i32(a) * b)) : MULTIPLY(u32, u16, u32(a) * b);
  if (!run) d.refuse("the width is unknown");
  d.end(operands, run);
  const int wide = which == 2 ? 2 * type.bytes : type.bytes;
  d.value(0, wide);
  d.values(1, 3, type.bytes);
  if (adds) d.value(3, wide);
}

}  // namespace integers

OPCODE("rem", {
  const Type type = type_of(d, d.next());
  if (type.bytes == 2 || (type.kind != 's' && type.kind != 'u')) d.refuse("the type is unknown here");
  finish(d, type, 3,
         type.kind == 's'
             ? (type.bytes == 8 ? Handler(BINARY(i64, left_over(a, b))) : Handler(BINARY(i32, left_over(a, b))))
         : type.bytes == 8 ? Handler(BINARY(u64, b ? a % b : a))
                           : Handler(BINARY(u32, b ? a % b : a)));
});

/// Operations of predicates: a side that is known to decide makes the result known.
#define LOGIC(name, expression, decides)                                                                              \
  OPCODE(name, {                                                                                                      \
    const Type type = type_of(d, d.next());                                                                           \
    if (type.kind == 'p') {                                                                                           \
      d.end(3, [](Machine&, Warp& warp, const Instruction& in, u32 lanes) {                                           \
        const u32 a = truth(warp, in.operand[1]), b = truth(warp, in.operand[2]);                                     \
        const u32 known_a = known(warp, in.operand[1]), known_b = known(warp, in.operand[2]);                         \
        set_truth(warp, in.operand[0], lanes, expression, (known_a & known_b) | (decides));                           \
        return Step::next;                                                                                            \
      });                                                                                                             \
      for (int k = 0; k < 3; k++) d.predicate(k);                                                                     \
      return;                                                                                                         \
    }                                                                                                                 \
    if (type.kind != 'b') d.refuse("the type is no bits'");                                                           \
    finish(d, type, 3, type.bytes == 8 ? Handler(BINARY(u64, expression)) : type.bytes == 4 ? Handler(BINARY(u32, expression)) : Handler(BINARY(u16, expression))); \
  })
LOGIC("and", a& b, (known_a & ~a) | (known_b & ~b));
LOGIC("or", a | b, (known_a & a) | (known_b & b));
LOGIC("xor", a ^ b, 0u);

OPCODE("not", {
  const Type type = type_of(d, d.next());
  if (type.kind == 'p') {
    d.end(2, [](Machine&, Warp& warp, const Instruction& in, u32 lanes) {
      set_truth(warp, in.operand[0], lanes, ~truth(warp, in.operand[1]), known(warp, in.operand[1]));
      return Step::next;
    });
    d.predicate(0), d.predicate(1);
    return;
  }
  if (type.kind != 'b') d.refuse("the type is no bits'");
  finish(d, type, 2,
         type.bytes == 8   ? Handler(UNARY(u64, ~a))
         : type.bytes == 4 ? Handler(UNARY(u32, ~a))
                           : Handler(UNARY(u16, ~a)));
});

/// Shifts; by more than the width they give zeros, or the sign.
template <class T> Step shift_left(Machine&, Warp& warp, const Instruction& in, u32 lanes) {
  using Lane = std::conditional_t<sizeof(T) == 8, u64, u32>;
  map2<Lane, Lane, u32>(warp, in, lanes,
                        [](Lane a, u32 by) { return Lane(by >= 8 * sizeof(T) ? T(0) : T(T(a) << by)); });
  return Step::next;
}
template <class T> Step shift_right(Machine&, Warp& warp, const Instruction& in, u32 lanes) {
  using Lane = std::conditional_t<sizeof(T) == 8, u64, u32>;
  using Bits = std::make_unsigned_t<T>;
  map2<Lane, Lane, u32>(warp, in, lanes, [](Lane a, u32 by) {
    const T value = T(a);
    if (by >= 8 * sizeof(T)) return Lane(Bits(value < 0 ? T(-1) : T(0)));
    return Lane(Bits(value >> by));
  });
  return Step::next;
}
OPCODE("shl", {
  const Type type = type_of(d, d.next());
  if (type.kind != 'b') d.refuse("the type is no bits'");
  d.end(3, type.bytes == 8 ? shift_left<u64> : type.bytes == 4 ? shift_left<u32> : shift_left<u16>);
  d.values(0, 2, type.bytes);
  d.value(2, 4);
});
OPCODE("shr", {
  const Type type = type_of(d, d.next());
  if (type.kind != 'b' && type.kind != 's' && type.kind != 'u') d.refuse("the type is no integer's");
  const bool is_signed = type.kind == 's';
  d.end(3, type.bytes == 8   ? (is_signed ? shift_right<i64> : shift_right<u64>)
           : type.bytes == 4 ? (is_signed ? shift_right<i32> : shift_right<u32>)
                             : (is_signed ? shift_right<i16> : shift_right<u16>));
  d.values(0, 2, type.bytes);
  d.value(2, 4);
});

OPCODE("prmt", {
  if (d.next() != "b32") d.refuse("the mode is unknown");
  d.end(4, permute);
  d.values(0, 4, 4);
});
OPCODE("lop3", {
  if (d.next() != "b32") d.refuse("the width is unknown");
  d.end(5, look_up);
  d.values(0, 5, 4);
});
OPCODE("bfi", {
  const bool wide = d.one_of({"b32", "b64"}) == 1;
  d.end(5, wide ? insert_bits<u64> : insert_bits<u32>);
  d.values(0, 3, wide ? 8 : 4);
  d.values(3, 5, 4);
});
/// A field of a: c bits from bit b on, behind them copies of its last (.s32) or zeros.
OPCODE("bfe", {
  const bool is_signed = d.one_of({"u32", "s32"}) == 1;
  d.end(4, is_signed ? field<true> : field<false>);
  d.values(0, 4, 4);
});

/// Operations of 32 or 64 bits to 32: popc and clz; brev keeps the width.
#define BITS(name, expression32, expression64, wide)                                \
  OPCODE(name, {                                                                    \
    const bool is_wide = d.one_of({"b32", "b64"}) == 1;                             \
    d.end(2, is_wide ? Handler([](Machine&, Warp& warp, const Instruction& in, u32 lanes) { \
            map1<wide, u64>(warp, in, lanes, [](u64 a) { return wide(expression64); }); \
            return Step::next;                                                      \
          })                                                                        \
                     : Handler([](Machine&, Warp& warp, const Instruction& in, u32 lanes) { \
                         map1<u32, u32>(warp, in, lanes, [](u32 a) { return u32(expression32); }); \
                         return Step::next;                                         \
                       }));                                                         \
    d.value(0, is_wide ? int(sizeof(wide)) : 4);                                    \
    d.value(1, is_wide ? 8 : 4);                                                    \
  })
BITS("popc", __builtin_popcount(a), __builtin_popcountll(a), u32);
BITS("clz", a ? __builtin_clz(a) : 32, a ? __builtin_clzll(a) : 64, u32);
BITS("brev", reversed(a) >> 32, reversed(a), u64);

}  // namespace ptx
