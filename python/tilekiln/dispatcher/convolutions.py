# SPDX-License-Identifier: MIT
"""The builder of problems of grouped convolutions: lengths and windows, of one to three spatial dimensions."""

from __future__ import annotations

from .problem import Builder, Problem, at_least, missing, refusal, value_of, word_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, ClassVar, Self

    from .words import Value

_OPERATIONS = {
    word: {"operator": operator}
    for word, operator in {"forward": "conv_fwd", "bwd_data": "conv_bwd_data", "bwd_weight": "conv_bwd_weight"}.items()
}
_DTYPES = {word: {"dtype": word} for word in ("fp32", "fp16", "bf16", "int8")}
_LAYOUTS = {word: {"layout": word} for word in ("nhwgc", "ngchw")}


class GroupedConvProblemBuilder(Builder):
    """A problem of conv_fwd, conv_bwd_data or conv_bwd_weight, by the sizes of x and of the filters.

    Lengths and numbers of a window are those of the spatial dimensions, outermost first: two of images. Of a window one
    number is of all dimensions.
    """

    __slots__ = ("_window",)

    BEGINS: ClassVar[Mapping[str, Value]] = {"operator": "conv_fwd", "dtype": "fp32", "layout": "ngchw", "groups": 1}

    def __init__(self) -> None:
        super().__init__()
        self._window: dict[str, tuple[int, ...]] = {}

    def operation(self, name: str) -> Self:
        """forward, bwd_data or bwd_weight."""
        return self._said(word_of("operation", name, _OPERATIONS))

    def data_type(self, name: str) -> Self:
        """fp32, fp16, bf16, or int8 forward."""
        return self._said(word_of("data_type", name, _DTYPES))

    def out_type(self, dtype: str) -> Self:
        """Of y, or of dweight; unless given that of x, int32 of int8."""
        return self._said({"out_dtype": value_of(dtype)})

    def layout(self, name: str) -> Self:
        """nhwgc: channels of a pixel of the result lie together; ngchw: pixels of a channel."""
        return self._said(word_of("layout", name, _LAYOUTS))

    def activation(self, name: str) -> Self:
        """relu, clamp, gelu, ...; none."""
        return self._said({"activation": value_of(name)})

    def gfx_arch(self, target: str) -> Self:
        """A target of the tree, such as cpu-avx512; unless given, any."""
        return self._said({"target": value_of(target)})

    def batch(self, batch: int) -> Self:
        """Images."""
        return self._said({"batch": at_least("batch", batch, 1)})

    def channels(self, channels: int, outputs: int) -> Self:
        """Of x and of y, in all groups."""
        return self._said({"channels": at_least("channels", channels, 1), "outputs": at_least("outputs", outputs, 1)})

    def groups(self, groups: int) -> Self:
        """Groups of channels, each with outputs of its own; unless given, one."""
        return self._said({"groups": at_least("groups", groups, 1)})

    def input_size(self, *lengths: int) -> Self:
        """Of an image, without its padding. ArgumentError for other than one to three lengths of at least 1."""
        return self._put("input_size", 1, lengths)

    def filter_size(self, *lengths: int) -> Self:
        """Of a filter, alike."""
        return self._put("filter_size", 1, lengths)

    def stride(self, *numbers: int) -> Self:
        """Pixels from output to output; unless given, 1."""
        return self._put("stride", 1, numbers)

    def dilation(self, *numbers: int) -> Self:
        """Pixels from tap to tap; unless given, 1."""
        return self._put("dilation", 1, numbers)

    def padding(self, *numbers: int) -> Self:
        """Zeros before and after x; unless given, none."""
        self._put("padding", 0, numbers)
        return self._put("padding_after", 0, numbers)

    def padding_after(self, *numbers: int) -> Self:
        """Zeros after x, where they are others than those before it: said after `padding`."""
        return self._put("padding_after", 0, numbers)

    def build(self) -> Problem:
        """The problem. ArgumentError for what is missing, groups that do not divide, a filter that is too long."""
        problem, window = Problem.of(self._values | {"family": self._values["operator"]}), self._window
        values, groups = problem._values, problem.number("groups")
        if not (values.get("batch") and values.get("channels") and values.get("outputs") and groups):
            raise missing(values, *((name, name, "at least 1") for name in ("batch", "channels", "outputs", "groups")))
        for name in ("channels", "outputs"):
            if problem.number(name) % groups:
                raise refusal(name, values[name], f"a multiple of groups, {groups}")
            values[name] = problem.number(name) // groups
        lengths = window.get("input_size", ())
        if not lengths:
            raise refusal("input_size", "not given", "one to three lengths")
        each = [self._each("filter_size", len(lengths), 0)]
        each += [self._each(name, len(lengths), 1) for name in ("stride", "dilation")]
        each += [self._each(name, len(lengths), 0) for name in ("padding", "padding_after")]
        pixels = taps = 1
        for length, taps_of, stride, dilation, before, after in zip(lengths, *each, strict=True):
            padded, extent = length + before + after, dilation * (taps_of - 1) + 1
            if extent > padded:
                raise refusal("filter_size", f"{extent} pixels long with dilation", f"at most {padded}, x with padding")
            pixels *= (padded - extent) // stride + 1
            taps *= taps_of
        values |= {"spatial": f"d{len(lengths)}", "pixels": pixels, "taps": taps}
        if values.get("out_dtype") is None and values["operator"] != "conv_bwd_data":
            values["out_dtype"] = "int32" if values["dtype"] == "int8" else values["dtype"]
        return problem

    def _said(self, values: Mapping[str, Any]) -> Self:
        self._values.update(values)
        return self

    def _put(self, name: str, least: int, numbers: tuple[int, ...]) -> Self:
        if not 1 <= len(numbers) <= 3:
            raise refusal(name, f"{len(numbers)} numbers", "one to three")
        self._window[name] = tuple(at_least(name, number, least) for number in numbers)
        return self

    def _each(self, name: str, spatial: int, usual: int) -> tuple[int, ...]:
        """A number for each dimension."""
        said = self._window.get(name, (usual,))
        if name == "filter_size" and said == (0,):
            raise refusal(name, "not given", "one to three lengths")
        if len(said) == spatial:
            return said
        if len(said) > 1 or name == "filter_size":
            one = "" if name == "filter_size" else "1 or "
            raise refusal(name, f"{len(said)} numbers", f"{one}{spatial}, as many as of input_size")
        return said * spatial


__all__ = ["GroupedConvProblemBuilder"]
