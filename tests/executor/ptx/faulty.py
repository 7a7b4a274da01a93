# SPDX-License-Identifier: MIT
"""Kernels that break one rule each, and the same kernels when they keep it: small PTX text by kind of fault.

A kernel has 64 threads unless it says otherwise. r0 is the number of a thread, d0 an array of 128 words that nobody
wrote, d1 one of 0, 1, 2...
"""

from __future__ import annotations

from typing import NamedTuple


class Faulty(NamedTuple):
    kind: str
    says: str
    body: str  # with the fault
    mended: str  # "": there is no such thing
    threads: int = 64
    blocks: int = 1


EACH = (
    "mul.wide.u32 d8, r0, 4; add.s64 d9, d0, d8; add.s64 d10, d1, d8; mov.u32 r1, tile; shl.b32 r2, r0, 2; "
    "add.s32 r3, r1, r2;\n"
)
"""d9, d10: a thread's word of d0 and of d1; r1: shared memory; r3: a thread's word of it."""
OTHER = "xor.b32 r2, r2, 128; add.s32 r5, r1, r2; ld.shared.u32 r6, [r5];\n"
NEIGHBOUR = "xor.b32 r2, r2, 4; add.s32 r5, r1, r2; ld.shared.u32 r6, [r5];\n"
MATRIX = "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {r6}, [r5];\n"
LOADED = EACH + "ld.global.u32 r4, [d10];\n"
FIRST = "setp.eq.u32 p0, r0, 0; "
INIT = FIRST + "@p0 mbarrier.init.shared::cta.b64 [tile], {};\n@p0 fence.mbarrier_init.release.cluster;\nbar.sync 0;\n"
WAIT = "again{0}: mbarrier.try_wait.parity.shared::cta.b64 p1, [tile], {0}; @p1 bra done{0}; bra again{0}; done{0}:\n"
COPY = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [r6], [d1], {}, [tile];\n"
EXPECT = "mbarrier.arrive.expect_tx.shared::cta.b64 _, [tile], {};\n"
# Block 0 writes the words of its threads and passes a turn on in word 0 of d1; block 1 waits for it and reads them.
TURN = (
    EACH + FIRST + "mov.u32 r5, %ctaid.x; setp.ne.u32 p3, r5, 0; ld.acquire.gpu.global.u32 r6, [d1+4]; "
    "@p3 bra later; {1} {2} @p0 red.release.gpu.global.add.u32 [d1], 1; ret;\n"
    "later: @!p0 bra come; poll: ld.{0}.gpu.global.u32 r6, [d1]; setp.eq.u32 p2, r6, 0; @p2 bra poll;\n"
    "come: bar.sync 0; ld.global.u32 r6, [d9];"
)
COPIED_OUT = (
    "st.shared.u32 [r3], r0; fence.proxy.async.shared::cta; bar.sync 0; "
    "@p0 cp.async.bulk.global.shared::cta.bulk_group [d0], [tile], 256; @p0 cp.async.bulk.commit_group; "
    "@p0 cp.async.bulk.wait_group{} 0;"
)
# A product of zeros: a of 64 rows, b of 8 columns, no swizzle.
GIVEN_BACK = (
    INIT.format(1) + LOADED + "setp.lt.u32 p2, r0, 32; @!p2 bra second; ld.shared.u32 r6, [r3+128]; {}"
    "@p0 mbarrier.arrive.shared::cta.b64 _, [tile]; ret;\nsecond: " + WAIT.format(0) + "st.shared.u32 [r3], r4;\n"
)
TILES = (
    "mov.u32 r1, tile; mov.u32 r7, 0; shl.b32 r5, r0, 5; add.s32 r5, r5, r1; st.shared.v4.u32 [r5], {r7, r7, r7, r7}; "
    "st.shared.v4.u32 [r5+16], {r7, r7, r7, r7};\n"
)
PROXY = "fence.proxy.async.shared::cta;\n"
DESCRIBED = (
    "bar.sync 0; shr.u32 r8, r1, 4; cvt.u64.u32 d12, r8; or.b64 d13, d12, 0x800400000; or.b64 d14, d12, 0x800080000;\n"
    "setp.ne.u32 p2, r0, 0xffff;\n"
)
ZEROED = "mov.f32 f1, 0f00000000; mov.f32 f2, f1; mov.f32 f3, f1; mov.f32 f4, f1;\n"
OPEN, COMMIT, DRAIN = (
    f"wgmma.{word};\n" for word in ("fence.sync.aligned", "commit_group.sync.aligned", "wait_group.sync.aligned 0")
)
PRODUCT = "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {f1, f2, f3, f4}, d13, d14, p2, 1, 1, 0, 0;\n"
SEEN = "mul.wide.u32 d8, r0, 4; add.s64 d9, d0, d8; st.global.f32 [d9], f1;\n"
MULTIPLY = TILES + PROXY + DESCRIBED + ZEROED + OPEN + PRODUCT + COMMIT

