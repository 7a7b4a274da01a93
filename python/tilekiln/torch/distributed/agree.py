# SPDX-License-Identifier: MIT
"""Agreement of processes on a call before anything of it travels, by the store of their group.

Each process posts what it was called with, and reads what the others were. Where they differ, all raise, within the
time of one look; where a process has ended, or says that it failed, the others raise too; for one that is only late
they wait, as a collective would. The store is the host's: no GPU waits for it. From the third call on processes of one
machine look at memory that they share in place of it.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import json
import threading
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from tilekiln._core.native import ArgumentError

from .board import ROOM, Board, Invitation

LOOK = 2.0  # s between looks at whether a process that is awaited has ended
PATIENCE = 600.0  # s that a late process is awaited
AWAKE, NAP = 200, 1e-4  # looks at a board in a row, and s between those that follow
_lock = threading.Lock()
_meetings: dict[Any, _Meeting] = {}


class _Meeting:
    """The calls of one group, in order."""

    name: tuple[str, list[int]]

    def __init__(self, group: Any) -> None:
        its: Any = dist.group.WORLD if group is None else group
        self.keep = its, dist.group.WORLD  # alive, so that no other has their ids
        ranks = dist.get_process_group_ranks(its)
        self.rank, self.world, self.calls = dist.get_rank(group), len(ranks), 0
        before = sum(
            one.name == (its.group_name, ranks) for one in _meetings.values()
        )  # in a store that outlives groups
        self.name = its.group_name, ranks
        name = hashlib.sha1(repr((self.name, before)).encode()).hexdigest()[:16]
        self.store = dist.distributed_c10d.PrefixStore(f"tilekiln/{name}", dist.distributed_c10d._get_default_store())
        self.invitation: Invitation | None = None
        self.opened: Board | None = None
        self.board: Board | None = None
        atexit.register(self._gone)
        if dist.get_backend(group) == "nccl":  # whose first transfer between two wants all there
            dist.all_reduce(torch.zeros(1, device="cuda"), group=group)

    def _gone(self) -> None:
        with contextlib.suppress(Exception):  # the store went first
            self.store.set(f"gone/{self.rank}", "")

    def met(self, what: str, mine: dict[str, Any]) -> list[dict[str, Any]]:
        call, self.calls = self.calls, self.calls + 1
        words = {"call": what, **mine}
        if self.board is not None:
            return self._by_board(self.board, call, what, words)
        if call == 0:
            self.invitation = Invitation(self.rank, self.world)
            words["board"] = self.invitation.words()
        elif call == 1:
            words["board"] = self.opened is not None
        said = self._by_store(call, what, words)
        if call < 2:
            self._open_board(call, [one.pop("board") for one in said])
        return said

    def _open_board(self, call: int, said: list[Any]) -> None:
        """After the first call try to map its memory, after the second use it, where all could."""
        assert self.invitation is not None
        if call == 0:
            self.opened = self.invitation.open(said)
            return
        self.board, self.opened = self.opened if all(said) else None, None
        self.invitation.close()

    def _by_store(self, call: int, what: str, words: dict[str, Any]) -> list[dict[str, Any]]:
        keys = [f"{call}/{rank}" for rank in range(self.world)]
        self.store.set(keys[self.rank], json.dumps(words))
        if call > 1:  # who has come to the call before this has read the one before that
            self.store.delete_key(f"{call - 2}/{self.rank}")
        waited = 0.0
        while True:
            try:
                self.store.wait(keys, timedelta(seconds=LOOK))
                break
            except Exception:  # DistStoreError, of some versions a RuntimeError
                waited += LOOK
                missing = [rank for rank, key in enumerate(keys) if not self.store.check([key])]
                self._say_missing(call, what, missing, waited)
        return [json.loads(one) for one in self.store.multi_get(keys)]

    def _by_board(self, board: Board, call: int, what: str, words: dict[str, Any]) -> list[dict[str, Any]]:
        mine = json.dumps(words).encode()
        if len(mine) > ROOM:  # as of a long refusal
            mine = json.dumps({name: _short(value) for name, value in words.items()}).encode()
        board.post(call, mine)
        said: list[bytes | None] = [None] * self.world
        begin, looks, turns = time.monotonic(), 1, 0
        while True:
            said = [board.read(rank, call) if one is None else one for rank, one in enumerate(said)]
            if None not in said:
                return [words if one == mine else json.loads(one or b"") for one in said]
            turns += 1
            if turns > AWAKE:
                time.sleep(NAP)
            waited = time.monotonic() - begin
            if waited > LOOK * looks:
                looks += 1
                self._say_missing(call, what, [rank for rank, one in enumerate(said) if one is None], waited)

    def _say_missing(self, call: int, what: str, missing: list[int], waited: float) -> None:
        ended = [rank for rank in missing if self.store.check([f"gone/{rank}"])]
        if self.board is not None:
            ended += [rank for rank in missing if self.board.ended(rank)]
        if ended or (missing and waited >= PATIENCE):
            how = "has ended" if ended else f"did not come within {PATIENCE:.0f} s"
            raise TimeoutError(
                f"group: rank {(ended or missing)[0]} {how}, {what} (call {call}) needs every process: each must make "
                "the same calls of tilekiln.torch.distributed in the same order"
            )


def _short(value: Any) -> Any:
    text = str(value)
    return value if len(text) < 256 else f"{text[:160]}... {hashlib.sha1(text.encode()).hexdigest()}"


def agree(group: Any, what: str, mine: dict[str, Any], own: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    """Words of every process of a group, by rank; its calls are numbered, and all must make the same.

    mine: JSON's values by name; all must be equal but those of `own`. "failed": why this process cannot. ArgumentError
    in all where they differ or one failed; TimeoutError where one has ended or did not come.
    """
    if dist.get_world_size(group) == 1:
        if "failed" in mine:
            raise ArgumentError(mine["failed"])
        return [mine]
    with _lock:
        key = (id(group) if group is not None else None, id(dist.group.WORLD))
        meeting = _meetings.get(key)
        if meeting is None:
            meeting = _meetings[key] = _Meeting(group)
    said = meeting.met(what, mine)
    if "failed" in mine:
        raise ArgumentError(mine["failed"])
    if all(one is said[0] for one in said):
        return said
    for rank, one in enumerate(said):
        if "failed" in one:
            raise ArgumentError(f"rank {rank} failed, and so no process can go on: {one['failed']}")
    for rank, one in enumerate(said):
        for name in (*said[0], *one):
            if name not in own and said[0].get(name) != one.get(name):
                raise ArgumentError(
                    f"{name}: was {said[0].get(name)} in rank 0 and {one.get(name)} in rank {rank}, must be the same "
                    "in every process of the group"
                )
    return said
