// SPDX-License-Identifier: MIT
// PTX ISA 9.0: cp.async, cp.async.bulk, cp.async.bulk.tensor, cp.reduce.async.bulk ("Data Movement and Conversion Instructions:
// Asynchronous copy", "Tensors": bounding box, out-of-bound access, swizzling modes).
//
// A copy into shared memory happens at some moment until its mbarrier's phase ends, or until its group is waited for; for races it
// happens from its issue on. A copy out of shared memory reads until its group is waited for, and its bytes are in global memory at some
// moment until then: wait_group.read does not say that they are.
#include <cstring>

#include "lanes.h"
#include "tensor_map.h"

namespace ptx {

namespace {

u64 global_address(const Warp& warp, const Instruction& in, const Operand& operand, int lane) {
  const Operand& base = in.items[size_t(operand.first)];
  return (base.kind == Kind::constant ? base.constant64[lane] : source<u64>(warp, base)[lane]) + u64(operand.immediate);
}
u32 shared_address(const Warp& warp, const Instruction& in, const Operand& operand, int lane) {
  const Operand& base = in.items[size_t(operand.first)];
  if (base.kind == Kind::constant) return u32(base.immediate + operand.immediate);
  return u32((base.bytes == 8 ? source<u64>(warp, base)[lane] - kSharedWindow : source<u32>(warp, base)[lane]) +
             u64(operand.immediate));
}
void know(const Warp& warp, const Instruction& in, u32 lanes) {
  for (int k = 0; k < in.operands; k++) {
    const Operand& one = in.operand[k];
    if (one.kind == Kind::address || one.kind == Kind::list)
      for (int i = 0; i < one.count; i++) must_know(warp, in, in.items[size_t(one.first + i)], lanes, "the operand");
    else if (one.kind == Kind::lanes)
      must_know(warp, in, one, lanes, "the operand");
  }
}

TensorMap map_at(Machine& machine, const Warp& warp, const Instruction& in, u64 address) {
  TensorMap map;
  if (address & 63)
    fault("ALIGN", warp, in, "the tensor map lies on %#llx, must be a multiple of 64",
          static_cast<unsigned long long>(address));
  if (address >= kParamWindow && address - kParamWindow + sizeof map <= machine.parameters.size()) {
    std::memcpy(&map, &machine.parameters[address - kParamWindow], sizeof map);
  } else {
    std::memcpy(&map, global_bytes(warp, in, address, sizeof map, nullptr), sizeof map);
  }
  if (map.magic != kTensorMap)
    fault("TENSOR", warp, in, "no tensor map lies there: cuTensorMapEncodeTiled did not make it");
  return map;
}
u32 box_bytes(const TensorMap& map) {
  u32 bytes = map.bytes;
  for (int d = 0; d < map.rank; d++) bytes *= u32(map.box[d]) + 1;
  return bytes;
}

void expect_room(Warp& warp, const Instruction& in, u32 to, u32 bytes, Mbarrier& barrier) {
  check_shared(warp, in, to, 0);
  check_shared(warp, in, to + bytes, 0);
  note_copied(warp, in, to, bytes, barrier.slot, barrier.phase + 1, true);
  if (barrier.initialised && warp.proxied.at[barrier.initialiser] < barrier.initialised)
    fault("PROXY", warp, in, "the mbarrier was initialised with no fence.mbarrier_init or fence.proxy.async between");
}

/// kMulticast: to the same place of every block of the cluster that the mask names, each of whose mbarriers counts its bytes.
template <int kRank, bool kMulticast>
Step load_tensor(Machine& machine, Warp& warp, const Instruction& in, u32 lanes) {
  know(warp, in, lanes);
  each_lane(lanes, [&](int k) {
    Copy copy = {};
    copy.what = Copy::tensor;
    copy.warp = warp.number;
    copy.to = shared_address(warp, in, in.operand[0], k);
    copy.map = global_address(warp, in, in.operand[1], k);
    copy.barrier = shared_address(warp, in, in.operand[2], k);
    for (int i = 0; i < kRank; i++)
      copy.at[i] = i32(source<u32>(warp, in.items[size_t(in.operand[1].first + 1 + i)])[k]);
    const TensorMap map = map_at(machine, warp, in, copy.map);
    if (map.rank != kRank) fault("TENSOR", warp, in, "the map has rank %d, must be %d", int(map.rank), kRank);
    if (copy.to % 128)
      fault("ALIGN", warp, in, "shared address %u of a tensor copy, must be a multiple of 128", copy.to);
    copy.bytes = box_bytes(map);
    copy.group = u32(&in - warp.block->kernel->program.data());
    const auto begin = [&](Warp& there) {
      Mbarrier& barrier = mbarrier_at(there, in, copy.barrier);
      expect_room(there, in, copy.to, copy.bytes, barrier);
      copy.phase = barrier.phase;
      std::memset(&there.block->shared_defined[copy.to], 0, copy.bytes);
      there.block->copies.push_back(copy);
    };
    if (!kMulticast) return begin(warp);
    const u32 blocks = source<u32>(warp, in.operand[3])[k] & 0xffff;
    if (!blocks) fault("TENSOR", warp, in, "a mask of no block");
    for (u32 rank = 0; rank < 16; rank++) {
      if (!(blocks >> rank & 1)) continue;
      Warp there = stand_in(warp, in, rank);
      begin(there);
    }
  });
  return Step::next;
}

Step load_bulk(Machine& machine, Warp& warp, const Instruction& in, u32 lanes) {
  know(warp, in, lanes);
  each_lane(lanes, [&](int k) {
    Copy copy = {};
    copy.what = Copy::bulk_in;
    copy.warp = warp.number;
    copy.to = shared_address(warp, in, in.operand[0], k);
    copy.from = global_address(warp, in, in.operand[1], k);
    copy.bytes = source<u32>(warp, in.operand[2])[k];
    copy.barrier = shared_address(warp, in, in.operand[3], k);
    if (copy.to % 16 || copy.from % 16 || copy.bytes % 16)
      fault("ALIGN", warp, in, "a bulk copy of %u bytes from %#llx to %u: all must be multiples of 16", copy.bytes,
            static_cast<unsigned long long>(copy.from), copy.to);
    Mbarrier& barrier = mbarrier_at(warp, in, copy.barrier);
    expect_room(warp, in, copy.to, copy.bytes, barrier);
    global_bytes(warp, in, copy.from, copy.bytes, nullptr);
    global_reads(machine, warp, in, copy.from, copy.bytes);
    copy.phase = barrier.phase;
    copy.group = u32(&in - warp.block->kernel->program.data());
    std::memset(&warp.block->shared_defined[copy.to], 0, copy.bytes);
    warp.block->copies.push_back(copy);
  });
  return Step::next;
}

/// Shared to global memory; or added, as fp32.
template <bool kAdds> Step store_bulk(Machine& machine, Warp& warp, const Instruction& in, u32 lanes) {
  know(warp, in, lanes);
  each_lane(lanes, [&](int k) {
    const u64 to = global_address(warp, in, in.operand[0], k);
    const u32 from = shared_address(warp, in, in.operand[1], k), bytes = source<u32>(warp, in.operand[2])[k];
    if (to % 16 || from % 16 || bytes % 16)
      fault("ALIGN", warp, in, "a bulk copy of %u bytes from %u to %#llx: all must be multiples of 16", bytes, from,
            static_cast<unsigned long long>(to));
    check_shared(warp, in, from, 0);
    check_shared(warp, in, from + bytes, 0);
    if (!bytes) return;
    note_fetch(warp, in, from, bytes, 2 * warp.bulk_open + 1);
    const u8* defined = &warp.block->shared_defined[from];
    for (u32 b = 0; b < bytes; b++)
      if (!defined[b]) fault("POISON", warp, in, "shared address %u was never written", from + b);
    global_bytes(warp, in, to, bytes, nullptr);
    global_wrote(machine, warp, in, to, bytes, kAdds, false);
    Copy copy = {};
    copy.what = Copy::bulk_out;
    copy.warp = warp.number;
    copy.from = to;
    copy.bytes = bytes;
    copy.adds = kAdds;
    copy.group = u32(&in - warp.block->kernel->program.data());
    copy.phase = warp.bulk_open;
    copy.data.assign(&warp.block->shared[from], &warp.block->shared[from] + bytes);
    warp.block->copies.push_back(copy);
    warp.leaving.push_back({to, from, bytes, warp.bulk_open, false, false});
  });
  return Step::next;
}

Step commit_bulk(Machine&, Warp& warp, const Instruction&, u32) {
  warp.bulk_open++;
  return Step::next;
}
/// All but the last N groups have read, or are done.
template <bool kRead> Step wait_bulk(Machine& machine, Warp& warp, const Instruction& in, u32) {
  const u32 most = u32(in.operand[0].immediate);
  auto& copies = warp.block->copies;
  for (size_t k = 0; !kRead && k < copies.size();) {
    const bool due = copies[k].what == Copy::bulk_out && copies[k].warp == warp.number &&
                     u64(copies[k].phase) + most < warp.bulk_open;
    if (due)
      perform(machine, *warp.block, k);
    else
      k++;
  }
  for (Leaving& one : warp.leaving) {
    if (one.group + most >= warp.bulk_open || one.group >= warp.bulk_open) continue;
    if (!one.read) note_fetched(warp, one.from, one.bytes, 2 * one.group + 1);
    one.read = true;
    if (!kRead && !one.done) global_done(machine, warp, one.to, one.bytes), one.done = true;
  }
  while (!warp.leaving.empty() && warp.leaving.front().done) warp.leaving.pop_front();
  return Step::next;
}

/// 4, 8 or 16 bytes, the last of them zeros where fewer are read.
Step copy_async(Machine& machine, Warp& warp, const Instruction& in, u32 lanes) {
  know(warp, in, lanes);
  const u32 bytes = u32(in.operand[2].immediate);
  each_lane(lanes, [&](int k) {
    Copy copy = {};
    copy.what = Copy::async;
    copy.warp = warp.number;
    copy.to = shared_address(warp, in, in.operand[0], k);
    copy.from = global_address(warp, in, in.operand[1], k);
    copy.bytes = in.operands > 3 ? source<u32>(warp, in.operand[3])[k] : bytes;
    if (copy.bytes > bytes) fault("ALIGN", warp, in, "reads %u bytes, copies %u", copy.bytes, bytes);
    if (copy.to % bytes || (copy.bytes && copy.from % bytes))
      fault("ALIGN", warp, in, "addresses must be multiples of %u", bytes);
    check_shared(warp, in, copy.to, bytes);
    note_write(warp, in, copy.to, bytes, k);
    if (copy.bytes) global_bytes(warp, in, copy.from, copy.bytes, nullptr);
    global_reads(machine, warp, in, copy.from, copy.bytes);
    copy.barrier = bytes;  // with its zeros
    copy.group = warp.copies_open;
    std::memset(&warp.block->shared_defined[copy.to], 0, bytes);
    if (machine.random() & 1) {
      warp.block->copies.push_back(copy);
    } else {
      warp.block->copies.push_back(copy);
      perform(machine, *warp.block, warp.block->copies.size() - 1);
    }
  });
  return Step::next;
}
Step commit_async(Machine&, Warp& warp, const Instruction&, u32) {
  warp.copies_open++;
  return Step::next;
}
template <bool kAll> Step wait_async(Machine& machine, Warp& warp, const Instruction& in, u32) {
  const u32 most = kAll ? 0 : u32(in.operand[0].immediate);
  auto& copies = warp.block->copies;
  for (size_t k = 0; k < copies.size();) {
    const bool due = copies[k].what == Copy::async && copies[k].warp == warp.number &&
                     (kAll || copies[k].group + most < warp.copies_open);
    if (due)
      perform(machine, *warp.block, k);
    else
      k++;
  }
  return Step::next;
}

u32 swizzled(u32 address, int mode) {  // CUtensorMapSwizzle: 16-byte chunks change places by the row's address
  if (mode == 3) return address ^ (address >> 3 & 0x70);
  if (mode == 2) return address ^ (address >> 3 & 0x30);
  if (mode == 1) return address ^ (address >> 3 & 0x10);
  return address;
}

/// One box, row by row; what lies outside of the tensor is zero.
void perform_tensor(Machine& machine, Block& block, const Warp& warp, const Instruction& in, const Copy& copy) {
  const TensorMap map = map_at(machine, warp, in, copy.map);
  u32 box[5] = {1, 1, 1, 1, 1};
  i64 length[5] = {1, 1, 1, 1, 1};
  for (int d = 0; d < map.rank; d++) box[d] = u32(map.box[d]) + 1, length[d] = i64(map.lengths[d]) + 1;
  const u32 row_bytes = box[0] * map.bytes;
  u32 to = copy.to;
  for (u32 i4 = 0; i4 < box[4]; i4++)
    for (u32 i3 = 0; i3 < box[3]; i3++)
      for (u32 i2 = 0; i2 < box[2]; i2++)
        for (u32 i1 = 0; i1 < box[1]; i1++, to += row_bytes) {
          const u32 in_box[5] = {0, i1, i2, i3, i4};
          i64 at[5] = {};
          for (int d = 0; d < map.rank; d++) at[d] = i64(copy.at[d]) + i64(in_box[d]) * map.every[d];
          bool inside = true;
          u64 from = map.address;
          for (int d = 1; d < map.rank; d++) {
            inside = inside && at[d] >= 0 && at[d] < length[d];
            if (inside) from += u64(at[d]) * map.strides[d - 1];
          }
          u8 bytes[256], defined[256];
          std::memset(bytes, 0, row_bytes);
          std::memset(defined, 1, row_bytes);
          const i64 first = std::max<i64>(0, -at[0]), last = std::min<i64>(box[0], length[0] - at[0]);
          if (inside && first < last) {
            u8* known = nullptr;
            const u32 count = u32(last - first) * map.bytes, skip = u32(first) * map.bytes;
            const u8* there = global_bytes(warp, in, from + u64(at[0] + first) * map.bytes, count, &known);
            std::memcpy(bytes + skip, there, count);
            std::memcpy(defined + skip, known, count);
          }
          for (u32 b = 0; b < row_bytes; b += 16) {
            const u32 place = swizzled(to + b, map.swizzle), part = std::min(16u, row_bytes - b);
            std::memcpy(&block.shared[place], bytes + b, part);
            std::memcpy(&block.shared_defined[place], defined + b, part);
          }
        }
}

/// Bytes that leave shared memory, or are added as fp32.
void perform_out(const Warp& warp, const Instruction& in, const Copy& copy) {
  u8* known = nullptr;
  u8* to = global_bytes(warp, in, copy.from, copy.bytes, &known);
  if (!copy.adds) {
    std::memcpy(to, copy.data.data(), copy.bytes);
    std::memset(known, 1, copy.bytes);
    return;
  }
  for (u32 b = 0; b < copy.bytes; b += 4) {
    float held, more;
    for (u32 i = 0; i < 4; i++)
      if (!known[b + i])
        fault("POISON", warp, in, "adds to global memory that nobody wrote, at %#llx",
              static_cast<unsigned long long>(copy.from + b));
    std::memcpy(&held, to + b, 4);
    std::memcpy(&more, &copy.data[b], 4);
    held += more;
    std::memcpy(to + b, &held, 4);
  }
}

void arrived(Block& block, const Warp& warp, const Instruction& in, const Copy& copy) {
  Mbarrier& barrier = block.mbarriers[copy.barrier];
  if (barrier.phase != copy.phase)
    fault("MBARRIER", warp, in,
          "%u bytes come to phase %u of the mbarrier at %u, were asked for in phase %u: it did not expect them",
          copy.bytes, barrier.phase, copy.barrier, copy.phase);
  barrier.bytes -= copy.bytes;
  settle(block, barrier);
}

}  // namespace

void perform(Machine& machine, Block& block, size_t which) {
  const Copy copy = block.copies[which];
  block.copies.erase(block.copies.begin() + i64(which));
  const Warp& warp = *block.warps[size_t(copy.warp)];
  static const Instruction none = [] {
    Instruction made;
    made.text = "cp.async";
    return made;
  }();
  const Instruction& in = copy.what == Copy::async ? none : block.kernel->program[copy.group];
  if (copy.what == Copy::tensor) {
    perform_tensor(machine, block, warp, in, copy);
    return arrived(block, warp, in, copy);
  }
  if (copy.what == Copy::bulk_out) return perform_out(warp, in, copy);
  if (copy.bytes) {
    u8* known = nullptr;
    const u8* from = global_bytes(warp, in, copy.from, copy.bytes, &known);
    std::memcpy(&block.shared[copy.to], from, copy.bytes);
    std::memcpy(&block.shared_defined[copy.to], known, copy.bytes);
  }
  if (copy.what == Copy::bulk_in) return arrived(block, warp, in, copy);
  std::memset(&block.shared[copy.to + copy.bytes], 0, copy.barrier - copy.bytes);
  std::memset(&block.shared_defined[copy.to + copy.bytes], 1, copy.barrier - copy.bytes);
}

OPCODE("cp", {
  if (d.take("reduce")) {
    for (const char* word : {"async", "bulk", "global", "shared::cta", "bulk_group", "add"})
      if (!d.take(word)) d.refuse(std::string("it must have .") + word);
    if (d.next() != "f32") d.refuse("the type is unknown here");
    d.end(3, store_bulk<true>);
    d.address(0), d.address(1), d.value(2, 4);
    return;
  }
  if (!d.take("async")) d.refuse("it must be .async");
  if (d.take("bulk")) {
    if (d.take("commit_group")) return d.end(0, commit_bulk);
    if (d.take("wait_group")) {
      const bool read = d.take("read");
      d.end(1, read ? wait_bulk<true> : wait_bulk<false>);
      if (d.in.operand[0].kind != Kind::constant) d.refuse("the count must be a constant");
      return;
    }
    if (d.take("tensor")) {
      const int rank = 1 + d.one_of({"1d", "2d", "3d", "4d", "5d"});
      if (!d.take("shared::cluster") && !d.take("shared::cta")) d.refuse("it must be to .shared::cluster");
      if (!d.take("global")) d.refuse("it must be from .global");
      d.take("tile");
      if (!d.take("mbarrier::complete_tx::bytes")) d.refuse("it must complete an mbarrier");
      const bool all = d.take("multicast::cluster");
      const Handler runs[] = {load_tensor<1, false>, load_tensor<2, false>, load_tensor<3, false>,
                              load_tensor<4, false>, load_tensor<5, false>},
                    multicasts[] = {load_tensor<1, true>, load_tensor<2, true>, load_tensor<3, true>,
                                    load_tensor<4, true>, load_tensor<5, true>};
      d.end(all ? 4 : 3, (all ? multicasts : runs)[rank - 1]);
      d.address(0), d.address(1), d.address(2);
      if (all) d.value(3, 2);
      Operand& where = d.in.operand[1];
      if (where.count != rank + 1) d.refuse("the coordinates must be as many as the rank");
      for (int k = 1; k <= rank; k++) d.bind(d.in.items[size_t(where.first + k)], 4, false);
      return;
    }
    if (d.take("global")) {
      if (!d.take("shared::cta") || !d.take("bulk_group")) d.refuse("it must be from .shared::cta, with .bulk_group");
      d.end(3, store_bulk<false>);
      d.address(0), d.address(1), d.value(2, 4);
      return;
    }
    if (!d.take("shared::cluster") && !d.take("shared::cta")) d.refuse("the state space is unknown here");
    if (!d.take("global") || !d.take("mbarrier::complete_tx::bytes"))
      d.refuse("it must be from .global and complete an mbarrier");
    d.end(4, load_bulk);
    d.address(0), d.address(1), d.value(2, 4), d.address(3);
    return;
  }
  if (d.take("commit_group")) return d.end(0, commit_async);
  if (d.take("wait_all")) return d.end(0, wait_async<true>);
  if (d.take("wait_group")) {
    d.end(1, wait_async<false>);
    if (d.in.operand[0].kind != Kind::constant) d.refuse("the count must be a constant");
    return;
  }
  const int cached = d.one_of({"ca", "cg"});
  if ((!d.take("shared") && !d.take("shared::cta")) || !d.take("global")) d.refuse("it must be .shared.global");
  d.take("L2::128B") || d.take("L2::256B") || d.take("L2::64B");
  d.end(3, 4, copy_async);
  d.address(0), d.address(1);
  const i64 bytes = d.in.operand[2].immediate;
  if (d.in.operand[2].kind != Kind::constant || (bytes != 16 && (cached == 1 || (bytes != 4 && bytes != 8))))
    d.refuse("the count of bytes is unknown");
  if (d.in.operands > 3) d.value(3, 4);
});

}  // namespace ptx
