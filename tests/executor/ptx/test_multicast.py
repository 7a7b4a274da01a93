# SPDX-License-Identifier: MIT
"""Copies into several blocks of a cluster and arrivals at each other's mbarriers: a ring that two blocks share."""

from __future__ import annotations

import numpy as np
import pytest

from tests.executor.ptx.small import kernel
from tests.executor.ptx.test_clusters import MEET, WAIT
from tests.executor.ptx.test_copies import tensor_map
from tools.executor.ptx.module import FaultError, Module, library, writes

RELAXED = "barrier.cluster.arrive.relaxed.aligned;\n" + WAIT
ROUNDS, BYTES = 3, 256  # of a half of the stage, one row of the array

# tile: the barrier of what has come; tile + 8: of what has been read, by a warp of each block; tile + 1024: the stage.
BEGIN = (
    "mov.u32 r1, %cluster_ctarank; mov.u32 r2, %ctaid.x; mov.u32 r3, tile; add.u32 r4, r3, 8; and.b32 r5, r0, 31;\n"
    "setp.eq.u32 p0, r0, 0; @p0 mbarrier.init.shared::cta.b64 [tile], 1;\n"
    "@p0 mbarrier.init.shared::cta.b64 [r4], {count};\n"
    "@p0 fence.mbarrier_init.release.cluster;\n"
    "mov.u32 r10, 0; mov.b64 d5, k_param_1; shl.b32 r11, r1, 8; add.u32 r11, r11, r3; add.u32 r11, r11, 1024;\n"
)
SPIN = "again{0}: mbarrier.try_wait.parity.shared::cta.b64 p1, [{1}], {2}; @p1 bra done{0}; bra again{0}; done{0}:\n"
COPY = (
    "mbarrier.arrive.expect_tx.shared::cta.b64 _, [tile], 512; cvt.u16.u32 h1, {mask}; add.u32 r12, r1, {row};\n"
    "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [r11], "
    "[d5, {{r10, r12}}], [tile], h1;\n"
)
ARRIVE = (
    "bar.warp.sync 0xffffffff; setp.lt.u32 p2, r5, {lanes}; mapa.shared::cluster.u32 r13, r4, r1;\n"
    "@p2 mapa.shared::cluster.u32 r13, r4, r5; @p2 mbarrier.arrive.shared::cluster.b64 _, [r13];\n"
)


def body(begins: str = MEET, lanes: int = 2, mask: int = 3, ends: str = MEET, count: int = 2, late: bool = True) -> str:
    """One warp copies a half of the stage to both blocks, another of each reads all of it and tells both."""
    loads, looks = "", ""
    for turn in range(ROUNDS):
        loads += SPIN.format(f"e{turn}", "r4", turn + 1 & 1) + COPY.format(mask=f"r{20 + turn}", row=2 * turn)
        looks += SPIN.format(f"f{turn}", "tile", turn & 1) + (not late) * ARRIVE.format(lanes=lanes)
        looks += (
            "shl.b32 r6, r5, 4; add.u32 r7, r6, r3; ld.shared.v4.u32 {r14, r15, r16, r17}, [r7+1024];\n"
            f"mad.lo.u32 r8, r2, {ROUNDS * 2 * BYTES}, r6; cvt.u64.u32 d6, r8; add.s64 d6, d6, d0;\n"
            f"st.global.v4.u32 [d6+{turn * 2 * BYTES}], {{r14, r15, r16, r17}};\n" + late * ARRIVE.format(lanes=lanes)
        )
    masks = "".join(f"mov.u32 r{20 + turn}, {mask};\n" for turn in range(ROUNDS))
    return (
        f"{BEGIN.replace('{count}', str(count))}{masks}{begins}setp.lt.u32 p3, r0, 32; @!p3 bra looks; @!p0 bra end;\n"
        f"{loads}bra end;\n"
        f"looks:\n{looks}end:\nbar.warp.sync 0xffffffff;\n{ends}"
    )


# Blocks wait for their own reader alone.
OWN = body(count=1).replace("@p2 mapa.shared::cluster.u32 r13, r4, r5;", "setp.eq.u32 p2, r5, 0;")


# One warp stores, another reads.
STORE, LOOK = "@p0 st.shared.u32 [r3+512], r0;\n", "ld.shared.u32 r6, [r3+512];\n"


def run(text: str, seed: int, cluster: int = 2) -> tuple[np.ndarray, np.ndarray]:
    array = np.random.default_rng(5).integers(0, 2**16, (2 * ROUNDS, BYTES // 2), np.uint16)
    made = np.zeros((4, ROUNDS * 2, BYTES // 2), np.uint16)
    address = library().ptx_allocate(array.nbytes)
    assert library().ptx_copy(address, array.ctypes.data, array.nbytes) == 0
    whole = kernel(text, 2, 2048, 64).replace(".param .u64 k_param_1", ".param .align 128 .b8 k_param_1[128]")
    try:
        given = [writes(made), tensor_map(address, array, (1, BYTES // 2), 0)]
        Module(whole).launch("k", (4,), (64,), given, seed=seed, cluster=cluster)
    finally:
        library().ptx_release(address)
    return made, array


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("meet", [MEET, RELAXED])
def test_two_blocks_share_a_ring(meet: str, seed: int) -> None:
    made, array = run(body(begins=meet, ends=meet), seed)
    assert all(np.array_equal(one, array) for one in made)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (body(late=False), "RACE: writes shared address 2[0-9]* that warp 1 touched"),
        (body(begins="bar.sync 0;\n"), "RACE: reaches another block that may not have begun"),
        (body(begins=STORE + RELAXED + LOOK), "RACE: reads shared address"),
        (body(begins=RELAXED).replace("@p0 fence.mbarrier_init.release.cluster;", ""), "RACE: the mbarrier at|PROXY"),
        (OWN, "RACE: writes shared address 2[0-9]* that copies of mbarrier 0"),
        (body(lanes=1), "DEADLOCK: .*2 of 2 arrivals and 0 bytes"),
        (body(mask=0), "TENSOR: .*a mask of no block"),
        (body(mask=7), "OOB: .*block 2 of the cluster, which is not there"),
        (body(mask=1), "DEADLOCK: .*1 of 2 arrivals"),
        (body(ends="add.u32 r4, r4, 8;\n" + ARRIVE.format(lanes=2) + MEET), "MBARRIER: .*no mbarrier was initialised"),
    ],
)
def test_faults(text: str, said: str) -> None:
    with pytest.raises(Exception, match=f"(?s){said}"):
        run(text, seed=3)


def test_a_block_does_not_leave_while_others_reach_it() -> None:
    said = []
    for seed in range(20):
        try:
            run(body(ends=""), seed)
        except FaultError as error:
            said.append(str(error))
    assert said
    assert all("has left" in text for text in said), said


def test_a_kernel_that_says_its_clusters_has_no_others() -> None:
    text = kernel("", 1, 0, 64).replace(
        ".maxntid 64, 1, 1\n", ".maxntid 64, 1, 1\n.explicitcluster\n.reqnctapercluster 4, 1, 1\n"
    )
    with pytest.raises(Exception, match="LAUNCH: clusters of 2, kernel k says 4"):
        Module(text).launch("k", (4,), (64,), [writes(np.zeros(8, np.uint32))], cluster=2)
