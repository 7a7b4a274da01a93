"""Teams, units and slots of the backward's ordered adds: those of kernels/attention/fmha_bwd/dq_dk_dv/cuda/order.h."""

from __future__ import annotations

from dataclasses import dataclass

KEYS = 128
TILE_ELEMENTS = 8192  # of a query tile: 64 rows of head dim 128, 128 rows of 64
L2_BYTES = 40 << 20  # q, dout and fp32 dq of the heads in flight
STEP_US, SUM_BYTES_PER_US = 2.4, 3e6  # of the cost estimate, fitted to an H100


@dataclass(frozen=True)
class Plan:
    """Fields as in Row."""

    team: int
    passes: int
    units: int
    team_units: int
    lists: int
    slots: int
    turn: int

    @property
    def workers(self) -> int:
        return -(-self.units // self.team_units) * self.team


def slots_of(heads: int, passes: int, team_units: int) -> int:
    """The most teams that share a head."""
    return max((h * passes + passes - 1) // team_units - h * passes // team_units + 1 for h in range(heads))


def plan(
    heads: int, rows: int, keys: int, hdim: int, *, masked: bool, paired: bool, workers: int, team: int = 0
) -> Plan:
    """The plan of `heads` key heads, `rows` query rows each (over the heads of the group) and `keys` keys.

    Least estimated time: rounds times steps, 15 % more where the heads in flight leave L2, and the sums' traffic.
    Neighbours in the order are kept two steps apart or more (four in long causal calls), so that in the steady state
    nobody waits.
    team: the team's size, where a test wants one.
    """
    tile_rows = TILE_ELEMENTS // hdim
    steps, tiles = -(-rows // tile_rows), -(-keys // KEYS)
    lists = -(-tiles // 2) if paired else tiles
    far = paired and hdim == 128 and tiles >= 128
    gap = 4 if far else 2
    most_team = workers if masked else min(workers, max(1, steps // gap))
    least_passes = min(-(-gap * tile_rows // KEYS), lists) if masked else 1
    best: tuple[float, Plan] | None = None
    for passes in [-(-lists // team)] if team else range(least_passes, lists + 1):
        size = team or -(-lists // passes)
        if size > most_team and not team:
            continue
        units = heads * passes
        team_units = -(-units // (workers // size))
        slots, teams = slots_of(heads, passes, team_units), -(-units // team_units)
        spill = 1.15 if teams * rows * hdim * 8 > L2_BYTES else 1.0
        cost = team_units * (steps + 2 * paired) * STEP_US * spill + slots * heads * rows * hdim * 4 / SUM_BYTES_PER_US
        if best is None or cost < best[0]:
            best = cost, Plan(size, passes, units, team_units, lists, slots, 2 if far else 0)
    assert best is not None
    return best[1]
