# SPDX-License-Identifier: MIT
"""aiter.test_common: what its tests compare and time with, on any device."""

from __future__ import annotations

import functools
import inspect
import logging
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

logger = logging.getLogger("aiter")


def checkAllclose(
    a: Tensor, b: Tensor, rtol: float = 1e-2, atol: float = 1e-2, tol_err_ratio: float = 0.05, msg: str = "",
    printNum: int = 8, printLog: bool = True, max_abs_delta: float | None = None, catastrophic_check: bool = False,
) -> float:  # fmt: skip
    """The share of elements that are further apart than atol + rtol |b|; 1 where one is further than max_abs_delta.

    tol_err_ratio: from which share on it is logged as failed. catastrophic_check: max_abs_delta is, unless given, as
    much as the largest of b.
    """
    far = ~torch.isclose(a, b, rtol=rtol, atol=atol)
    share = float(far.double().mean()) if far.numel() else 0.0
    delta = (a.double() - b.double()).abs()
    most = max_abs_delta
    if most is None and catastrophic_check and b.numel():
        most = max(float(b.double().abs().max()), atol)
    broken = most is not None and bool((delta > most).any())
    if printLog:
        verdict = "passed" if share == 0 else "failed" if broken or share > tol_err_ratio else "warning"
        logger.info("%s[checkAllclose atol=%s rtol=%s %s] %.4f of all elements", msg, atol, rtol, verdict, share)
        if share:
            logger.info("a: %s b: %s delta: %s", a[far][:printNum], b[far][:printNum], delta[far][:printNum])
    return 1.0 if broken else share


def perftest(
    num_iters: int = 101, num_warmup: int = 2, testGraph: bool = False, num_rotate_args: int = 0,
    needTrace: bool = False, use_cuda_event: bool = False,
) -> Callable[..., Any]:  # fmt: skip
    """Decorator: the function returns (its result, microseconds of a call), the mean of num_iters calls.

    Wall time, with the device waited for before and after. Arguments are not exchanged between calls and no graph is
    recorded: num_rotate_args, testGraph and needTrace change nothing.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def timed(*arguments: Any, **named: Any) -> tuple[Any, float]:
            for _ in range(num_warmup):
                function(*arguments, **named)
            _wait()
            start, made = time.perf_counter(), None
            for _ in range(num_iters):
                made = function(*arguments, **named)
            _wait()
            return made, (time.perf_counter() - start) / num_iters * 1e6

        return timed

    return decorate


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def run_perftest(
    func: Callable[..., Any], *args: Any, num_iters: int = 101, num_warmup: int = 2, testGraph: bool = False,
    num_rotate_args: int = 0, needTrace: bool = False, use_cuda_event: bool = False, **kwargs: Any,
) -> Any:  # fmt: skip
    """(func(*args, **kwargs), microseconds of a call): `perftest` of one call."""
    return perftest(num_iters, num_warmup)(func)(*args, **kwargs)


def benchmark() -> Callable[..., Any]:
    """Decorator: the function returns its arguments by name, with the dict that it makes."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def told(*arguments: Any, **named: Any) -> dict[str, Any]:
            given = inspect.signature(function).bind(*arguments, **named)
            given.apply_defaults()
            return {**given.arguments, **(function(*arguments, **named) or {})}

        return told

    return decorate
