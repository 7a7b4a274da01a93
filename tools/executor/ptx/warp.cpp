// SPDX-License-Identifier: MIT
// PTX ISA 9.0: shfl.sync, vote.sync, match.sync, redux.sync ("Data Movement", "Parallel Synchronization"), setmaxnreg, griddepcontrol.
#include "lanes.h"

namespace ptx {

namespace {

/// Tells whether all lanes of the mask are here; else this group waits for them.
bool together(Warp& warp, const Instruction& in, u32 members, u32 lanes) {
  if (~members & lanes) fault("CONVERGE", warp, in, "a lane that executes it is not in its mask");
  if ((lanes & members) == (members & warp.live)) return true;
  warp.group->state = Group::converging;
  return false;
}

enum { IDX, BFLY, UP, DOWN };

/// d|p = a of lane j, by b and c: clamp in bits 0-4 of c, the segments' mask in bits 8-12.
Step shuffle(Machine&, Warp& warp, const Instruction& in, u32 lanes) {
  const int first = in.operands - 4;
  const u32 members = uniform<u32>(warp, in, in.operand[first + 3], lanes, "the mask");
  if (!together(warp, in, members, lanes)) return Step::stay;
  const Operand& from = in.operand[first];
  const u32 *a = source<u32>(warp, from), *b = source<u32>(warp, in.operand[first + 1]),
            *c = source<u32>(warp, in.operand[first + 2]);
  must_know(warp, in, in.operand[first + 1], lanes, "the lane");
  must_know(warp, in, in.operand[first + 2], lanes, "the clamp");
  u32 made[32], are = 0, valid = 0;
  each_lane(lanes, [&](int k) {
    const int clamp = int(c[k] & 31), segments = int(c[k] >> 8 & 31), by = int(b[k] & 31);
    const int most = (k & segments) | (clamp & ~segments), least = k & segments;
    int j = k;
    bool inside = false;
    if (in.a == IDX) j = least | (by & ~segments), inside = j <= most;
    if (in.a == BFLY) j = k ^ by, inside = j <= most;
    if (in.a == UP) j = k - by, inside = j >= most;
    if (in.a == DOWN) j = k + by, inside = j <= most;
    if (!inside) j = k;
    if (inside && !(lanes >> j & 1))
      fault("CONVERGE", warp, in, "lane %d takes from lane %d, which does not execute it", k, j);
    made[k] = a[j];
    are |= (known(warp, from) >> j & 1) << k;
    valid |= u32(inside) << k;
  });
  u32* to = target<u32>(warp, in.operand[0]);
  each_lane(lanes, [&](int k) { to[k] = made[k]; });
  mark(warp, in.operand[0], lanes, are);
  if (first == 2) set_truth(warp, in.operand[1], lanes, valid, ~0u);
  return Step::next;
}

enum { ADD_S, ADD_U, MIN_S, MAX_S, MIN_U, MAX_U, AND_B, OR_B, XOR_B };

Step reduce(Machine&, Warp& warp, const Instruction& in, u32 lanes) {
  const u32 members = uniform<u32>(warp, in, in.operand[2], lanes, "the mask");
  if (!together(warp, in, members, lanes)) return Step::stay;
  must_know(warp, in, in.operand[1], lanes, "the value");
  const u32* a = source<u32>(warp, in.operand[1]);
  u32 made = a[__builtin_ctz(lanes)];
  each_lane(lanes & (lanes - 1), [&](int k) {
    switch (in.a) {
      case ADD_S:
      case ADD_U: made += a[k]; break;
      case MIN_S: made = u32(std::min(i32(made), i32(a[k]))); break;
      case MAX_S: made = u32(std::max(i32(made), i32(a[k]))); break;
      case MIN_U: made = std::min(made, a[k]); break;
      case MAX_U: made = std::max(made, a[k]); break;
      case AND_B: made &= a[k]; break;
      case OR_B: made |= a[k]; break;
      default: made ^= a[k];
    }
  });
  each_lane(lanes, [&](int k) { target<u32>(warp, in.operand[0])[k] = made; });
  mark(warp, in.operand[0], lanes, ~0u);
  return Step::next;
}

enum { ALL, ANY, BALLOT };

Step vote(Machine&, Warp& warp, const Instruction& in, u32 lanes) {
  const u32 members = uniform<u32>(warp, in, in.operand[2], lanes, "the mask");
  if (!together(warp, in, members, lanes)) return Step::stay;
  must_know(warp, in, in.operand[1], lanes, "the predicate");
  const u32 bits = truth(warp, in.operand[1]) & lanes;
  if (in.a == BALLOT) {
    each_lane(lanes, [&](int k) { target<u32>(warp, in.operand[0])[k] = bits; });
    mark(warp, in.operand[0], lanes, ~0u);
  } else {
    set_truth(warp, in.operand[0], lanes, (in.a == ALL ? bits == lanes : bits != 0) ? ~0u : 0, ~0u);
  }
  return Step::next;
}

/// The lanes whose value is this one's (any), or all of them, or none if one differs (all).
template <class T> Step match(Machine&, Warp& warp, const Instruction& in, u32 lanes) {
  const int first = in.operands - 2;
  const u32 members = uniform<u32>(warp, in, in.operand[first + 1], lanes, "the mask");
  if (!together(warp, in, members, lanes)) return Step::stay;
  must_know(warp, in, in.operand[first], lanes, "the value");
  const T* a = source<T>(warp, in.operand[first]);
  u32 made[32], same = ~0u;
  each_lane(lanes, [&](int k) {
    made[k] = 0;
    each_lane(lanes, [&](int j) { made[k] |= u32(a[j] == a[k]) << j; });
    if (made[k] != lanes) same = 0;
  });
  each_lane(lanes, [&](int k) { target<u32>(warp, in.operand[0])[k] = in.a == ANY ? made[k] : same & lanes; });
  mark(warp, in.operand[0], lanes, ~0u);
  if (first == 2) set_truth(warp, in.operand[1], lanes, same, ~0u);
  return Step::next;
}

/// The budget of a warp's registers; all warps' together are held to what the block began with.
Step set_registers(Machine&, Warp& warp, const Instruction& in, u32) {
  const u32 count = u32(in.operand[0].immediate);
  if (count < 24 || count > 256 || count % 8)
    fault("REGISTERS", warp, in, "%u registers, must be 24 to 256 in steps of 8", count);
  warp.registers_held = count;
  u32 all = 0;
  for (const auto& other : warp.block->warps) all += 32 * other->registers_held;
  if (all > 65536) fault("REGISTERS", warp, in, "the block's warps hold %u registers, there are 65536", all);
  return Step::next;
}

}  // namespace

OPCODE("shfl", {
  if (!d.take("sync")) d.refuse("it must be .sync");
  d.in.a = d.one_of({"idx", "bfly", "up", "down"});
  if (d.next() != "b32") d.refuse("the width is unknown");
  d.end(5, 6, shuffle);
  const int first = d.in.operands - 4;
  d.value(0, 4);
  if (first == 2) d.predicate(1);
  d.values(first, first + 4, 4);
});
OPCODE("redux", {
  if (!d.take("sync")) d.refuse("it must be .sync");
  const std::string what = d.next();
  const std::string type = d.next();
  const char* const names[] = {"add.s32", "add.u32", "min.s32", "max.s32", "min.u32",
                               "max.u32", "and.b32", "or.b32",  "xor.b32"};
  d.in.a = -1;
  for (int k = 0; k < 9; k++)
    if (what + "." + type == names[k]) d.in.a = k;
  if (d.in.a < 0) d.refuse("the operation is unknown");
  d.end(3, reduce);
  d.values(0, 3, 4);
});
OPCODE("vote", {
  if (!d.take("sync")) d.refuse("it must be .sync");
  d.in.a = d.one_of({"all", "any", "ballot"});
  if (d.next() != (d.in.a == BALLOT ? "b32" : "pred")) d.refuse("the type is unknown");
  d.end(3, vote);
  if (d.in.a == BALLOT)
    d.value(0, 4);
  else
    d.predicate(0);
  d.predicate(1), d.value(2, 4);
});
OPCODE("match", {
  d.in.a = d.one_of({"all", "any"});
  if (!d.take("sync")) d.refuse("it must be .sync");
  const bool wide = d.one_of({"b32", "b64"}) == 1;
  d.end(3, d.in.a == ALL ? 4 : 3, wide ? match<u64> : match<u32>);
  const int first = d.in.operands - 2;
  d.value(0, 4);
  if (first == 2) d.predicate(1);
  d.value(first, wide ? 8 : 4), d.value(first + 1, 4);
});
OPCODE("setmaxnreg", {
  d.one_of({"inc", "dec"});
  if (!d.take("sync") || !d.take("aligned") || !d.take("u32")) d.refuse("it must be .sync.aligned.u32");
  d.end(1, set_registers);
  if (d.in.operand[0].kind != Kind::constant) d.refuse("the count must be a constant");
  d.in.converges = true;
});
/// Launches run one after the other here, so that what came before is over.
OPCODE("griddepcontrol", {
  d.one_of({"wait", "launch_dependents"});
  d.end(0, nothing);
});

}  // namespace ptx
