# SPDX-License-Identifier: MIT
"""The commands `tilekiln fmha-fwd` and `tilekiln fmha-bwd`: calls of attention in the options of CK Tile's 01_fmha.

Options are -name=value, as there; each stands below with its default and what it means here.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from .._core import language
from .._core.native import ArgumentError, NoKernelError


class Option(NamedTuple):
    """default: as the runner takes it; about: one line of help; only: values that are taken, where others are not."""

    default: str
    about: str
    only: tuple[str, ...] = ()
    instead: str = ""


_SHARED = {
    "v": Option("1", "1: the answer is held to the float64 reference, 0: it is not", ("0", "1", "2")),
    "mode": Option("0", "0: batch, 1: group, sequences one after the other", ("0", "1")),
    "b": Option("2", "batch"),
    "h": Option("8", "heads of q"),
    "h_k": Option("-1", "heads of k and v, -1: as h"),
    "s": Option("3328", "seqlen_q; in group mode as many as sequences with commas between, or one"),
    "s_k": Option("-1", "seqlen_k, those of s_knew with it, -1: as s"),
    "d": Option("128", "head dim of q and k"),
    "d_v": Option("-1", "head dim of v, -1: as d"),
    "iperm": Option("1", "1: b h s d, 0: b s h d; of results too", ("0", "1")),
    "operm": Option("1", "as iperm", ("0", "1")),
    "bias": Option("n", "n, 0: none; e, 1: elementwise 1 1 s s, e:1 by head, e:2 by both; a, 2: alibi, a:1: by both"),
    "mask": Option("0", "0: none; 1, t: causal, top left; 2, b: bottom right; windows t:l,r, b:l,r, xt:w, xb:w; g:y,x"),
    "kname": Option("0", "1: prints the kernel", ("0", "1")),
    "seed": Option("11939", "of the numbers in the arrays"),
    "p_drop": Option("0", "dropout"),
    "drop_seed": Option("1", "of dropout's bits"),
    "drop_offset": Option("0", "of dropout's bits"),
    "drop_prefs": Option("0", "where seed and offset are: 0, on the host", ("0",), "dropout takes numbers of the host"),
    "timer": Option("gpu", "gpu or cpu: on a CPU both are the processor's time of one thread", ("gpu", "cpu")),
    "warmup": Option("5", "calls before"),
    "repeat": Option("20", "samples"),
    "threads": Option("1", "threads of the call; wall time from 2 on. CK has no such option"),
    "device": Option("cpu", "cpu, cuda, hip; of these wall time. CK has no such option", ("cpu", "cuda", "hip")),
    "receipt": Option("", "the library, by its receipt or path [one that has it]. CK has no such option"),
}
LARGEST = 448
"""Of e4m3."""
FORWARD = {
    **_SHARED,
    "prec": Option("fp16", "fp8: bf16 comes out", ("fp16", "bf16", "fp32", "fp8"), "no kernels of it"),
    "scale_s": Option("0", "factor of the scores, 0: 1 / sqrt(d)"),
    "lse": Option("0", "1: stores the lse", ("0", "1")),
    "init": Option("uf", "ui, ni: whole numbers, uf: 0 to 1, nf: normal, tf: sines", ("ui", "ni", "uf", "nf", "tf")),
    "vlayout": Option("r", "r: v is seqlen x head dim, c: head dim x seqlen, which each call turns first", ("r", "c")),
    "num_splits": Option("1", "parts of the keys, 0: chosen by the sizes; other than 1 without dropout, by split-KV"),
    "page_block_size": Option("0", "tokens of a page of k and v, 0: they are not paged"),
    "s_knew": Option("0", "new keys, the last of s_k: they are written into the cache, then all are attended to"),
    "s_kpad": Option("-1", "tokens from one sequence of k and v to the next, in group mode, -1: none between"),
    "rotary_dim": Option("0", "rotary embedding of q and of the new keys, a multiple of 16; with -s_knew"),
    "rotary_interleaved": Option("1", "of rotary_dim: 1: pairs 2i, 2i + 1, 0: i, i + rotary_dim / 2", ("0", "1")),
    "cache_batch_idx": Option("0", "1: sequences of the cache by index, from the last; with -s_knew", ("0", "1")),
    "squant": Option("auto", "1: q, k and v of fp8 have the scales of their ranges, over 448; 0: none; auto: 1 for fp8",
                     ("auto", "0", "1")),
    **{f"range_{name}": Option("16", f"of squant, the range of {name}") for name in "qkv"},
    "range_p": Option("1", "of squant, the range of P", ("1",), "kernels scale P to its largest, 1"),
    "range_o": Option("16", "of squant, the range of O", ("16",), "O is bf16, without a range"),
}  # fmt: skip
BACKWARD = {
    **_SHARED,
    "prec": Option("fp16", "fp16, bf16, fp32", ("fp16", "bf16", "fp32"), "no kernels of it"),
    "scale": Option("0", "factor of the scores, 0: 1 / sqrt(d)"),
    "dbias": Option("0", "1: the gradient of the bias too", ("0", "1")),
    "init": Option("1", "0: whole numbers, 1: uniform in 0 to 1, 2: sines", ("0", "1", "2")),
    "deterministic": Option("0", "1: the same bits every time", ("0", "1")),
}
PROGRAMS = {"fmha-fwd": FORWARD, "fmha-bwd": BACKWARD}


def _uniform_int(random: np.random.Generator, shape: tuple[int, ...]) -> Any:
    return random.integers(-3, 4, shape).astype(np.float32)


def _normal_int(random: np.random.Generator, shape: tuple[int, ...]) -> Any:
    return random.standard_normal(shape, np.float32).round()


def _uniform(random: np.random.Generator, shape: tuple[int, ...]) -> Any:
    return random.random(shape, np.float32)


def _normal(random: np.random.Generator, shape: tuple[int, ...]) -> Any:
    return random.standard_normal(shape, np.float32)


def _sines(random: np.random.Generator, shape: tuple[int, ...]) -> Any:
    return np.sin(np.arange(math.prod(shape), dtype=np.float32)).reshape(shape)


DRAWS: dict[str, Callable[..., Any]] = {
    "ui": _uniform_int, "ni": _normal_int, "uf": _uniform, "nf": _normal, "tf": _sines,
    "0": _uniform_int, "1": _uniform, "2": _sines,
}  # fmt: skip


def help_text(program: str) -> str:
    """Every option with its default."""
    options = PROGRAMS[program]
    width = max(map(len, options))
    lines = [f"  -{name:<{width}} [{one.default or '...'}] {one.about}" for name, one in options.items()]
    head = (
        f"usage: tilekiln {program} -name=value ...\n\nAttention in the options of CK Tile's tile_example_"
        f"{program.replace('-', '_')}, its answer checked: ms, TFLOP/s of what the mask leaves, GB/s.\n\noptions:\n"
    )
    return head + "\n".join(lines)


def parsed(program: str, words: list[str]) -> dict[str, str]:
    """Every option with its value. ArgumentError names one that there is not, and a value that is not taken."""
    options = PROGRAMS[program]
    given = {name: one.default for name, one in options.items()}
    for word in words:
        name, equal, value = word.lstrip("-").partition("=")
        if not word.startswith("-") or not equal or not value:
            raise ArgumentError(f"{word!r}: must be an option and its value, such as -s=1024")
        if name not in options:
            near = language.nearest(name, options)
            meant = f"did you mean -{near[0]}?" if near else f"there are -{', -'.join(options)}"
            raise ArgumentError(f"there is no option -{name}; {meant}")
        one = options[name]
        if one.only and value not in one.only:
            instead = f": {one.instead}" if one.instead else ""
            raise ArgumentError(f"-{name}: was {value!r}, must be {' or '.join(one.only)}{instead}")
        given[name] = value
    return given


def _whole(given: dict[str, str], name: str, least: int = 1) -> int:
    value = given[name]
    if not value.lstrip("-").isdecimal() or int(value) < least or int(value) >= 2**31:
        raise ArgumentError(f"-{name}: was {value!r}, must be one integer of {least} or more")
    return int(value)


def _lengths(given: dict[str, str], name: str, batch: int) -> list[int]:
    """One length for each sequence."""
    parts = given[name].split(",")
    if len(parts) > 1 and (given["mode"] == "0" or len(parts) != batch):
        form = f"one integer, or {batch} with commas between, one a sequence" if given["mode"] == "1" else (
            "one integer of 1 or more; -mode=1 takes one a sequence"
        )  # fmt: skip
        raise ArgumentError(f"-{name}: was {given[name]!r}, must be {form}")
    made = [_whole({name: one}, name) for one in parts]
    return made if len(made) > 1 else made * batch


def _number(given: dict[str, str], name: str, most: float = math.inf) -> float:
    try:
        value = float(given[name])
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and 0 <= value < most):
        below = f" and below {most:g}" if most < math.inf else ""
        raise ArgumentError(f"-{name}: was {given[name]!r}, must be a number of 0 or more{below}")
    return value


def _else(given: dict[str, str], name: str, other: int) -> int:
    return other if given[name] == "-1" else _whole(given, name)


def mask(text: str) -> dict[str, Any]:
    """causal, window and mask_origin of CK's word for a mask."""
    kind, colon, rest = text.partition(":")
    origin = {"mask_origin": "top_left"} if kind in ("1", "t", "xt", "g") else {}
    try:
        if not colon:
            if text == "0":
                return {}
            if kind in ("1", "t", "2", "b"):
                return {"causal": True, **origin}
        elif kind in ("xt", "xb"):
            window = int(rest)
            left = window // 2 if window > 0 else -1
            return {"window": (left, window - 1 - left if window > 0 else 0), **origin}
        elif kind in ("t", "b", "g"):
            left, right = map(int, rest.split(","))
            if kind == "g":  # rows and columns of the corner, from 1
                left, right = left - 1, right - 1
            return {"window": (max(left, -1), max(right, -1)), **origin}
    except ValueError:
        pass
    raise ArgumentError(f"-mask: was {text!r}, must be 0, 1, 2, t, b, t:l,r, b:l,r, xt:w, xb:w or g:y,x")


