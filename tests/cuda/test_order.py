# SPDX-License-Identifier: MIT
"""The backward's ordered adds, walked through without a GPU: every tile once, a team a partial, nobody waits for ever.

The walk follows kernels/attention/fmha_bwd/dq_dk_dv/cuda/order.h; the plan is plan.h beside it, compiled here.
"""

from __future__ import annotations

import copy
import ctypes
import random
import subprocess
from collections import defaultdict
from pathlib import Path
from typing import ClassVar

import pytest

ROOT = Path(__file__).resolve().parents[2]
FAR = 1 << 29


class Plan(ctypes.Structure):
    """As plan.h has it."""

    _fields_ = (
        *(
            (name, ctypes.c_int)
            for name in ("team", "passes", "units", "team_units", "lists", "partials", "turn", "workers", "key_shares")
        ),
        ("apart", ctypes.c_bool),
    )


class Planner:
    library: ClassVar[ctypes.CDLL]


@pytest.fixture(scope="module", autouse=True)
def planner(tmp_path_factory: pytest.TempPathFactory) -> None:
    out = tmp_path_factory.mktemp("plan") / "plan.so"
    command = ["g++", "-std=c++20", "-O1", "-shared", "-fPIC", "-I.", "-Wall", "-Wextra", "-Werror"]
    subprocess.run([*command, "tests/cuda/plan_of.cpp", "-o", out], cwd=ROOT, check=True)
    Planner.library = ctypes.CDLL(str(out))
    Planner.library.plan_of.restype = Plan


TILES = {64: (128, 128), 128: (64, 128), 192: (32, 64), 256: (64, 64)}
"""Query rows and keys of a tile, by head dim; those of 192 are what cuda-sm80 has above 128."""


def plan(
    heads: int,
    group: int,
    rows: int,
    keys: int,
    hdim: int,
    *,
    masked: bool,
    paired: bool,
    workers: int,
    sum_bytes: int = 1 << 40,
) -> Plan:
    """The plan of `heads` key heads of `group` query heads each, of `rows` query rows and `keys` keys."""
    numbers = (ctypes.c_longlong(number) for number in (heads, group, rows, keys))
    made: Plan = Planner.library.plan_of(
        *numbers, hdim, *TILES[hdim], masked, paired, workers, ctypes.c_longlong(sum_bytes)
    )
    return made


