"""The choice that `codegen check --reach` assumes is the choice of a library."""

from __future__ import annotations

import numpy as np
import tilekiln as tk

from codegen.schema.tree import tree
from codegen.tell import reach


def test_the_choice_that_is_proved_is_the_librarys(flash: tk.Library) -> None:
    root = tree()
    family = root.families["fmha_fwd_splitkv"]
    target = next(one for one in root.targets.values() if one.isa == flash.isa)
    hows = root.algorithms(target, family)
    cache = np.zeros((1, 128, 2, 64), np.float16)
    seen = set()
    for seqlen_q in (1, 2, 7, 8, 9, 15, 16, 17, 33, 63, 64, 65, 79, 80, 81, 97, 128, 300):
        q = np.zeros((1, seqlen_q, 4, 64), np.float16)
        number = flash.fmha_fwd_splitkv_find(q, cache, cache)
        name = flash.instance_name(number if isinstance(number, int) else number[0])
        chosen = reach.choose(family, hows, [seqlen_q])
        assert chosen is not None
        assert f"_{chosen.word}_{target.word}" in name, f"seqlen_q {seqlen_q}: {name}"
        seen.add(chosen.pipeline)
    assert seen == {"qlanes", "dlanes"}
