// SPDX-License-Identifier: MIT
// PTX ISA 9.0, "Asynchronous Warpgroup Level Matrix Multiply-Accumulate Instructions": matrix descriptors, shared memory layouts
// (canonical layouts by major-ness and swizzle), register fragments, wgmma.fence, commit_group and wait_group.
//
// Each warp of a warpgroup does its 16 rows. A product runs at some moment until its group is waited for. Sums are fp32 in the
// order of k; hardware keeps more bits and truncates, so results agree to rounding and not to the bit. Those of s8 are exact, modulo 2^32.
#include <cstdio>
#include <cstring>
#include <type_traits>

#include "lanes.h"

namespace ptx {

namespace {

struct Descriptor {
  u32 start, leading, stride;
  int swizzle;  // 0: none, 1: 128 bytes, 2: 64, 3: 32
};
Descriptor described(const Warp& warp, const Instruction& in, u64 bits) {
  if (bits >> 49 & 7) fault("DESCRIPTOR", warp, in, "a base offset is unknown here");
  return {u32(bits & 0x3fff) << 4, u32(bits >> 16 & 0x3fff) << 4, u32(bits >> 32 & 0x3fff) << 4, int(bits >> 62)};
}

/// The address of 16 bytes of an operand: of row `r` (of M or N) from k on, or, of a transposed one, of k from row `r` on.
u32 chunk(const Descriptor& d, bool transposed, int r, int k, int bytes) {
  static const int spans[] = {16, 128, 64, 32};
  const u32 span = u32(spans[d.swizzle]), per = 16 / u32(bytes);  // elements of a chunk
  u32 at;
  if (!transposed) {
    const u32 along = u32(k) / per;
    at = u32(r / 8) * d.stride + u32(r % 8) * span + (d.swizzle ? along * 16 : along * d.leading);
  } else {
    const u32 along = u32(r) / per, wide = span / 16;
    at = d.swizzle ? along % wide * 16 + along / wide * d.leading + u32(k % 8) * span + u32(k / 8) * d.stride
                   : along * d.stride + u32(k % 8) * 16 + u32(k / 8) * d.leading;
  }
  at += d.start;
  if (d.swizzle) at ^= at >> 3 & (span - 16);
  return at;
}

float element(u32 bits, int type) {
  switch (type) {
    case FP16: return from_half(bits);
    case BF16: return from_bfloat(bits);
    case E4M3: return from_fp8(u8(bits), Fp8::e4m3_ocp);
    case S8: return float(i8(bits));
    default: return from_fp8(u8(bits), Fp8::e5m2_ocp);
  }
}

/// Calls body(address) for every 16 bytes that a warp's part of a product reads.
template <class Body> void each_chunk(const Warp& warp, const Instruction& in, u64 bits, bool transposed, int first,
                                      int rows, Body body) {
  const Descriptor d = described(warp, in, bits);
  const int bytes = in.c <= BF16 ? 2 : 1, depth = 32 / bytes, per = 16 / bytes;
  if (!transposed) {
    for (int r = first; r < first + rows; r++)
      for (int k = 0; k < depth; k += per) body(chunk(d, false, r, k, bytes), r, k);
  } else {
    for (int k = 0; k < depth; k++)
      for (int r = first; r < first + rows; r += per) body(chunk(d, true, r, k, bytes), r, k);
  }
}

/// An operand as floats [row][32] and whether each row is known throughout.
struct Loaded {
  float value[256][32];
  bool known[256];
};
void load_operand(Warp& warp, const Instruction& in, u64 bits, bool transposed, int first, int rows, Loaded& to) {
  const int bytes = in.c <= BF16 ? 2 : 1, per = 16 / bytes;
  std::memset(to.known, 1, sizeof to.known);
  Block& block = *warp.block;
  each_chunk(warp, in, bits, transposed, first, rows, [&](u32 at, int r, int k) {
    check_shared(warp, in, at, 16);
    const u8 *from = &block.shared[at], *defined = &block.shared_defined[at];
    for (int i = 0; i < per; i++) {
      u32 value = from[i * bytes];
      bool known = defined[i * bytes];
      if (bytes == 2) value |= u32(from[2 * i + 1]) << 8, known &= defined[2 * i + 1] != 0;
      const int row = transposed ? r + i - first : r - first, column = transposed ? k : k + i;
      to.value[row][column] = element(value, in.c);
      if (!known) to.known[row] = false;
    }
  });
}

/// Adds up the products of a warp's rows: of what they are summed in, fp32 or integers modulo 2^32.
template <class Sum> void add_up(Warp& warp, const Product& product, const Loaded& a, const Loaded& b) {
  const Instruction& in = *product.in;
  const int columns = in.a, depth = in.c <= BF16 ? 16 : 32;
  const auto factor = [](float x) {
    if constexpr (std::is_same_v<Sum, float>)
      return x;
    else
      return Sum(int(x));
  };
  Sum right[32][256];
  for (int k = 0; k < depth; k++)
    for (int n = 0; n < columns; n++) right[k][n] = factor(b.value[n][k]);
  const Operand& list = in.operand[0];
  for (int row = 0; row < 16; row++) {
    Sum sum[256];
    const int lane0 = row % 8 * 4, half = row / 8;
    for (int n = 0; n < columns; n++) {
      const Operand& to = in.items[size_t(list.first + n / 8 * 4 + half * 2 + n % 2)];
      sum[n] = product.add ? source<Sum>(warp, to)[lane0 + n % 8 / 2] : Sum(0);
    }
    for (int k = 0; k < depth; k++) {
      const Sum left = factor(a.value[row][k]);
      for (int n = 0; n < columns; n++) sum[n] += left * right[k][n];
    }
    for (int n = 0; n < columns; n++) {
      const Operand& to = in.items[size_t(list.first + n / 8 * 4 + half * 2 + n % 2)];
      const int lane = lane0 + n % 8 / 2;
      target<Sum>(warp, to)[lane] = sum[n];
      u32& defined = warp.defined[to.number];
      const bool is = !product.tainted && a.known[row] && b.known[n] && (!product.add || (defined >> lane & 1));
      defined = (defined & ~(1u << lane)) | u32(is) << lane;
    }
  }
}

void multiply(Warp& warp, const Product& product) {
  const Instruction& in = *product.in;
  const int columns = in.a, depth = in.c <= BF16 ? 16 : 32, quarter = warp.number % 4;
  const bool from_registers = in.b & 1, transposed_a = in.b >> 1 & 1, transposed_b = in.b >> 2 & 1;
  static thread_local Loaded a, b;
  if (!from_registers) {
    load_operand(warp, in, product.a, transposed_a, 16 * quarter, 16, a);
  } else {
    const Operand& list = in.operand[1];
    std::memset(a.known, 1, sizeof a.known);
    for (int word = 0; word < 4; word++) {
      const Operand& from = in.items[size_t(list.first + word)];
      const u32* values = source<u32>(warp, from);
      for (int lane = 0; lane < 32; lane++) {
        const int row = lane / 4 + 8 * (word & 1), per = depth / 8, k = per * 4 * (word >> 1) + per * (lane % 4);
        for (int i = 0; i < per; i++)
          a.value[row][k + i] =
              element(per == 2 ? values[lane] >> (16 * i) & 0xffff : values[lane] >> (8 * i) & 0xff, in.c);
        if (!(known(warp, from) >> lane & 1)) a.known[row] = false;
      }
    }
  }
  load_operand(warp, in, product.b, transposed_b, 0, columns, b);
  if (in.c == S8)
    add_up<u32>(warp, product, a, b);
  else
    add_up<float>(warp, product, a, b);
}

template <class Body> void each_read(const Warp& warp, const Product& product, Body note) {
  const Instruction& in = *product.in;
  if (!(in.b & 1)) each_chunk(warp, in, product.a, in.b >> 1 & 1, 16 * (warp.number % 4), 16, note);
  each_chunk(warp, in, product.b, in.b >> 2 & 1, 0, in.a, note);
}

/// Begins the reads of shared memory of a product. To read too early taints its sums and is no fault by itself: kernels issue
/// products of whatever lies there and never look at the sums.
void begin_reads(Warp& warp, Product& product) {
  each_read(warp, product, [&](u32 at, int, int) {
    check_shared(warp, *product.in, at, 16);
    try {
      note_fetch(warp, *product.in, at, 16, 2 * product.group);
    } catch (const Fault& fault) {
      product.tainted = true;
      warp.taint = fault.what();
    }
  });
}
void end_reads(Warp& warp, const Product& product) {
  each_read(warp, product, [&](u32 at, int, int) { note_fetched(warp, at, 16, 2 * product.group); });
}

template <class Body> void each_sum(const Product& product, Body body) {
  const Operand& sums = product.in->operand[0];
  for (int k = 0; k < sums.count; k++) body(product.in->items[size_t(sums.first + k)]);
}

/// Sums that are begun anew and nobody has used: what they were made of may go without a word.
void discard(Warp& warp, u32 number) {
  Races& races = warp.block->races;
  for (const Product& product : warp.unused) {
    bool own = false;
    each_sum(product, [&](const Operand& sum) { own |= sum.number == number; });
    if (own)
      each_read(warp, product, [&](u32 at, int, int) {
        u32& held = races.fetched[at / 16 * size_t(races.warps) + size_t(warp.number)];
        if (!(held & IN_FLIGHT)) held = 0;
      });
  }
  claim(warp, number);
}

Step issue(Machine& machine, Warp& warp, const Instruction& in, u32 lanes) {
  if (warp.block->warps.size() < size_t(warp.number / 4 * 4 + 4))
    fault("PRODUCT", warp, in, "its warpgroup has fewer than four warps");
  Product product = {&in, 0, 0, true, warp.group_open, false, false};
  if (!(in.b & 1)) product.a = uniform<u64>(warp, in, in.operand[1], lanes, "the descriptor of a");
  product.b = uniform<u64>(warp, in, in.operand[2], lanes, "the descriptor of b");
  must_know(warp, in, in.operand[3], lanes, "scale-d");
  const u32 add = truth(warp, in.operand[3]);
  if (add != 0 && add != ~0u) fault("UNIFORM", warp, in, "scale-d differs between lanes");
  product.add = add != 0;
  const auto use = [&](const Operand& one, std::vector<u32>& pending) {
    if (one.kind != Kind::lanes || one.bytes != 4) return;
    if (warp.written[one.number] == warp.fences)
      fault("FENCE", warp, in, "%s was written since the last wgmma.fence", one.text.c_str());
    pending[one.number] = std::max(pending[one.number], product.group);
  };
  const Operand& sums = in.operand[0];
  for (int k = 0; k < sums.count; k++) use(in.items[size_t(sums.first + k)], warp.pending);
  if (in.b & 1)
    for (int k = 0; k < 4; k++) use(in.items[size_t(in.operand[1].first + k)], warp.inputs);
  if (!product.add && warp.unclaimed[in.items[size_t(sums.first)].number])
    discard(warp, in.items[size_t(sums.first)].number);
  begin_reads(warp, product);
  warp.products.push_back(product);
  if (machine.random() & 1) run_products(machine, warp, warp.group_open, false);
  return Step::next;
}

Step fence(Machine&, Warp& warp, const Instruction&, u32) {
  warp.fences++;
  return Step::next;
}
Step commit(Machine&, Warp& warp, const Instruction&, u32) {
  warp.group_open++;
  return Step::next;
}
Step wait(Machine& machine, Warp& warp, const Instruction& in, u32) {
  const u32 most = u32(in.operand[0].immediate), last = warp.group_open - 1;
  if (last > most) run_products(machine, warp, last - most, true);
  return Step::next;
}

}  // namespace

void claim(Warp& warp, u32 number) {
  auto& unused = warp.unused;
  for (size_t k = 0; k < unused.size();) {
    bool own = false;
    each_sum(unused[k], [&](const Operand& sum) { own |= sum.number == number; });
    if (!own) {
      k++;
      continue;
    }
    each_sum(unused[k], [&](const Operand& sum) { warp.unclaimed[sum.number] = 0; });
    unused.erase(unused.begin() + i64(k));
  }
  warp.unclaimed[number] = 0;
}

bool taint(Warp& warp, u32 address, const char* why) {
  bool any = false;
  const auto look = [&](Product& product) {
    bool reads = false;
    each_read(warp, product, [&](u32 at, int, int) { reads |= at / 16 == address / 16; });
    if (!reads) return;
    any = product.tainted = true;
    if (product.done) each_sum(product, [&](const Operand& sum) { warp.defined[sum.number] = 0; });
  };
  for (Product& product : warp.products) look(product);
  for (Product& product : warp.unused) look(product);
  if (any) warp.taint = why;
  return any;
}

void run_products(Machine&, Warp& warp, u32 group, bool finish) {
  for (Product& product : warp.products) {
    if (product.group > group) break;
    if (!product.done) multiply(warp, product);
    product.done = true;
  }
  if (!finish) return;
  while (!warp.products.empty() && warp.products.front().group <= group) {
    const Product& product = warp.products.front();
    end_reads(warp, product);
    each_sum(product, [&](const Operand& sum) { warp.unclaimed[sum.number] = 1; });
    warp.unused.push_back(product);
    warp.products.pop_front();
  }
  warp.groups_done = std::max(warp.groups_done, group);
}

OPCODE("wgmma", {
  const int what = d.one_of({"mma_async", "fence", "commit_group", "wait_group"});
  if (!d.take("sync") || !d.take("aligned")) d.refuse("it must be .sync.aligned");
  d.in.converges = true;
  if (what == 1) return d.end(0, fence);
  if (what == 2) return d.end(0, commit);
  if (what == 3) {
    d.end(1, wait);
    if (d.in.operand[0].kind != Kind::constant) d.refuse("the count must be a constant");
    return;
  }
  const std::string shape = d.next();
  int columns = 0, depth = 0;
  if (std::sscanf(shape.c_str(), "m64n%dk%d", &columns, &depth) != 2 || columns < 8 || columns > 256 || columns % 8)
    d.refuse("the shape ." + shape + " is unknown");
  const bool integers = d.one_of({"f32", "s32"}) == 1;
  d.in.c = d.one_of({"f16", "bf16", "e4m3", "e5m2", "s8"});
  const int other = d.one_of({"f16", "bf16", "e4m3", "e5m2", "s8"});
  if (integers != (d.in.c == S8)) d.refuse("sums must be .f32, those of .s8 .s32");
  if (integers && (columns > 32 && columns % 16 != 0)) d.refuse("the shape ." + shape + " is unknown of .s8");
  if (other != d.in.c) d.refuse("a and b must have one type here");
  const bool bytes = d.in.c >= E4M3;
  if (depth != (bytes ? 32 : 16)) d.refuse("the shape ." + shape + " is unknown");
  const bool registers = d.in.operands > 1 && d.in.operand[1].kind == Kind::list;
  // d, a, b, scale-d[, imm-scale-a, imm-scale-b][, imm-trans-a][, imm-trans-b]
  const int operands = integers ? 4 : 6 + (bytes ? 0 : registers ? 1 : 2);
  d.end(operands, issue);
  d.in.a = columns;
  d.list(0, columns / 2, 4, true);
  if (registers)
    d.list(1, 4, 4);
  else
    d.value(1, 8);
  d.value(2, 8), d.predicate(3);
  for (int k = 4; k < operands; k++)
    if (d.in.operand[k].kind != Kind::constant) d.refuse("scales and transposes must be constants");
  if (!integers && (d.in.operand[4].immediate != 1 || d.in.operand[5].immediate != 1))
    d.refuse("a scale but 1 is unknown here");
  d.in.b = registers;
  if (!bytes)
    d.in.b |= (registers ? 0 : int(d.in.operand[6].immediate) << 1) | int(d.in.operand[operands - 1].immediate) << 2;
});

}  // namespace ptx