class Shape:
    def __init__(
        self, heads: int, group: int, rows: int, keys: int, hdim: int, left: int, right: int, shift: int
    ) -> None:
        self.heads, self.group, self.keys, self.hdim = heads, group, keys, hdim
        self.left, self.right, self.shift = left, right, shift
        self.tile_rows, self.tile_keys = TILES[hdim]
        self.query_tiles, self.key_tiles = -(-rows // self.tile_rows), -(-keys // self.tile_keys)
        self.masked, self.paired = left < FAR or right < FAR, left == FAR and right < FAR
        self.lists = -(-self.key_tiles // 2) if self.paired else self.key_tiles

    def plan(self, workers: int) -> Plan:
        rows = self.query_tiles * self.tile_rows
        return plan(
            self.heads, self.group, rows, self.keys, self.hdim, masked=self.masked, paired=self.paired, workers=workers
        )

    def shared(self, shares: int) -> list[Shape]:
        """The shares of a key head, which are heads to the walk."""
        share = copy.copy(self)
        share.group = self.group // shares
        assert share.group * shares == self.group
        return [share] * shares

    def seen(self, n: int) -> tuple[int, int]:
        """Query tiles that see key tile n."""
        first = n * self.tile_keys - self.shift - self.right
        last = min((n + 1) * self.tile_keys, self.keys) - 1 - self.shift + self.left
        begin = min(first // self.tile_rows, self.query_tiles) if first > 0 else 0
        return begin, begin if last < 0 else max(min(last // self.tile_rows + 1, self.query_tiles), begin)

    def steps(self, made: Plan, worker: int, lot: int, second: bool) -> list[tuple[int, int]]:
        """(M, ideal arrival) of a list's tile, in the order of the walk."""
        begin, end = self.seen(self.key_tiles - 1 - lot if second else lot)
        width = end - begin
        walk = [g * self.query_tiles + m for g in range(self.group) for m in range(begin, end)]
        if not self.masked:
            cut = (len(walk) - worker * len(walk) // made.team) % max(len(walk), 1)
            return [(at, order) for order, at in enumerate(walk[cut:] + walk[:cut])]
        if not second:
            return [(at, order) for order, at in enumerate(walk)]
        before = self.seen(lot)
        length = self.group * (before[1] - before[0]) + made.turn
        return [(at, length + self.group * width - 1 - order) for order, at in reversed(list(enumerate(walk)))]


def walk_through(shapes: list[Shape], made: Plan) -> None:
    """shapes: of each key head; packed sequences are shorter than what the plan was made for."""
    shapes = [share for shape in shapes for share in shape.shared(made.key_shares)]
    work: list[list[tuple[int, int, int]]] = []  # per worker: (head, partial, M) in its order, with the add's key
    adds: dict[tuple[int, int, int], list[tuple[int, int, int]]] = defaultdict(list)
    owner: dict[tuple[int, int], int] = {}
    keys_of: list[list[tuple[int, int, int]]] = []
    tiles = []
    for cta in range(made.workers):
        team, me = divmod(cta, made.team)
        mine, keys = [], []
        for unit in range(team * made.team_units, min(made.units, (team + 1) * made.team_units)):
            head, turn = divmod(unit, made.passes)
            lot, own = me * made.passes + turn, team - head * made.passes // made.team_units
            shape = shapes[head]
            if lot >= shape.lists:
                continue
            for second in (False, True) if shape.paired else (False,):
                partial = 2 * own + second if made.apart else own
                assert 0 <= partial < made.partials
                tile = shape.key_tiles - 1 - lot if second else lot
                if second and tile == lot:
                    continue
                tiles.append((head, tile))
                assert owner.setdefault((head, partial), team) == team
                for at, arrival in shape.steps(made, me, lot, second):
                    mine.append((head, partial, at))
                    keys.append((turn, arrival, tile))
                    adds[head, partial, at].append((turn, arrival, tile))
        work.append(mine)
        keys_of.append(keys)
    assert sorted(tiles) == [(head, tile) for head, shape in enumerate(shapes) for tile in range(shape.key_tiles)]
    assert {partial for _, partial, _ in adds} <= set(range(made.partials))
    for waiting in adds.values():
        waiting.sort(reverse=True)
    place = [0] * len(work)
    moved = True
    while moved:
        moved = False
        for cta, mine in enumerate(work):
            while place[cta] < len(mine) and adds[mine[place[cta]]][-1] == keys_of[cta][place[cta]]:
                adds[mine[place[cta]]].pop()
                place[cta] += 1
                moved = True
    assert not any(adds.values()), "workers wait for each other for ever"


@pytest.mark.parametrize("seed", range(4))
def test_random_shapes(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(40):
        rows, keys = draw.randint(1, 1200), draw.randint(1, 2000)
        left, right = draw.choice([(FAR, FAR), (FAR, 0), (FAR, 100), (150, 0), (300, 200), (90, FAR)])
        shape = Shape(
            draw.randint(1, 6),
            draw.choice([1, 1, 2, 4, 12]),
            rows,
            keys,
            draw.choice([*TILES]),
            left,
            right,
            draw.choice([0, keys - rows]),
        )
        workers = draw.choice([1, 2, 7, 40, 132])
        walk_through([shape] * shape.heads, shape.plan(workers))


@pytest.mark.parametrize("seed", range(4))
def test_packed_sequences_shorter_than_the_plan(seed: int) -> None:
    draw = random.Random(100 + seed)
    for _ in range(40):
        rows, keys, hdim = draw.randint(1, 1200), draw.randint(1, 2000), draw.choice([*TILES])
        left, right = draw.choice([(FAR, FAR), (FAR, 0), (FAR, 100), (150, 0), (300, 200), (90, FAR)])
        heads, group, bottom_right = draw.randint(1, 6), draw.choice([1, 1, 2, 4]), draw.random() < 0.5
        shapes = []
        for _ in range(heads):
            lengths = draw.choice([(rows, keys), (draw.randint(0, rows), draw.randint(0, keys))])
            shift = lengths[1] - lengths[0] if bottom_right else 0
            shapes.append(Shape(heads, group, *lengths, hdim, left, right, shift))
        longest = Shape(heads, group, rows, keys, hdim, left, right, 0)
        workers = draw.choice([1, 2, 7, 40, 132])
        walk_through(shapes, longest.plan(workers))


def test_few_key_heads_are_shared_out() -> None:
    """32 query heads of one key head fill the device; with as many key heads there is nothing to share out."""
    assert plan(1, 32, 4096, 4096, 128, masked=True, paired=True, workers=132).key_shares == 8
    assert plan(32, 1, 4096, 4096, 128, masked=True, paired=True, workers=132).key_shares == 1
    assert plan(1, 32, 0, 4096, 128, masked=True, paired=True, workers=132).key_shares == 1


def test_sums_of_shares_fit_the_memory_that_they_may_take() -> None:
    """Dk and dv of every share in fp32 are large where keys are many."""
    for keys in (4096, 1 << 17, 1 << 20):
        for most in (0, 1 << 24, 1 << 28, 1 << 33):
            made = plan(1, 32, keys, keys, 128, masked=True, paired=True, workers=132, sum_bytes=most)
            assert made.key_shares == 1 or 2 * made.key_shares * keys * 128 * 4 <= most
    assert plan(1, 32, 4096, 4096, 128, masked=True, paired=True, workers=132, sum_bytes=1 << 28).key_shares == 8


def test_an_order_that_workers_do_not_follow_hangs() -> None:
    shape = Shape(1, 1, 1024, 512, 128, FAR, FAR, 0)
    made = shape.plan(132)

    def steps(made: Plan, worker: int, lot: int, second: bool) -> list[tuple[int, int]]:
        upwards = [(at, shape.query_tiles - at) for at in range(shape.query_tiles)]
        return upwards if worker % 2 else [(at, at) for at, _ in reversed(upwards)]

    shape.steps = steps  # type: ignore[method-assign]
    with pytest.raises(AssertionError, match="wait for each other"):
        walk_through([shape], made)
