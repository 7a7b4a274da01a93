// SPDX-License-Identifier: MIT
// PTX ISA 9.0: "Floating-Point Instructions", and the opcodes that integers share with them.
//
// .approx is worked out to about a unit in the last place, which is nearer than the hardware promises (2^-22 for ex2 and
// lg2, 2^-11 for tanh); .ftz makes subnormal inputs and results zero.
#include <cmath>

#include "integers.h"
#include "lanes.h"

namespace ptx {

namespace {

float flushed(float x) { return std::fabs(x) < 0x1p-126f ? std::copysign(0.f, x) : x; }
/// NaN loses: the other one, as max and min without .NaN say.
float larger(float a, float b) { return max_number(a, b); }
float smaller(float a, float b) { return min_number(a, b); }
float canonical(float x) { return x != x ? as_float(0x7fffffff) : x; }

#define FLOAT1(expression)                                                                                            \
  Handler([](Machine&, Warp& warp, const Instruction& in, u32 lanes) {                                                \
    map1<float, float>(warp, in, lanes, [](float a) -> float { return expression; });                                 \
    return Step::next;                                                                                                \
  })
#define FLOAT2(expression)                                                                                            \
  Handler([](Machine&, Warp& warp, const Instruction& in, u32 lanes) {                                                \
    map2<float, float, float>(warp, in, lanes, [](float a, float b) -> float { return expression; });                 \
    return Step::next;                                                                                                \
  })

void floats(Decode& d, int operands, Handler run) {
  d.end(operands, run);
  d.values(0, operands, 4, true);
}

/// Double precision, which has one rounding and no .ftz.
#define DOUBLE1(expression)                                                                                           \
  Handler([](Machine&, Warp& warp, const Instruction& in, u32 lanes) {                                                \
    map1<double, double>(warp, in, lanes, [](double a) -> double { return expression; });                             \
    return Step::next;                                                                                                \
  })
#define DOUBLE2(expression)                                                                                           \
  Handler([](Machine&, Warp& warp, const Instruction& in, u32 lanes) {                                                \
    map2<double, double, double>(warp, in, lanes, [](double a, double b) -> double { return expression; });           \
    return Step::next;                                                                                                \
  })
void doubles(Decode& d, int operands, Handler run) {
  d.end(operands, run);
  d.values(0, operands, 8, true);
}
bool is_double(const Type& type) { return type.kind == 'f' && type.bytes == 8; }

}  // namespace

#define BOTH(name, integer, expression)                       \
  OPCODE(name, {                                              \
    const bool rounds = d.take("rn");                         \
    const bool ftz = d.take("ftz");                           \
    const Type type = type_of(d, d.next());                   \
    if (is_double(type) && !ftz) return doubles(d, 3, DOUBLE2(expression)); \
    if (type.kind == 'f' && type.bytes == 4) {                \
      floats(d, 3, ftz ? FLOAT2(({ a = flushed(a), b = flushed(b); flushed(expression); })) : FLOAT2(expression)); \
    } else {                                                  \
      if (rounds || ftz) d.refuse("an integer is not rounded"); \
      integer(d, type);                                       \
    }                                                         \
  })
BOTH("add", integers::add, a + b);
BOTH("sub", integers::sub, a - b);
#define EXTREME(name, integer, function, wide)                     \
  OPCODE(name, {                                              \
    const bool keeps_nan = d.take("NaN");                     \
    const Type type = type_of(d, d.next());                   \
    if (is_double(type) && !keeps_nan) return doubles(d, 3, DOUBLE2(std::wide(a, b))); \
    if (type.kind == 'f' && type.bytes == 4) {                \
      floats(d, 3, keeps_nan ? FLOAT2(canonical(a != a || b != b ? a + b : function(a, b))) : FLOAT2(canonical(function(a, b)))); \
    } else {                                                  \
      if (keeps_nan) d.refuse("an integer is never NaN");     \
      integer(d, type);                                       \
    }                                                         \
  })
EXTREME("max", integers::most, larger, fmax);
EXTREME("min", integers::least, smaller, fmin);

OPCODE("mul", {
  if (d.take("rn")) {
    if (d.take("f64")) return doubles(d, 3, DOUBLE2(a * b));
    if (d.next() != "f32") d.refuse("the type is unknown here");
    return floats(d, 3, FLOAT2(a * b));
  }
  if (d.take("ftz")) {
    if (d.next() != "f32") d.refuse("the type is unknown here");
    return floats(d, 3, FLOAT2(flushed(flushed(a) * flushed(b))));
  }
  if (d.take("f32")) return floats(d, 3, FLOAT2(a * b));
  if (d.take("f64")) return doubles(d, 3, DOUBLE2(a * b));
  integers::mul(d, false);
});
OPCODE("mad", { integers::mul(d, true); });
/// Halves of words, rounded once where fp32 holds the sum.
template <float (*widen)(u32), u32 (*narrow)(float)> Step multiply_add_halves(Machine&, Warp& warp,
                                                                              const Instruction& in, u32 lanes) {
  map3<u32, u32, u32>(warp, in, lanes, [](u32 a, u32 b, u32 c) {
    const auto half = [&](int shift) {
      const float sum = std::fma(widen(a >> shift & 0xffff), widen(b >> shift & 0xffff), widen(c >> shift & 0xffff));
      return (sum != sum ? 0x7fffu : narrow(sum)) << shift;
    };
    return half(16) | half(0);
  });
  return Step::next;
}
/// The largest float that is at most a b + c, which double holds but for its last bits.
float multiply_add_down(float a, float b, float c) {
  const float near = std::fma(a, b, c);
  const double product = double(a) * b, rest = product - near;  // exact, where they are near to each other
  return rest + c < 0 && std::isfinite(near) ? std::nextafter(near, -HUGE_VALF) : near;
}
OPCODE("fma", {
  if (d.take("rm")) {
    if (d.next() != "f32") d.refuse("the type is unknown here");
    d.end(4, [](Machine&, Warp& warp, const Instruction& in, u32 lanes) {
      map3<float, float, float>(warp, in, lanes, multiply_add_down);
      return Step::next;
    });
    return d.values(0, 4, 4, true);
  }
  if (!d.take("rn")) d.refuse("the rounding must be .rn");
  for (const bool wide : {false, true})
    if (d.take(wide ? "bf16x2" : "f16x2")) {
      d.end(4, wide ? multiply_add_halves<from_bfloat, to_bfloat> : multiply_add_halves<from_half, to_half>);
      return d.values(0, 4, 4, false);
    }
  if (d.take("f64"))
    return doubles(d, 4, [](Machine&, Warp& warp, const Instruction& in, u32 lanes) {
      map3<double, double, double>(warp, in, lanes, [](double a, double b, double c) { return std::fma(a, b, c); });
      return Step::next;
    });
  const bool ftz = d.take("ftz"), saturated = !ftz && d.take("sat");
  if (d.next() != "f32") d.refuse("the type is unknown here");
  if (saturated) {  // NaN becomes 0
    d.end(4, [](Machine&, Warp& warp, const Instruction& in, u32 lanes) {
      map3<float, float, float>(warp, in, lanes, [](float a, float b, float c) {
        const float sum = std::fma(a, b, c);
        return sum > 0 ? std::fmin(sum, 1.f) : 0.f;
      });
      return Step::next;
    });
    return d.values(0, 4, 4, true);
  }
  d.end(4, ftz ? Handler([](Machine&, Warp& warp, const Instruction& in, u32 lanes) {
          map3<float, float, float>(warp, in, lanes, [](float a, float b, float c) {
            return flushed(std::fma(flushed(a), flushed(b), flushed(c)));
          });
          return Step::next;
        })
               : Handler([](Machine&, Warp& warp, const Instruction& in, u32 lanes) {
                   map3<float, float, float>(warp, in, lanes,
                                             [](float a, float b, float c) { return std::fma(a, b, c); });
                   return Step::next;
                 }));
  d.values(0, 4, 4, true);
});
OPCODE("div", {
  const bool approximate = d.take("approx") || d.take("full");
  const bool rounded = !approximate && d.take("rn");
  const bool ftz = d.take("ftz");
  const Type type = type_of(d, d.next());
  if (is_double(type) && rounded && !ftz) return doubles(d, 3, DOUBLE2(a / b));
  if (type.kind == 'f' && type.bytes == 4 && (approximate || rounded))
    return floats(d, 3, ftz ? FLOAT2(flushed(flushed(a) / flushed(b))) : FLOAT2(a / b));
  if (approximate || rounded || ftz) d.refuse("an integer is not rounded");
  integers::div(d, type);
});
OPCODE("abs", {
  const bool ftz = d.take("ftz");
  const Type type = type_of(d, d.next());
  if (is_double(type) && !ftz) return doubles(d, 2, DOUBLE1(std::fabs(a)));
  if (type.kind == 'f' && type.bytes == 4)
    return floats(d, 2, ftz ? FLOAT1(flushed(std::fabs(a))) : FLOAT1(std::fabs(a)));
  integers::abs(d, type);
});
OPCODE("neg", {
  const bool ftz = d.take("ftz");
  const Type type = type_of(d, d.next());
  if (is_double(type) && !ftz) return doubles(d, 2, DOUBLE1(-a));
  if (type.kind == 'f' && type.bytes == 4) return floats(d, 2, ftz ? FLOAT1(flushed(-a)) : FLOAT1(-a));
  integers::neg(d, type);
});
/// The sign of a, the size of b.
OPCODE("copysign", {
  if (d.next() != "f32") d.refuse("the type is unknown here");
  floats(d, 3, FLOAT2(std::copysign(b, a)));
});

#define FUNCTION(name, word, expression)                       \
  OPCODE(name, {                                               \
    if (!d.take(word)) d.refuse("it must be ." word);          \
    const bool ftz = d.take("ftz");                            \
    if (d.next() != "f32") d.refuse("the type is unknown here"); \
    floats(d, 2, ftz ? FLOAT1(({ a = flushed(a); flushed(expression); })) : FLOAT1(expression)); \
  })
FUNCTION("ex2", "approx", exp2_of(a));
FUNCTION("lg2", "approx", std::log2(a));
FUNCTION("tanh", "approx", std::tanh(a));
FUNCTION("rsqrt", "approx", 1.f / std::sqrt(a));
OPCODE("rcp", {
  if (!d.take("rn") && !d.take("approx")) d.refuse("it must be .rn or .approx");
  const bool ftz = d.take("ftz");
  if (d.next() != "f32") d.refuse("the type is unknown here");
  floats(d, 2, ftz ? FLOAT1(flushed(1.f / flushed(a))) : FLOAT1(1.f / a));
});
OPCODE("sqrt", {
  if (!d.take("rn") && !d.take("approx")) d.refuse("it must be .rn or .approx");
  const bool ftz = d.take("ftz");
  if (d.next() != "f32") d.refuse("the type is unknown here");
  floats(d, 2, ftz ? FLOAT1(flushed(std::sqrt(flushed(a)))) : FLOAT1(std::sqrt(a)));
});

}  // namespace ptx
