// SPDX-License-Identifier: MIT
// Reading and writing 32 lanes of a register. What nobody wrote spreads with values and is a fault where it matters.
#pragma once
#include "machine.h"

namespace ptx {

/// Factors of a matrix product.
enum Element : int { FP16, BF16, E4M3, E5M2, S8 };

inline Step nothing(Machine&, Warp&, const Instruction&, u32) { return Step::next; }

template <class T> inline const T* source(const Warp& warp, const Operand& from) {
  if (from.kind == Kind::constant)
    return sizeof(T) == 8 ? reinterpret_cast<const T*>(from.constant64) : reinterpret_cast<const T*>(from.constant);
  return reinterpret_cast<const T*>(warp.file.get() + from.offset);
}
template <class T> inline T* target(Warp& warp, const Operand& to) {
  return reinterpret_cast<T*>(warp.file.get() + to.offset);
}
inline u32 known(const Warp& warp, const Operand& from) { return warp.defined[from.number]; }
inline void mark(Warp& warp, const Operand& to, u32 lanes, u32 are) {
  u32& defined = warp.defined[to.number];
  defined = (defined & ~lanes) | (are & lanes);
}
inline u32 truth(const Warp& warp, const Operand& from) {
  if (from.kind == Kind::constant) return from.immediate ? ~0u : 0;
  const u32 bits = warp.predicates[from.offset];
  return from.negated ? ~bits : bits;
}
inline void set_truth(Warp& warp, const Operand& to, u32 lanes, u32 bits, u32 are) {
  u32& held = warp.predicates[to.offset];
  held = (held & ~lanes) | (bits & lanes);
  mark(warp, to, lanes, are);
}

/// The lanes' value must be there: what is stored, an address, a choice.
inline void must_know(const Warp& warp, const Instruction& in, const Operand& from, u32 lanes, const char* what) {
  const u32 missing = lanes & ~known(warp, from);
  if (missing && !warp.taint.empty())
    fault("POISON", warp, in, "%s %s is made of sums of a product that read what was not there for it (%s)", what,
          from.text.c_str(), warp.taint.c_str());
  if (missing)
    fault("POISON", warp, in, "%s %s was never written (lane %d)", what, from.text.c_str(), __builtin_ctz(missing));
}

/// A value that all lanes must share.
template <class T> inline T uniform(const Warp& warp, const Instruction& in, const Operand& from, u32 lanes,
                                    const char* what) {
  must_know(warp, in, from, lanes, what);
  const T* values = source<T>(warp, from);
  const T first = values[__builtin_ctz(lanes)];
  for (u32 rest = lanes; rest; rest &= rest - 1)
    if (values[__builtin_ctz(rest)] != first) fault("UNIFORM", warp, in, "%s differs between lanes", what);
  return first;
}

template <class Body> inline void each_lane(u32 lanes, Body body) {
  for (; lanes; lanes &= lanes - 1) body(__builtin_ctz(lanes));
}

template <class To, class From, class F> inline void map1(Warp& warp, const Instruction& in, u32 lanes, F f) {
  const From* a = source<From>(warp, in.operand[1]);
  To* to = target<To>(warp, in.operand[0]);
  To made[32];
  for (int k = 0; k < 32; k++) made[k] = f(a[k]);
  if (lanes == ~0u) {
    for (int k = 0; k < 32; k++) to[k] = made[k];
  } else {
    each_lane(lanes, [&](int k) { to[k] = made[k]; });
  }
  mark(warp, in.operand[0], lanes, known(warp, in.operand[1]));
}
template <class To, class A, class B, class F> inline void map2(Warp& warp, const Instruction& in, u32 lanes, F f) {
  const A* a = source<A>(warp, in.operand[1]);
  const B* b = source<B>(warp, in.operand[2]);
  To* to = target<To>(warp, in.operand[0]);
  To made[32];
  for (int k = 0; k < 32; k++) made[k] = f(a[k], b[k]);
  if (lanes == ~0u) {
    for (int k = 0; k < 32; k++) to[k] = made[k];
  } else {
    each_lane(lanes, [&](int k) { to[k] = made[k]; });
  }
  mark(warp, in.operand[0], lanes, known(warp, in.operand[1]) & known(warp, in.operand[2]));
}
template <class To, class A, class C, class F> inline void map3(Warp& warp, const Instruction& in, u32 lanes, F f) {
  const A *a = source<A>(warp, in.operand[1]), *b = source<A>(warp, in.operand[2]);
  const C* c = source<C>(warp, in.operand[3]);
  To* to = target<To>(warp, in.operand[0]);
  To made[32];
  for (int k = 0; k < 32; k++) made[k] = f(a[k], b[k], c[k]);
  if (lanes == ~0u) {
    for (int k = 0; k < 32; k++) to[k] = made[k];
  } else {
    each_lane(lanes, [&](int k) { to[k] = made[k]; });
  }
  mark(warp, in.operand[0], lanes,
       known(warp, in.operand[1]) & known(warp, in.operand[2]) & known(warp, in.operand[3]));
}

}  // namespace ptx