FAULTS: dict[str, Faulty] = {
    "a register that nobody wrote is stored": Faulty(
        "POISON",
        "what is stored, r9 was never written",
        EACH + "st.global.u32 [d9], r9;",
        EACH + "mov.u32 r9, 1; st.global.u32 [d9], r9;",
    ),
    "a guard that nobody wrote": Faulty(
        "POISON",
        "the guard was never written",
        EACH + "@p3 st.global.u32 [d9], r0;",
        EACH + FIRST + "@p0 st.global.u32 [d9], r0;",
    ),
    "an address of which half the lanes are written": Faulty(
        "POISON",
        r"the address d11 was never written \(lane \d\)",
        EACH + FIRST + "@p0 mov.b64 d11, d10; ld.global.u32 r4, [d11];",
        EACH + "mov.b64 d11, d10; ld.global.u32 r4, [d11];",
    ),
    "global memory that nobody wrote": Faulty(
        "POISON",
        "what is stored, r4 was never written",
        EACH + "ld.global.u32 r4, [d9]; add.s32 r4, r4, 1; st.global.u32 [d9], r4;",
        EACH + "ld.global.u32 r4, [d10]; add.s32 r4, r4, 1; st.global.u32 [d9], r4;",
    ),
    "shared memory that nobody wrote": Faulty(
        "POISON",
        "what is stored, r4 was never written",
        EACH + "ld.shared.u32 r4, [r3]; st.global.u32 [d9], r4;",
        EACH + "st.shared.u32 [r3], r0; ld.shared.u32 r4, [r3]; st.global.u32 [d9], r4;",
    ),
    "an atomic sum over what nobody wrote": Faulty(
        "POISON",
        "combines with memory that nobody wrote",
        EACH + "red.global.add.u32 [d9], r0;",
        EACH + "st.global.u32 [d9], r0; red.global.add.u32 [d9], r0;",
    ),
    "copies that nobody waited for": Faulty(
        "POISON",
        "what is stored, r4 was never written",
        EACH + "cp.async.ca.shared.global [r3], [d10], 4; cp.async.commit_group;\n"
        "ld.shared.u32 r4, [r3]; st.global.u32 [d9], r4;",
        EACH + "cp.async.ca.shared.global [r3], [d10], 4; cp.async.commit_group; cp.async.wait_group 0;\n"
        "ld.shared.u32 r4, [r3]; st.global.u32 [d9], r4;",
    ),
    "one group of copies too few is waited for": Faulty(
        "POISON",
        "what is stored, r4 was never written",
        EACH + "cp.async.ca.shared.global [r3], [d10], 4; cp.async.commit_group; cp.async.commit_group;\n"
        "cp.async.wait_group 2; ld.shared.u32 r4, [r3]; st.global.u32 [d9], r4;",
        EACH + "cp.async.ca.shared.global [r3], [d10], 4; cp.async.commit_group; cp.async.commit_group;\n"
        "cp.async.wait_group 1; ld.shared.u32 r4, [r3]; st.global.u32 [d9], r4;",
    ),
    "a warp reads what another writes": Faulty(
        "RACE",
        "(reads|writes) shared address .* that warp . touched, with nothing between",
        LOADED + "st.shared.u32 [r3], r4; " + OTHER,
        LOADED + "st.shared.u32 [r3], r4; bar.sync 0;\n" + OTHER,
    ),
    "a warp overwrites what another reads": Faulty(
        "RACE",
        "(reads|writes) shared address .* that warp . touched",
        LOADED + "st.shared.u32 [r3], r4; bar.sync 0;\n" + OTHER + "st.shared.u32 [r3], r6;",
        LOADED + "st.shared.u32 [r3], r4; bar.sync 0;\n" + OTHER + "bar.sync 0; st.shared.u32 [r3], r6;",
    ),
    "a named barrier that one of them passes by": Faulty(
        "RACE",
        "(reads|writes) shared address",
        LOADED + "setp.lt.u32 p0, r0, 32; @p0 st.shared.u32 [r3], r4; @p0 bar.arrive 1, 64; @!p0 bar.arrive 1, 64;\n"
        "@!p0 ld.shared.u32 r6, [tile];",
        LOADED + "setp.lt.u32 p0, r0, 32; @p0 st.shared.u32 [r3], r4; @p0 bar.arrive 1, 64; @!p0 bar.sync 1, 64;\n"
        "@!p0 ld.shared.u32 r6, [tile];",
    ),
    "a lane reads what another of its warp wrote": Faulty(
        "RACE",
        "reads shared address .* that another lane of its warp touched, with no bar.warp.sync between",
        LOADED + "st.shared.u32 [r3], r4;\n" + NEIGHBOUR,
        LOADED + "st.shared.u32 [r3], r4; bar.warp.sync -1;\n" + NEIGHBOUR,
    ),
    "a lane overwrites what another of its warp reads": Faulty(
        "RACE",
        "writes shared address .* that another lane of its warp touched",
        LOADED + "st.shared.u32 [r3], r4; bar.warp.sync -1;\n" + NEIGHBOUR + "st.shared.u32 [r3], r6;",
        LOADED
        + "st.shared.u32 [r3], r4; bar.warp.sync -1;\n"
        + NEIGHBOUR
        + "bar.warp.sync -1; st.shared.u32 [r3], r6;",
    ),
    "ldmatrix of what lanes wrote": Faulty(
        "RACE",
        "reads shared address .* that another lane of its warp touched",
        LOADED + "st.shared.u32 [r3], r4; and.b32 r5, r0, 96; shl.b32 r5, r5, 2; add.s32 r5, r1, r5;\n" + MATRIX,
        LOADED
        + "st.shared.u32 [r3], r4; and.b32 r5, r0, 96; shl.b32 r5, r5, 2; add.s32 r5, r1, r5; bar.warp.sync -1;\n"
        + MATRIX,
    ),
    "a lane gives back what others of its warp still read": Faulty(
        "RACE",
        "writes shared address .* that warp 0 touched",
        GIVEN_BACK.format(""),
        GIVEN_BACK.format("bar.warp.sync -1; "),
    ),
    "two blocks write one word": Faulty(
        "RACE",
        "writes global address .* that warp . of block . wrote in this launch, and the kernel acquires nothing",
        EACH + "st.global.u32 [d9], r0;",
        EACH + "mov.u32 r5, %ctaid.x; setp.eq.u32 p0, r5, 0; @p0 st.global.u32 [d9], r0;",
        blocks=2,
    ),
    "a block reads what another writes": Faulty(
        "RACE",
        "reads global address .* that warp . of block . wrote in this launch, and the kernel acquires nothing",
        EACH + "mov.u32 r5, %ctaid.x; setp.eq.u32 p0, r5, 0; @p0 st.global.u32 [d9], r0; ld.global.u32 r6, [d9];",
        EACH + "mov.u32 r5, %ctaid.x; setp.eq.u32 p0, r5, 0; @p0 st.global.u32 [d9], r0; @p0 ld.global.u32 r6, [d9];",
        blocks=2,
    ),
    "a warp reads global memory that another wrote": Faulty(
        "RACE",
        "reads global address .* that warp . of this block wrote in this launch, with nothing between",
        EACH + "st.global.u32 [d9], r0; xor.b32 r6, r0, 32; mul.wide.u32 d8, r6, 4; add.s64 d9, d0, d8; "
        "ld.global.u32 r6, [d9];",
        EACH + "st.global.u32 [d9], r0; xor.b32 r6, r0, 32; mul.wide.u32 d8, r6, 4; add.s64 d9, d0, d8; bar.sync 0; "
        "ld.global.u32 r6, [d9];",
    ),
    "a turn is passed on that no block acquires": Faulty(
        "RACE",
        "reads global address .* that warp . of block 0 wrote in this launch, with nothing between",
        TURN.format("relaxed", "st.global.u32 [d9], r0; ", "bar.sync 0; "),
        TURN.format("acquire", "st.global.u32 [d9], r0; ", "bar.sync 0; "),
        blocks=2,
    ),
    "a turn is passed on before all warps have come": Faulty(
        "RACE",
        "reads global address .* that warp . of block 0 wrote in this launch, with nothing between",
        TURN.format("acquire", "st.global.u32 [d9], r0; ", ""),
        TURN.format("acquire", "st.global.u32 [d9], r0; ", "bar.sync 0; "),
        blocks=2,
    ),
    "a turn is passed on while a bulk copy is under way": Faulty(
        "RACE",
        "(reads|writes) global address .* that warp 0 of block 0 wrote in this launch: that copy is not waited for",
        TURN.format("acquire", COPIED_OUT.format(".read"), "bar.sync 0; "),
        TURN.format("acquire", COPIED_OUT.format(""), "bar.sync 0; "),
        blocks=2,
    ),
    "a bulk copy overwrites what is read": Faulty(
        "RACE",
        "reads shared address .* that copies of mbarrier|writes shared address .* that warp",
        INIT.format(1)
        + EACH
        + "add.s32 r6, r1, 128;\n@p0 "
        + EXPECT.format(256)
        + "@p0 "
        + COPY.format(256)
        + "ld.shared.u32 r4, [r3+128];\n"
        + WAIT.format(0),
        INIT.format(1)
        + EACH
        + "add.s32 r6, r1, 128;\n@p0 "
        + EXPECT.format(256)
        + "@p0 "
        + COPY.format(256)
        + WAIT.format(0)
        + "ld.shared.u32 r4, [r3+128]; st.global.u32 [d9], r4;",
    ),
    "a warp leaves while a copy reads its tile": Faulty(
        "RACE",
        "leaves while a bulk copy still reads",
        EACH
        + "st.shared.u32 [r3], r0;\n"
        + PROXY
        + "bar.sync 0;\n"
        + FIRST
        + "@p0 cp.async.bulk.global.shared::cta.bulk_group [d0], [tile], 256; @p0 cp.async.bulk.commit_group;",
        EACH
        + "st.shared.u32 [r3], r0;\n"
        + PROXY
        + "bar.sync 0;\n"
        + FIRST
        + "@p0 cp.async.bulk.global.shared::cta.bulk_group [d0], [tile], 256; @p0 cp.async.bulk.commit_group;\n"
        "@p0 cp.async.bulk.wait_group.read 0;",
    ),
    "stores that a bulk copy reads are not fenced": Faulty(
        "PROXY",
        "by ordinary stores, with no fence.proxy.async between",
        EACH
        + "st.shared.u32 [r3], r0; bar.sync 0;\n"
        + FIRST
        + "@p0 cp.async.bulk.global.shared::cta.bulk_group [d0], [tile], 256; @p0 cp.async.bulk.commit_group;\n"
        "@p0 cp.async.bulk.wait_group 0;",
        EACH
        + "st.shared.u32 [r3], r0;\n"
        + PROXY
        + "bar.sync 0;\n"
        + FIRST
        + "@p0 cp.async.bulk.global.shared::cta.bulk_group [d0], [tile], 256; @p0 cp.async.bulk.commit_group;\n"
        "@p0 cp.async.bulk.wait_group 0;",
    ),
    "an mbarrier is not fenced after its beginning": Faulty(
        "PROXY",
        "the mbarrier was initialised with no fence.mbarrier_init",
        FIRST + "mov.u32 r1, tile; add.s32 r6, r1, 128; @p0 mbarrier.init.shared::cta.b64 [tile], 1;\n"
        "@p0 " + EXPECT.format(256) + "@p0 " + COPY.format(256) + "bar.sync 0;\n" + WAIT.format(0),
        FIRST + "mov.u32 r1, tile; add.s32 r6, r1, 128; @p0 mbarrier.init.shared::cta.b64 [tile], 1;\n"
        "@p0 fence.mbarrier_init.release.cluster;\n"
        "@p0 " + EXPECT.format(256) + "@p0 " + COPY.format(256) + "bar.sync 0;\n" + WAIT.format(0),
    ),
    "operands that ordinary stores wrote": Faulty(
        "POISON",
        "PROXY: reads shared address .* by ordinary stores",
        MULTIPLY.replace(PROXY, "") + DRAIN + SEEN,
        MULTIPLY + DRAIN + SEEN,
        threads=128,
    ),
    "accumulators before their wait": Faulty(
        "PRODUCT",
        "touches f1, which a wgmma under way uses: no wgmma.wait_group is between",
        MULTIPLY + SEEN + DRAIN,
        MULTIPLY + DRAIN + SEEN,
        threads=128,
    ),
    "a warp leaves its product": Faulty(
        "PRODUCT",
        "leaves while a wgmma is under way",
        MULTIPLY,
        MULTIPLY + DRAIN,
        threads=128,
    ),
    "a warpgroup of two warps": Faulty(
        "PRODUCT",
        "its warpgroup has fewer than four warps",
        MULTIPLY + DRAIN,
        "",
    ),
    "accumulators behind no fence": Faulty(
        "FENCE",
        "f. was written since the last wgmma.fence",
        MULTIPLY.replace(OPEN, "") + DRAIN,
        MULTIPLY + DRAIN,
        threads=128,
    ),
    "more registers than there are": Faulty(
        "REGISTERS",
        "the block's warps hold .* registers, there are 65536",
        "setmaxnreg.inc.sync.aligned.u32 240;",
        "setmaxnreg.dec.sync.aligned.u32 40;",
        threads=512,
    ),
    "more arrivals than a phase takes": Faulty(
        "MBARRIER",
        r"more arrivals than the phase takes \(1\)",
        INIT.format(1) + "@p0 " + EXPECT.format(16) + "@p0 mbarrier.arrive.shared::cta.b64 _, [tile];",
        INIT.format(2) + "@p0 " + EXPECT.format(0) + "@p0 mbarrier.arrive.shared::cta.b64 _, [tile];",
    ),
    "no mbarrier lies there": Faulty(
        "MBARRIER",
        "no mbarrier was initialised at shared address",
        FIRST + "@p0 mbarrier.arrive.shared::cta.b64 _, [tile];",
        INIT.format(1) + "@p0 mbarrier.arrive.shared::cta.b64 _, [tile];",
    ),
    "a parity of 2": Faulty(
        "MBARRIER",
        "a parity of 2, must be 0 or 1",
        INIT.format(1) + "mbarrier.try_wait.parity.shared::cta.b64 p1, [tile], 2;",
        INIT.format(1) + "mbarrier.try_wait.parity.shared::cta.b64 p1, [tile], 1;",
    ),
    "warps disagree on a barrier's threads": Faulty(
        "BARRIER",
        "(96|64) threads at barrier 1, others came with (64|96)",
        "setp.lt.u32 p0, r0, 32; @p0 bar.arrive 1, 64; @!p0 bar.arrive 1, 96;",
        "bar.arrive 1, 96;",
        threads=96,
    ),
    "barrier 16": Faulty(
        "BARRIER", "barrier 16, must be 0 to 15", "mov.u32 r1, 16; bar.sync r1, 64;", "bar.sync 15, 64;"
    ),
    "an mbarrier that lacks bytes": Faulty(
        "DEADLOCK",
        "0 of 1 arrivals and 16 bytes are missing|1 of 1 arrivals and 16 bytes are missing",
        INIT.format(1)
        + EACH
        + "add.s32 r6, r1, 128;\n@p0 "
        + EXPECT.format(272)
        + "@p0 "
        + COPY.format(256)
        + WAIT.format(0),
        INIT.format(1)
        + EACH
        + "add.s32 r6, r1, 128;\n@p0 "
        + EXPECT.format(256)
        + "@p0 "
        + COPY.format(256)
        + WAIT.format(0),
    ),
    "a phase that nobody ends": Faulty(
        "DEADLOCK",
        "wait at mbarrier .* parity 0: phase 0, 1 of 2 arrivals",
        INIT.format(2) + "@p0 mbarrier.arrive.shared::cta.b64 _, [tile];\n" + WAIT.format(0),
        INIT.format(1) + "@p0 mbarrier.arrive.shared::cta.b64 _, [tile];\n" + WAIT.format(0),
    ),
    "a barrier that one warp never reaches": Faulty(
        "DEADLOCK",
        "waits at barrier 2: 32 of 64 threads have come",
        "setp.lt.u32 p0, r0, 32; @p0 bar.sync 2, 64;",
        "setp.lt.u32 p0, r0, 32; @p0 bar.sync 2, 32;",
    ),
    "lanes that never come together": Faulty(
        "DEADLOCK",
        "lanes 00000001 wait for other lanes of ffffffff|lanes fffffffe wait",
        FIRST + "@p0 bra one; bar.warp.sync -1; bra over; one: shfl.sync.idx.b32 r4, r0, 0, 31, -1; over:",
        FIRST + "@p0 bra one; bra over; one: over: bar.warp.sync -1;",
        threads=32,
    ),
    "behind an array": Faulty(
        "OOB",
        r"is 512 bytes into allocation \d+, which has 512",
        "ld.global.u32 r4, [d1+512];",
        "ld.global.u32 r4, [d1+508];",
    ),
    "before an array": Faulty(
        "OOB",
        "lies in no allocation|is .* bytes into allocation",
        "ld.global.u32 r4, [d1+-4];",
        "ld.global.u32 r4, [d1];",
    ),
    "behind shared memory": Faulty(
        "OOB",
        r"shared address \d+, 4 bytes, outside of 1024\.\.",
        "mov.u32 r1, tile; st.shared.u32 [r1+8192], r1;",
        FIRST + "mov.u32 r1, tile; @p0 st.shared.u32 [r1+4092], r1;",
    ),
    "behind the parameters": Faulty(
        "OOB",
        "parameter offset 16, 8 bytes, of 16",
        "ld.param.u64 d5, [k_param_0+16];",
        "ld.param.u64 d5, [k_param_0+8];",
    ),
    "a bulk copy behind an array": Faulty(
        "OOB",
        "global address .* 1024 bytes",
        INIT.format(1)
        + EACH
        + "add.s32 r6, r1, 128;\n@p0 "
        + EXPECT.format(1024)
        + "@p0 "
        + COPY.format(1024)
        + WAIT.format(0),
        "",
    ),
    "a word off its alignment": Faulty(
        "ALIGN",
        "of 4 bytes is not aligned",
        "ld.global.u32 r4, [d1+2];",
        "ld.global.u32 r4, [d1+4];",
    ),
    "a lane outside of its mask": Faulty(
        "CONVERGE",
        "a lane that executes it is not in its mask",
        "shfl.sync.bfly.b32 r4, r0, 1, 31, 0x7fffffff;",
        "shfl.sync.bfly.b32 r4, r0, 1, 31, -1;",
    ),
    "a lane takes from one that is elsewhere": Faulty(
        "CONVERGE",
        "takes from lane 31, which does not execute it",
        "setp.lt.u32 p0, r0, 16; @p0 shfl.sync.idx.b32 r4, r0, 31, 31, 0xffff;",
        "setp.lt.u32 p0, r0, 16; @p0 shfl.sync.idx.b32 r4, r0, 15, 31, 0xffff;",
        threads=32,
    ),
    "descriptors that differ between lanes": Faulty(
        "UNIFORM",
        "the descriptor of b differs between lanes",
        MULTIPLY.replace(OPEN, OPEN + "cvt.u64.u32 d15, r0; add.s64 d14, d14, d15;\n") + DRAIN,
        MULTIPLY + DRAIN,
        threads=128,
    ),
    "a descriptor with a base offset": Faulty(
        "DESCRIPTOR",
        "a base offset is unknown here",
        MULTIPLY.replace(OPEN, OPEN + "or.b64 d14, d14, 0x2000000000000;\n") + DRAIN,
        MULTIPLY + DRAIN,
        threads=128,
    ),
    "no tensor map": Faulty(
        "TENSOR",
        "no tensor map lies there",
        INIT.format(1) + "mov.u32 r1, tile; add.s32 r6, r1, 128; mov.u32 r7, 0;\n"
        "@p0 cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [r6], [d1, {r7, r7}], [tile];",
        "",
    ),
    "a kernel gives up": Faulty("TRAP", "the kernel gives up", FIRST + "@p0 trap;", FIRST + "@p0 ret;"),
    "a loop without end": Faulty("RUNAWAY", "more than 20000 instructions", "again: bra again;", ""),
    "more threads than it takes": Faulty("LAUNCH", "160 threads, kernel k takes 1 to 128", "", "", threads=160),
    "a branch behind the last instruction": Faulty(
        "PC", "behind the last instruction", "bra.uni over; ret; over: } /*", ""
    ),
}
