# SPDX-License-Identifier: MIT
"""Keys and values to the slots of a paged cache, exact: bytes as they are, or fp8 and bf8 rounded to nearest even."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._core.dtypes import NUMPY
from .drawn import Call, Random, Signature

Array = NDArray[Any]
LARGEST = {NUMPY["fp8"]: 448.0, NUMPY["bf8"]: 57344.0}


@np.errstate(all="ignore")
def quantised(x: Array, dtype: Any, scale: Array | None = None) -> Array:
    """x / scale (of one element; None: 1) in fp32, to a cache's dtype; what is beyond its largest number becomes it."""
    if x.dtype == dtype:
        return x
    by = np.float32(1) if scale is None else np.float32(scale.reshape(-1)[0])
    largest = LARGEST[np.dtype(dtype)]
    made: Array = np.clip(x.astype(np.float32) / by, -largest, largest).astype(dtype)
    return made


def reshape_and_cache(
    knew: Array,
    vnew: Array,
    k: Array,
    v: Array,
    slot_mapping: Array,
    k_scale: Array | None = None,
    v_scale: Array | None = None,
) -> tuple[Array, Array]:
    """New k, v (pages, page_size, nhead_k, hdim), the last of tokens that name one slot in each."""
    pages, size = k.shape[:2]
    slots = slot_mapping.astype(np.int64)
    known = (slots >= 0) & (slots < pages * size)
    page, place = slots[known] // size, slots[known] % size
    made = k.copy(), v.copy()
    for cache, rows, scale in zip(made, (knew, vnew), (k_scale, v_scale), strict=True):
        cache[page, place] = quantised(rows, cache.dtype, scale)[known]
    return made


def _differs(got: Array, right: Array) -> bool:
    """Bit for bit, but that a NaN may be any."""
    one, other = (np.ascontiguousarray(x).view(f"u{x.dtype.itemsize}") for x in (got, right))
    return bool(((one != other) & ~(np.isnan(got) & np.isnan(right))).any())


def answer(given: dict[str, Any], made: dict[str, Any]) -> float:
    """0 where the caches hold what they must, 1 and more elsewhere. Caches that `given` has not held bytes of 0xFF."""
    names = ("knew", "vnew", "slot_mapping", "k_scale", "v_scale")
    before = {name: given.get(name, np.zeros_like(made[name])) for name in ("k", "v")}
    for name, cache in before.items():
        if name not in given:
            cache.view(np.uint8)[...] = 0xFF
    right = reshape_and_cache(**before, **{name: given[name] for name in names if name in given})
    return 2.0 * any(_differs(made[name], one) for name, one in zip(("k", "v"), right, strict=True))


def draw(operator: str, random: Random, signature: Signature) -> Call:
    """Few pages, tokens at any of their slots, each named once; some at none. Now and then large numbers and NaN."""
    dtype = str(signature["dtype"])
    pages, size, heads = random.whole(1, 5), random.one((1, 3, 16, 33)), random.whole(1, 4)
    columns, more = random.one((64, 128, random.whole(1, 80))), random.one((64, 128, random.whole(1, 80)))
    width: Any = random.one((np.int64, np.int32))
    slots = random.numbers.permutation(pages * size)[: random.whole(0, pages * size)].astype(width)
    for at in range(len(slots)):
        if random.chance(0.1):
            slots[at] = random.one((-1, pages * size, np.iinfo(width).min, np.iinfo(width).max))
    knew = random.normal(len(slots), heads, columns, dtype=dtype, scale=random.one((1.0, 100.0)))
    vnew = random.normal(len(slots), heads, more, dtype=dtype)
    if len(slots):
        knew[0, 0, 0] = random.one((np.nan, np.inf, -np.inf, 0.0))
    given = {"knew": knew, "vnew": vnew, "slot_mapping": slots}
    if signature["cache"] != "same":
        for name in random.some(("k_scale", "v_scale"), random.whole(0, 2)):
            given[name] = np.array([random.one((0.01, 0.3, 3.0))], np.float32)
    of = dtype if signature["cache"] == "same" else str(signature["cache"])
    shapes = {"k": (pages, size, heads, columns), "v": (pages, size, heads, more)}
    return Call(given, {name: random.blank(*shape, dtype=of) for name, shape in shapes.items()})
