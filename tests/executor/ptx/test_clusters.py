# SPDX-License-Identifier: MIT
"""Clusters of blocks: what they store to each other's shared memory, their barrier, and what is not ordered by it."""

from __future__ import annotations

import numpy as np
import pytest

from tests.executor.ptx.small import kernel
from tools.executor.ptx.module import Module, reads, writes

ARRIVE, WAIT = "barrier.cluster.arrive.release.aligned;\n", "barrier.cluster.wait.acquire.aligned;\n"
MEET = ARRIVE + WAIT
RELAXED = "barrier.cluster.arrive.relaxed.aligned;\n"
# One warp releases what its block told.
MEET_BY_ONE = f"bar.sync 0; setp.lt.u32 p4, r0, 32; @!p4 bra others;\n{ARRIVE}bra met;\nothers:\n{RELAXED}met:\n{WAIT}"


def clustered(body: str, parameters: int = 1, threads: int = 64) -> str:
    """`body` of a kernel of clusters of four blocks; r1 is a block's rank, r2 its number."""
    text = kernel("mov.u32 r1, %cluster_ctarank; mov.u32 r2, %ctaid.x;\n" + body, parameters, 1024, threads)
    return text.replace(
        f".maxntid {threads}, 1, 1\n", f".maxntid {threads}, 1, 1\n.explicitcluster\n.reqnctapercluster 4, 1, 1\n"
    )


# Lane l < 4 of each warp stores its block's number and warp to block l.
TELL = (
    "shr.u32 r3, r0, 5; and.b32 r4, r0, 31; mad.lo.u32 r5, r1, 2, r3; shl.b32 r5, r5, 2; mov.u32 r6, tile; "
    "add.u32 r5, r5, r6; mad.lo.u32 r7, r2, 100, r3; setp.lt.u32 p0, r4, 4;\n"
    "@p0 mapa.shared::cluster.u32 r8, r5, r4; @p0 st.shared::cluster.u32 [r8], r7;\n"
)
# Lane l < 8 of the first warp puts what the eight warps of the cluster told into row r2 of the result.
LOOK = (
    "setp.lt.u32 p1, r0, 8; shl.b32 r9, r0, 2; add.u32 r10, r9, r6; @p1 ld.shared.u32 r11, [r10]; "
    "mad.lo.u32 r12, r2, 32, r9; cvt.u64.u32 d6, r12; add.s64 d6, d6, d0; @p1 st.global.u32 [d6], r11;\n"
)


