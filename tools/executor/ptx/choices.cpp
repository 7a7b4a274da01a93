// SPDX-License-Identifier: MIT
// PTX ISA 9.0: "Comparison and Selection Instructions", "Data Movement: mov, cvta, cvt", "Control Flow Instructions".
#include <cmath>

#include "lanes.h"

namespace ptx {

namespace {

enum Compare : int { EQ, NE, LT, LE, GT, GE, EQU, NEU, LTU, LEU, GTU, GEU, NUM, NAN_ };

template <class T> bool holds(int compare, T a, T b) {
  switch (compare) {
    case EQ: return a == b;
    case NE: return a == a && b == b && a != b;
    case LT: return a < b;
    case LE: return a <= b;
    case GT: return a > b;
    case GE: return a >= b;
    case EQU: return !(a < b) && !(a > b);
    case NEU: return a != b;
    case LTU: return !(a >= b);
    case LEU: return !(a > b);
    case GTU: return !(a <= b);
    case GEU: return !(a < b);
    case NUM: return a == a && b == b;
    default: return a != a || b != b;
  }
}

template <class T, class Lane> Step compare(Machine&, Warp& warp, const Instruction& in, u32 lanes) {
  const int first = in.operands - 2;
  const Lane *a = source<Lane>(warp, in.operand[first]), *b = source<Lane>(warp, in.operand[first + 1]);
  u32 bits = 0;
  for (int k = 0; k < 32; k++) bits |= u32(holds(in.a, T(a[k]), T(b[k]))) << k;
  const u32 are = known(warp, in.operand[first]) & known(warp, in.operand[first + 1]);
  set_truth(warp, in.operand[0], lanes, bits, are);
  if (first == 2) set_truth(warp, in.operand[1], lanes, ~bits, are);
  return Step::next;
}

template <class Lane> Step select(Machine&, Warp& warp, const Instruction& in, u32 lanes) {
  const Lane *a = source<Lane>(warp, in.operand[1]), *b = source<Lane>(warp, in.operand[2]);
  const u32 bits = truth(warp, in.operand[3]);
  Lane* to = target<Lane>(warp, in.operand[0]);
  Lane made[32];
  for (int k = 0; k < 32; k++) made[k] = bits >> k & 1 ? a[k] : b[k];
  each_lane(lanes, [&](int k) { to[k] = made[k]; });
  const u32 are = (known(warp, in.operand[1]) & bits) | (known(warp, in.operand[2]) & ~bits);
  mark(warp, in.operand[0], lanes, are & known(warp, in.operand[3]));
  return Step::next;
}

Step move32(Machine&, Warp& warp, const Instruction& in, u32 lanes) {
  map1<u32, u32>(warp, in, lanes, [](u32 a) { return a; });
  return Step::next;
}
Step move64(Machine&, Warp& warp, const Instruction& in, u32 lanes) {
  map1<u64, u64>(warp, in, lanes, [](u64 a) { return a; });
  return Step::next;
}
Step move_truth(Machine&, Warp& warp, const Instruction& in, u32 lanes) {
  set_truth(warp, in.operand[0], lanes, truth(warp, in.operand[1]), known(warp, in.operand[1]));
  return Step::next;
}

/// One register to or from a list of parts, the lowest first.
u64 part_of(const Warp& warp, const Operand& from, int lane) {
  return from.bytes == 8 ? source<u64>(warp, from)[lane] : source<u32>(warp, from)[lane];
}
Step join(Machine&, Warp& warp, const Instruction& in, u32 lanes) {
  const Operand& list = in.operand[1];
  const int bits = in.a * 8 / list.count;
  u32 are = ~0u;
  for (int p = 0; p < list.count; p++) are &= known(warp, in.items[size_t(list.first + p)]);
  each_lane(lanes, [&](int k) {
    u64 made = 0;
    for (int p = 0; p < list.count; p++) {
      const u64 mask = bits == 64 ? ~0ull : (1ull << bits) - 1;
      made |= (part_of(warp, in.items[size_t(list.first + p)], k) & mask) << (p * bits);
    }
    if (in.a == 8)
      target<u64>(warp, in.operand[0])[k] = made;
    else
      target<u32>(warp, in.operand[0])[k] = u32(made);
  });
  mark(warp, in.operand[0], lanes, are);
  return Step::next;
}
Step split(Machine&, Warp& warp, const Instruction& in, u32 lanes) {
  const Operand& list = in.operand[0];
  const int bits = in.a * 8 / list.count;
  each_lane(lanes, [&](int k) {
    const u64 whole = part_of(warp, in.operand[1], k);
    for (int p = 0; p < list.count; p++) {
      const Operand& to = in.items[size_t(list.first + p)];
      if (to.kind == Kind::none) continue;
      target<u32>(warp, to)[k] = u32(whole >> (p * bits)) & (bits >= 32 ? ~0u : (1u << bits) - 1);
    }
  });
  for (int p = 0; p < list.count; p++) {
    const Operand& to = in.items[size_t(list.first + p)];
    if (to.kind != Kind::none) mark(warp, to, lanes, known(warp, in.operand[1]));
  }
  return Step::next;
}

/// A source may be in a wider register than its type.
template <class To, class From, class LaneFrom> Step convert(Machine&, Warp& warp, const Instruction& in, u32 lanes) {
  using LaneTo = std::conditional_t<sizeof(To) == 8, u64, u32>;
  map1<LaneTo, LaneFrom>(warp, in, lanes, [](LaneFrom a) { return LaneTo(std::make_unsigned_t<To>(To(From(a)))); });
  return Step::next;
}
template <class From, class Lane> Handler to_integer(const Type& to) {
  if (to.bytes == 8) return to.kind == 's' ? convert<i64, From, Lane> : convert<u64, From, Lane>;
  if (to.bytes == 4) return to.kind == 's' ? convert<i32, From, Lane> : convert<u32, From, Lane>;
  if (to.bytes == 2) return to.kind == 's' ? convert<i16, From, Lane> : convert<u16, From, Lane>;
  return to.kind == 's' ? convert<i8, From, Lane> : convert<u8, From, Lane>;
}
template <class Lane> Handler integers(const Type& to, const Type& from) {
  const bool is = from.kind == 's';
  if (from.bytes == 8) return is ? to_integer<i64, Lane>(to) : to_integer<u64, Lane>(to);
  if (from.bytes == 4) return is ? to_integer<i32, Lane>(to) : to_integer<u32, Lane>(to);
  if (from.bytes == 2) return is ? to_integer<i16, Lane>(to) : to_integer<u16, Lane>(to);
  return is ? to_integer<i8, Lane>(to) : to_integer<u8, Lane>(to);
}

/// Packs two floats into one word; the first operand is the upper half.
template <u32 (*kTo)(float), int kBits> Step pack(Machine&, Warp& warp, const Instruction& in, u32 lanes) {
  map2<u32, float, float>(warp, in, lanes, [](float a, float b) { return kTo(a) << kBits | kTo(b); });
  return Step::next;
}
template <u32 (*kTo)(float)> Step narrow(Machine&, Warp& warp, const Instruction& in, u32 lanes) {
  map1<u32, float>(warp, in, lanes, [](float a) { return kTo(a); });
  return Step::next;
}
template <float (*kFrom)(u32)> Step widen(Machine&, Warp& warp, const Instruction& in, u32 lanes) {
  map1<float, u32>(warp, in, lanes, [](u32 a) { return kFrom(a & 0xffff); });
  return Step::next;
}
/// NaN is 0x7fff, as cvt says.
u32 half(float x) { return x != x ? 0x7fff : to_half(x); }
u32 bfloat(float x) { return x != x ? 0x7fff : to_bfloat(x); }
/// Converts with .satfinite: what is too large becomes the largest.
u32 e4m3(float x) {
  if (x != x) return 0x7f;
  return std::fabs(x) > 448.f ? (std::signbit(x) ? 0xfe : 0x7e) : to_fp8(x, Fp8::e4m3_ocp);
}
u32 e5m2(float x) {
  if (x != x) return 0x7f;
  return std::fabs(x) > 57344.f ? (std::signbit(x) ? 0xfb : 0x7b) : to_fp8(x, Fp8::e5m2_ocp);
}

Step branch(Machine&, Warp& warp, const Instruction& in, u32 lanes) {
  warp.taken = lanes;
  warp.next_pc = in.target;
  return Step::branch;
}
Step leave(Machine&, Warp&, const Instruction&, u32) { return Step::exit; }

}  // namespace

/// Compares two halves of a word as numbers of fp16, each of the result ones or zeros.
Step compare_halves(Machine&, Warp& warp, const Instruction& in, u32 lanes) {
  const int by = in.a;
  map2<u32, u32, u32>(warp, in, lanes, [by](u32 a, u32 b) {
    const u32 low = holds(by, from_half(a & 0xffff), from_half(b & 0xffff)) ? 0xffff : 0;
    return holds(by, from_half(a >> 16), from_half(b >> 16)) ? 0xffff0000 | low : low;
  });
  return Step::next;
}
OPCODE("set", {
  d.in.a = d.one_of({"eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan"});
  if (!d.take("u32") || !d.take("f16x2")) d.refuse("it must be .u32.f16x2");
  d.end(3, compare_halves);
  d.values(0, 3, 4);
});
OPCODE("setp", {
  d.in.a = d.one_of({"eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan"});
  if (d.take("ftz")) d.refuse("the modifier .ftz is unknown");
  const Type type = type_of(d, d.next());
  const bool is = type.kind == 's';
  if (type.kind != 'f' && d.in.a >= EQU) d.refuse("the comparison is a float's");
  if (type.kind == 'b' && d.in.a > NE) d.refuse("bits are equal or not");
  Handler run = nullptr;
  if (type.kind == 'f')
    run = type.bytes == 8 ? compare<double, double> : compare<float, float>;
  else if (type.bytes == 8)
    run = is ? compare<i64, u64> : compare<u64, u64>;
  else if (type.bytes == 4)
    run = is ? compare<i32, u32> : compare<u32, u32>;
  else if (type.bytes == 2)
    run = is ? compare<i16, u32> : compare<u16, u32>;
  if (!run || type.kind == 'h') d.refuse("the type is unknown here");
  d.end(3, 4, run);
  d.predicate(0);
  if (d.in.operands == 4) d.predicate(1);
  d.values(d.in.operands - 2, d.in.operands, type.bytes, type.kind == 'f');
});
OPCODE("selp", {
  const Type type = type_of(d, d.next());
  if (type.bytes < 2) d.refuse("the type is unknown here");
  d.end(4, type.bytes == 8 ? select<u64> : select<u32>);
  d.values(0, 3, type.bytes, type.kind == 'f');
  d.predicate(3);
});
OPCODE("mov", {
  const Type type = type_of(d, d.next());
  if (type.kind == 'p') {
    d.end(2, move_truth);
    d.predicate(0), d.predicate(1);
    return;
  }
  if (type.bytes < 2) d.refuse("the type is unknown here");
  d.in.a = type.bytes;
  const bool from_list = d.in.operands > 1 && d.in.operand[1].kind == Kind::list;
  const bool to_list = d.in.operands > 1 && d.in.operand[0].kind == Kind::list;
  if (from_list || to_list) {
    const int list = from_list ? 1 : 0, count = d.in.operand[list].count;
    if (count != 2 && count != 4) d.refuse("a list has 2 or 4 parts");
    d.end(2, from_list ? join : split);
    d.list(list, count, type.bytes / count);
    d.value(1 - list, type.bytes);
    return;
  }
  d.end(2, type.bytes == 8 ? move64 : move32);
  d.value(0, type.bytes);
  d.value(1, type.bytes, type.kind == 'f');
});

#define CONVERT(To, From, expression)                                                              \
  Handler([](Machine&, Warp& warp, const Instruction& in, u32 lanes) {                             \
    map1<To, From>(warp, in, lanes, [](From a) { return expression; });                            \
    return Step::next;                                                                             \
  })
/// Conversions from or to double precision.
void convert_double(Decode& d, const Type& to, const Type& from, bool rounds, bool zero, bool down) {
  Handler run = nullptr;
  if (to.kind == 'f' && from.kind == 'f') {
    if (to.bytes == from.bytes && down) run = CONVERT(double, double, std::floor(a));
    if (to.bytes > from.bytes && !rounds && !zero && !down) run = CONVERT(double, float, double(a));
    if (to.bytes < from.bytes && rounds) run = CONVERT(float, double, float(a));
  } else if (to.kind == 'f' && rounds) {
    if (from.kind == 's')
      run = from.bytes == 8 ? CONVERT(double, u64, double(i64(a))) : CONVERT(double, u32, double(i32(a)));
    if (from.kind == 'u') run = from.bytes == 8 ? CONVERT(double, u64, double(a)) : CONVERT(double, u32, double(a));
    if (from.bytes < 4) run = nullptr;
  } else if (to.kind == 's' && to.bytes == 4 && zero) {
    run = CONVERT(u32, double, u32(a != a ? 0 : i32(std::fmin(std::fmax(a, -0x1p31), 0x1p31 - 1))));
  }
  if (!run) d.refuse("the conversion is unknown");
  d.end(2, run);
  d.value(0, to.bytes, to.kind == 'f');
  d.value(1, from.bytes, from.kind == 'f');
}
OPCODE("cvt", {
  const bool rounds = d.take("rn"), zero = !rounds && d.take("rzi"), down = !rounds && !zero && d.take("rmi");
  const bool satfinite = d.take("satfinite");
  if (!rounds && !zero && !down && d.take("sat")) {  // NaN becomes 0
    if (d.next() != "f32" || d.next() != "f32") d.refuse("the conversion is unknown");
    d.end(2, CONVERT(float, float, a > 0 ? std::fmin(a, 1.f) : 0.f));
    return d.values(0, 2, 4, true);
  }
  if (d.take("bf16x2")) {
    if (!rounds || satfinite || d.next() != "f32") d.refuse("the conversion is unknown");
    d.end(3, pack<bfloat, 16>);
    d.value(0, 4);
    return d.values(1, 3, 4, true);
  }
  if (d.take("f16x2")) {
    if (rounds && d.take("f32")) {
      d.end(3, pack<half, 16>);
      d.value(0, 4);
      return d.values(1, 3, 4, true);
    }
    const int format = d.one_of({"e4m3x2", "e5m2x2"});
    if (!rounds) d.refuse("the conversion is unknown");
    d.end(2, format == 0 ? Handler([](Machine&, Warp& warp, const Instruction& in, u32 lanes) {
            map1<u32, u32>(warp, in, lanes, [](u32 a) {
              return half(from_fp8(u8(a >> 8), Fp8::e4m3_ocp)) << 16 | half(from_fp8(u8(a), Fp8::e4m3_ocp));
            });
            return Step::next;
          })
                         : Handler([](Machine&, Warp& warp, const Instruction& in, u32 lanes) {
                             map1<u32, u32>(warp, in, lanes, [](u32 a) {
                               return half(from_fp8(u8(a >> 8), Fp8::e5m2_ocp)) << 16 |
                                      half(from_fp8(u8(a), Fp8::e5m2_ocp));
                             });
                             return Step::next;
                           }));
    d.value(0, 4);
    return d.value(1, 2);
  }
  for (const bool wide : {false, true})
    if (d.take(wide ? "e5m2x2" : "e4m3x2")) {
      if (!rounds || !satfinite || d.next() != "f32") d.refuse("the conversion is unknown");
      d.end(3, wide ? pack<e5m2, 8> : pack<e4m3, 8>);
      d.value(0, 2);
      return d.values(1, 3, 4, true);
    }
  if (satfinite) d.refuse("the modifier .satfinite is unknown here");
  if (d.take("bf16")) {
    if (!rounds || d.next() != "f32") d.refuse("the conversion is unknown");
    d.end(2, narrow<bfloat>);
    d.value(0, 2);
    return d.value(1, 4, true);
  }
  const std::string to_word = d.next(), from_word = d.next();
  if (from_word == "bf16" && to_word == "f32" && !rounds) {
    d.end(2, widen<from_bfloat>);
    d.value(0, 4);
    return d.value(1, 2);
  }
  const Type to = type_of(d, to_word), from = type_of(d, from_word);
  if (to_word == "f64" || from_word == "f64") return convert_double(d, to, from, rounds, zero, down);
  if (down) d.refuse("the conversion is unknown");
  Handler run = nullptr;
  if (to.kind == 'f' && from.kind == 'h' && !rounds) run = widen<from_half>;
  if (to.kind == 'h' && from.kind == 'f' && rounds) run = narrow<half>;
  if (to.kind == 'f' && rounds && from.bytes == 4 && from.kind == 's')
    run = [](Machine&, Warp& warp, const Instruction& in, u32 lanes) {
      map1<float, u32>(warp, in, lanes, [](u32 a) { return float(i32(a)); });
      return Step::next;
    };
  if (to.kind == 'f' && rounds && from.bytes == 4 && from.kind == 'u')
    run = [](Machine&, Warp& warp, const Instruction& in, u32 lanes) {
      map1<float, u32>(warp, in, lanes, [](u32 a) { return float(a); });
      return Step::next;
    };
  if (from.kind == 'f' && zero && to.bytes == 4 && to.kind == 's')
    run = [](Machine&, Warp& warp, const Instruction& in, u32 lanes) {
      map1<u32, float>(warp, in, lanes, [](float a) { return to_i32(a); });
      return Step::next;
    };
  const auto is_integer = [](const Type& type) { return type.kind == 's' || type.kind == 'u'; };
  if (is_integer(to) && is_integer(from) && !rounds && !zero)
    run = d.in.operand[1].bytes == 8 || from.bytes == 8 ? integers<u64>(to, from) : integers<u32>(to, from);
  if (!run) d.refuse("the conversion is unknown");
  d.end(2, run);
  d.value(0, to.bytes);
  d.value(1, is_integer(from) && d.in.operand[1].bytes == 8 ? 8 : from.bytes, from.kind == 'f');
});

/// Addresses of global memory and of parameters are generic ones; shared memory has a window of its own.
OPCODE("cvta", {
  const bool to = d.take("to");
  const int space = d.one_of({"global", "param", "const", "shared"});
  if (d.next() != "u64") d.refuse("addresses have 64 bits");
  if (space == 3) {
    d.end(2, to ? Handler([](Machine&, Warp& warp, const Instruction& in, u32 lanes) {
            map1<u64, u64>(warp, in, lanes, [](u64 a) { return a - kSharedWindow; });
            return Step::next;
          })
                : Handler([](Machine&, Warp& warp, const Instruction& in, u32 lanes) {
                    map1<u64, u64>(warp, in, lanes, [](u64 a) { return a + kSharedWindow; });
                    return Step::next;
                  }));
  } else {
    d.end(2, move64);
  }
  d.values(0, 2, 8);
});

OPCODE("bra", {
  d.take("uni");
  d.end(0, branch);
});
OPCODE("trap", {
  d.end(0, [](Machine&, Warp& warp, const Instruction& in, u32) -> Step {
    fault("TRAP", warp, in, "the kernel gives up");
  });
});
OPCODE("ret exit", { d.end(0, leave); });

}  // namespace ptx