def _bias(text: str, batch: int, heads: int) -> tuple[str, tuple[int, int] | None]:
    """(value of the axis bias, (batch, heads) of its array where it has them)."""
    kind, _, form = text.partition(":")
    if kind in ("n", "0", "none") and not form:
        return "none", None
    if kind in ("e", "elementwise", "1") and form in ("", "0", "1", "2"):
        return "elementwise", {"": (1, 1), "0": (1, 1), "1": (1, heads), "2": (batch, heads)}[form]
    if kind in ("a", "alibi", "2") and form in ("", "0", "1"):
        return "alibi", (batch, heads) if form == "1" else None
    raise ArgumentError(f"-bias: was {text!r}, must be n, e, e:1, e:2, a or a:1")


def settings_of(program: str, given: dict[str, str]) -> Any:
    """The call of `tilekiln bench` that the options say."""
    from .settings import Settings

    batch, heads, dim = _whole(given, "b"), _whole(given, "h"), _whole(given, "d")
    of_q = _lengths(given, "s", batch)
    of_k = of_q if given["s_k"] == "-1" else _lengths(given, "s_k", batch)
    queries, keys = of_q[0], of_k[0]
    pad = -1 if given.get("s_kpad", "-1") == "-1" else _whole(given, "s_kpad")
    if pad >= 0 and (given["mode"] == "0" or pad < max(of_k)):
        raise ArgumentError(f"-s_kpad: was '{pad}', must be -1, or with -mode=1 at least {max(of_k)}, the longest -s_k")
    if given["iperm"] != given["operm"] and (given["mode"] == "1" or program == "fmha-bwd"):
        raise ArgumentError(
            f"-operm: was {given['operm']!r}, must be {given['iperm']} as -iperm: in fmha-fwd of -mode=0 it may differ"
        )
    kind, of_bias = _bias(given["bias"], batch, heads)
    dtype = "fp8bf16" if given["prec"] == "fp8" else given["prec"]
    words = {
        "batch": str(batch), "nhead_q": str(heads), "nhead_k": str(_else(given, "h_k", heads)), "hdim_q": str(dim),
        "hdim_v": str(_else(given, "d_v", dim)), "dtype": dtype, "bias": kind,
    }  # fmt: skip
    if given["mode"] == "1":
        total_k = sum(of_k) if pad < 0 else batch * pad
        words |= {"mode": "group", "total_q": str(sum(of_q)), "total_k": str(total_k)}
    else:
        words |= {"seqlen_q": str(queries), "seqlen_k": str(keys)}
    uneven = pad >= 0 or len({*of_q}) > 1 or len({*of_k}) > 1
    drop = _number(given, "p_drop", 1.0)
    splits, page = (_whole(given, name, 0) if name in given else 0 for name in ("num_splits", "page_block_size"))
    operator = "fmha_bwd" if program == "fmha-bwd" else "fmha_fwd"
    if operator == "fmha_fwd" and (splits != 1 or page):
        if drop:
            raise ArgumentError(f"-p_drop: was {given['p_drop']}, must be 0 with -num_splits and -page_block_size")
        if uneven:
            raise ArgumentError(f"-s: was {given['s']!r}, must be one integer with -num_splits and -page_block_size, "
                                "as -s_k, and -s_kpad -1")  # fmt: skip
        operator = "fmha_fwd_splitkv"
        if page:
            blocks = -(-keys // page)
            words |= {"paged": "yes", "pages": str(batch * blocks), "page_size": str(page)}
            words.pop("seqlen_k", None)
            words.pop("total_k", None)
    new = _whole(given, "s_knew", 0) if "s_knew" in given else 0
    rotary = _whole(given, "rotary_dim", 0) if new else 0
    if not new:
        for name in ("rotary_dim", "cache_batch_idx"):
            if given.get(name, "0") != "0":
                raise ArgumentError(f"-{name}: was {given[name]!r}, must be 0 without -s_knew")
    else:
        words = _appending(given, words, new, rotary, keys)
        operator = "fmha_fwd_appendkv"
    scales = _scales(given) if program == "fmha-fwd" else {}
    words |= dict.fromkeys(scales, "yes")
    if given.get("lse") == "1":
        words["lse"] = "yes"
    if given.get("dbias") == "1":
        words["dbias"] = "yes"
    settings = Settings(operator, words)
    settings.arguments.update(mask(given["mask"]))
    settings.laid = _orders(given, operator)
    settings.indices = scales
    if uneven:
        starts = {"seqstart_q": of_q, "seqstart_k": of_k if pad < 0 else [pad] * batch}
        settings.indices |= {name: np.cumsum([0, *lengths]) for name, lengths in starts.items()}
        if pad >= 0:
            settings.wanted.add("seqlen_k")
            settings.indices["seqlen_k"] = np.array(of_k)
    if rotary:
        settings.lengths["Rd"] = rotary // 2
        settings.arguments["rotary_interleaved"] = given["rotary_interleaved"] == "1"
    if given["iperm"] == "1" and given["mode"] == "0":
        settings.arguments["layout"] = "bhsd"
    if operator == "fmha_fwd_splitkv" or (new and splits != 1):
        settings.arguments["num_splits"] = splits
    scale = _number(given, "scale" if program == "fmha-bwd" else "scale_s")
    if scale:
        settings.arguments["softmax_scale"] = scale
    if drop:
        seed = _whole(given, "drop_seed", 0), _whole(given, "drop_offset", 0)
        settings.arguments |= {"dropout_p": drop, "rng": seed}
    if given.get("deterministic") == "1":
        settings.arguments["deterministic"] = True
    if of_bias and kind == "alibi":
        slopes = 2.0 ** -np.arange(1, heads + 1)
        settings.indices["alibi_slopes"] = slopes * np.arange(1, batch + 1)[:, None] / batch
    elif of_bias:
        settings.ones["bias"] = of_bias
    settings.draw = DRAWS[given["init"]]
    return settings


def _scales(given: dict[str, str]) -> dict[str, Any]:
    """Factors that undo the static quantisation of q, k and v, by argument."""
    if given["squant"] == "1" and given["prec"] != "fp8":
        raise ArgumentError("-squant: was '1', must be auto or 0 without -prec=fp8")
    if given["squant"] == "0" or given["prec"] != "fp8":
        return {}
    return {f"{name}_descale": np.array([_number(given, f"range_{name}") / LARGEST]) for name in "qkv"}


def _orders(given: dict[str, str], operator: str) -> dict[str, tuple[int, ...]]:
    """The order of dimensions in memory of arrays that are not as -iperm says."""
    made: dict[str, tuple[int, ...]] = {} if given["iperm"] == given["operm"] else {"out": (0, 2, 1, 3)}
    if given.get("vlayout") == "c":
        if operator != "fmha_fwd":
            raise ArgumentError(
                "-vlayout: was 'c', must be r with -num_splits, -page_block_size and -s_knew: caches hold rows"
            )
        made["v"] = (2, 1, 0) if given["mode"] == "1" else (0, 1, 3, 2) if given["iperm"] == "1" else (0, 3, 2, 1)
    if made and given["device"] != "cpu":
        name, value, other = ("vlayout", "c", "r") if "v" in made else ("operm", given["operm"], given["iperm"])
        raise ArgumentError(f"-{name}: was {value!r}, must be {other} on a GPU")
    return made


def _appending(given: dict[str, str], words: dict[str, str], new: int, rotary: int, keys: int) -> dict[str, str]:
    """Words of the call that writes `new` keys behind the others, rotates, and attends to all."""
    if given["mode"] == "1" or _number(given, "p_drop", 1.0):
        name = "mode" if given["mode"] == "1" else "p_drop"
        raise ArgumentError(
            f"-{name}: was {given[name]!r}, must be 0 with -s_knew: caches have batches, and no dropout"
        )
    if new > keys:
        raise ArgumentError(f"-s_knew: was '{new}', must be at most {keys}: -s_k counts the new keys too")
    if rotary % 16 or rotary > int(words["hdim_q"]):
        raise ArgumentError(
            f"-rotary_dim: was '{rotary}', must be a multiple of 16 up to the head dim, {words['hdim_q']}"
        )
    bias = {"none": {}, "alibi": {"alibi_slopes": "yes"}, "elementwise": {"bias": "yes"}}[words["bias"]]
    words = {name: value for name, value in words.items() if name != "bias"} | bias
    words |= {"seqlen_new": str(new), "out": "yes"}
    if "pages" not in words:
        words["batch_cache"] = words["batch"]
    if rotary:
        words["rotary_cos"] = "yes"
    if given["cache_batch_idx"] == "1":
        words["cache_batch_idx"] = "yes"
    return words


def _report(program: str, given: dict[str, str], one: Any) -> str:
    """The line that CK's runner prints, of this call."""
    heads = given["h_k"] if given["h_k"] != "-1" else given["h"]
    keys = given["s_k"] if given["s_k"] != "-1" else given["s"]
    dim = given["d_v"] if given["d_v"] != "-1" else given["d"]
    group = given["mode"] == "1"
    layout = "bshd" if group or given["iperm"] == "0" else "bhsd"
    layout += "" if given["iperm"] == given["operm"] else "-bshd" if given["operm"] == "0" else "-bhsd"
    turned = ", v:c" if given.get("vlayout") == "c" else ""
    flops = "" if one.operations is None else f"{one.operations / one.median / 1e12:.3f} TFLOP/s, "
    valid = "" if one.error is None else f", valid:{'y' if one.error <= 1 else 'n'}"
    name = f"\n{one.instance}" if given["kname"] == "1" else ""
    where = "" if given["device"] == "cpu" else f", on {one.said.rpartition(' on ')[2]}"
    return (
        f"[{given['prec']}|{'group' if group else 'batch'}|{layout}] b:{given['b']}, h:{given['h']}/{heads}, "
        f"s:{given['s']}/{keys}, d:{given['d']}/{dim}, bias:{given['bias']}, mask:{given['mask']}, "
        f"p_drop:{given['p_drop']}{turned}, {one.median * 1e3:.3f} ms, {flops}{one.bytes / one.median / 1e9:.2f} GB/s"
        f"{valid}{where}{name}"
    )


def _first(receipt: str, settings: Any, call: Callable[[Any], Any]) -> Any:
    """Result of `call` with the library that is named, or of the first available one that has the kernel."""
    from .._generated.tables import OPERATORS
    from ..api.library import how_to_build, libraries, load

    found = [load(receipt)] if receipt else [one for one in libraries() if settings.operator in one.operators]
    refused: NoKernelError | None = None
    for library in found:
        try:
            return call(library)
        except NoKernelError as error:
            refused = refused or error
    if refused is None:
        build = how_to_build(OPERATORS[settings.operator].receipt or "flash")
        refused = NoKernelError(f"no library is built or installed that has {settings.operator}\n  build one: {build}")
    raise refused


def run(program: str, words: list[str]) -> int:
    """1 where an answer is wrong, 2 where the call is."""
    from .command import Times, measure

    if {"-?", "-h", "-help", "--help"} & set(words):
        print(help_text(program))
        return 0
    try:
        given = parsed(program, words)
        settings = settings_of(program, given)
        counts = {name: _whole(given, name, least) for name, least in (("repeat", 1), ("warmup", 0), ("threads", 1))}
        seed = _whole(given, "seed", 0)
        times = Times(counts["repeat"], counts["warmup"], counts["threads"], given["device"])
        check = given["v"] != "0"
        one = _first(given["receipt"], settings, lambda library: measure(library, settings, times, seed, check))
    except (ArgumentError, NoKernelError) as error:
        print(f"tilekiln {program}: {error}", file=sys.stderr)
        return 2
    print(_report(program, given, one))
    return int(one.error is not None and not one.error <= 1)