@pytest.mark.parametrize("seed", range(6))
def test_blocks_of_a_cluster_tell_each_other(seed: int) -> None:
    made = np.zeros((8, 8), np.uint32)
    Module(clustered(MEET + TELL + MEET + LOOK)).launch("k", (8,), (64,), [writes(made)], seed=seed)
    own = [100 * block + warp for block in range(8) for warp in range(2)]
    assert np.array_equal(made, [own[block // 4 * 8 :][:8] for block in range(8)])


@pytest.mark.parametrize("seed", range(6))
def test_one_warp_releases_what_its_block_told(seed: int) -> None:
    made = np.zeros((8, 8), np.uint32)
    text = clustered(RELAXED + WAIT + TELL + MEET_BY_ONE + LOOK)
    Module(text).launch("k", (8,), (64,), [writes(made)], seed=seed)
    own = [100 * block + warp for block in range(8) for warp in range(2)]
    assert np.array_equal(made, [own[block // 4 * 8 :][:8] for block in range(8)])


def test_vectors_go_to_other_blocks() -> None:
    body = MEET + (
        "add.u32 r3, r1, 1; and.b32 r3, r3, 3; mov.u32 r6, tile; shl.b32 r9, r0, 4; add.u32 r9, r9, r6; "
        "mapa.shared::cluster.u32 r8, r9, r3; st.shared::cluster.v4.u32 [r8], {r0, r1, r2, r0};\n"
    )
    body += MEET + "ld.shared.v4.u32 {r20, r21, r22, r23}, [r9]; mul.lo.u32 r10, r2, 1024; shl.b32 r11, r0, 4; "
    body += "add.u32 r10, r10, r11; cvt.u64.u32 d6, r10; add.s64 d6, d6, d0;\n"
    body += "st.global.v4.u32 [d6], {r20, r21, r22, r23};"
    made = np.zeros((4, 64, 4), np.uint32)
    Module(clustered(body)).launch("k", (4,), (64,), [writes(made)], seed=3)
    lane, before = np.arange(64), (np.arange(4) + 3) % 4
    for part, expected in enumerate((lane, before[:, None], before[:, None], lane)):
        assert np.array_equal(made[..., part], np.broadcast_to(expected, (4, 64)))


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (TELL + MEET + LOOK, "RACE: stores to another block that may not have begun"),
        (MEET + TELL + LOOK + MEET, "RACE: reads shared address|POISON"),
        (MEET + TELL + MEET + LOOK + TELL, "RACE|OOB"),
        (MEET + TELL + TELL + MEET, "RACE: stores of the cluster to shared address"),
        (MEET + TELL + RELAXED + WAIT + LOOK, "RACE: comes relaxed behind stores to other blocks"),
        (MEET + TELL + "bar.sync 0;\n" + RELAXED + WAIT, "RACE: block [0-9]+ has stored to others and no warp"),
        (MEET + TELL + MEET_BY_ONE.replace("bar.sync 0;", ""), "RACE: comes relaxed behind stores"),
        (ARRIVE + ARRIVE, "BARRIER: comes to the cluster's barrier again"),
        (WAIT, "BARRIER: waits for the cluster's barrier, to which it did not come"),
        ("setp.eq.u32 p3, r1, 2; @p3 ret;\n" + MEET, "DEADLOCK: .*waits for its cluster: [0-9]+ of 8 warps"),
        ("mov.u32 r3, 4; mov.u32 r6, tile; mapa.shared::cluster.u32 r8, r6, r3;\n", "OOB: rank 4 of a cluster of 4"),
    ],
)
def test_faults(body: str, said: str) -> None:
    made = np.zeros((4, 8), np.uint32)
    with pytest.raises(Exception, match=f"(?s){said}"):
        Module(clustered(body)).launch("k", (4,), (64,), [writes(made)], seed=1)


def test_a_grid_has_whole_clusters() -> None:
    with pytest.raises(Exception, match="LAUNCH: 6 blocks along x, kernel k has clusters of 4"):
        Module(clustered("")).launch("k", (6,), (64,), [writes(np.zeros(8, np.uint32))])


# Every block copies 256 bytes to [tile + 512, tile + 768) and waits for them.
COPIED = (
    "mov.u32 r6, tile; setp.eq.u32 p2, r0, 0; @p2 mbarrier.init.shared::cta.b64 [tile], 1; "
    "@p2 fence.mbarrier_init.release.cluster; bar.sync 0;\n"
    "add.u32 r13, r6, 512; @p2 mbarrier.arrive.expect_tx.shared::cta.b64 _, [tile], 256; "
    "@p2 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [r13], [d1], 256, [tile];\n"
    "again: mbarrier.try_wait.parity.shared::cta.b64 p3, [tile], 0; @p3 bra there; bra again; there:\n"
)
# Threads store their numbers over them, each in the block behind its own.
OVER = (
    "add.u32 r3, r1, 1; and.b32 r3, r3, 3; shl.b32 r9, r0, 2; add.u32 r10, r9, r13; "
    "mapa.shared::cluster.u32 r8, r10, r3; st.shared::cluster.u32 [r8], r0;\n"
)
READ = (
    "ld.shared.u32 r11, [r10]; mad.lo.u32 r12, r2, 256, r9; cvt.u64.u32 d6, r12; add.s64 d6, d6, d0; "
    "st.global.u32 [d6], r11;"
)


@pytest.mark.parametrize("seed", range(4))
def test_stores_to_where_copies_of_another_block_have_ended(seed: int) -> None:
    """Known by the wait for the copies and the meeting after it; without the meeting it is a race."""
    made, data = np.zeros((4, 64), np.uint32), np.arange(64, dtype=np.uint32) + 1000
    text = clustered(COPIED + MEET + OVER + MEET + READ, 2)
    Module(text).launch("k", (4,), (64,), [writes(made), reads(data)], seed=seed)
    assert np.array_equal(made, np.broadcast_to(np.arange(64), (4, 64)))
    text = clustered(MEET + COPIED + OVER + MEET + READ, 2)
    with pytest.raises(Exception, match=r"RACE: (stores of the cluster to|writes) shared address"):
        Module(text).launch("k", (4,), (64,), [writes(made), reads(data)], seed=seed)
