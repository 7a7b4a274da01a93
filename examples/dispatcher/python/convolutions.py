# SPDX-License-Identifier: MIT
"""Convolutions in groups: problems, kernels and runs of all three operators, their times, keys and registries."""

import numpy as np
from dispatch_example import main, normal, over, verdict
from tilekiln.dispatcher import Call, Dispatcher, GroupedConvProblemBuilder, KernelSet, Registry, Signature
from tilekiln.reference import conv

WINDOW = {"padding": [1], "groups": 2}


def resnet() -> GroupedConvProblemBuilder:
    """A layer of two images of 14 by 15 pixels, 3 x 3 filters in two groups, to be gone on with."""
    builder = GroupedConvProblemBuilder().batch(2).channels(16, 32).groups(2)
    return builder.input_size(14, 15).filter_size(3, 3).padding(1)


def arrays(groups: int = 2, filter_: tuple[int, ...] = (3, 3), lengths: tuple[int, ...] = (14, 15)) -> tuple:
    """x and weight of such layers."""
    return normal(2, 16, *lengths, dtype="fp32"), normal(32, 16 // groups, *filter_, dtype="fp32", seed=1)


def check(label: str, made: np.ndarray, exact: object) -> None:
    """Holds a result to float64."""
    verdict(label, bool((abs(made - exact.out) <= exact.bound).all()), "x".join(map(str, made.shape)))


def _39_conv_basic() -> None:
    """A problem by its builder, the kernel that answers it, and the same problem read from real arrays."""
    of, (x, weight) = over("conv"), arrays()
    problem = resnet().activation("relu").build()
    print(f"{problem.operator}: {problem.num_ops / 1e6:.1f} MFLOP by {of.plan(problem).stages[0].instance.key.family}")
    call = Call("conv_fwd", x, weight, activation="relu", **WINDOW)
    verdict("of the arrays", of.from_call(call) == problem, "the same problem")
    check("conv_fwd", of.run(call), conv.conv_fwd(x, weight, activation="relu", **WINDOW))


def _40_conv_gradients() -> None:
    """Backward of data and of weights: operations of one builder, of as much arithmetic each."""
    of, (x, weight) = over("conv"), arrays()
    dy = normal(2, 32, 14, 15, dtype="fp32", seed=2)
    data, filters = (resnet().operation(f"bwd_{name}").build() for name in ("data", "weight"))
    exact = conv.conv_bwd_data(dy, weight, lengths=[14, 15], **WINDOW)
    check("dx", of.run(Call("conv_bwd_data", dy, weight, **WINDOW), problem=data), exact)
    exact = conv.conv_bwd_weight(x, dy, filter=[3, 3], **WINDOW)
    check("dweight", of.run(Call("conv_bwd_weight", x, dy, **WINDOW), problem=filters), exact)
    verdict("both", data.num_ops == filters.num_ops == resnet().build().num_ops, "as many products as forward")


def _41_conv_layouts() -> None:
    """One, two and three spatial dimensions, and channels last: each has kernels of its own."""
    of, families = over("conv"), set()
    for lengths in ((40,), (14, 15), (4, 6, 5)):
        x, weight = arrays(filter_=(3,) * len(lengths), lengths=lengths)
        call = Call("conv_fwd", x, weight, **WINDOW)
        families.add(of.plan(of.from_call(call)).stages[0].id)
        check(f"d{len(lengths)}", of.run(call), conv.conv_fwd(x, weight, **WINDOW))
    x, weight = arrays()
    last = np.ascontiguousarray(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    y = np.empty((2, 14, 15, 32), np.float32).transpose(0, 3, 1, 2)
    call = Call("conv_fwd", last, weight, y=y, **WINDOW)
    families.add(of.plan(of.from_call(call)).stages[0].id)
    check("channels last", of.run(call), conv.conv_fwd(x, weight, **WINDOW))
    print(f"{len(families)} kernels")


def _42_conv_pipelines() -> None:
    """A group of one channel: another pipeline is the best, and the general one may be asked for."""
    of, (x, weight) = over("conv"), arrays(groups=16)
    call = Call("conv_fwd", x, weight, padding=[1], groups=16)
    chosen = of.select(of.from_call(call))
    print(f"the choice: {chosen.key.algorithm['pipeline']}")
    panels = of.registry.filter(
        lambda one: (
            one.key.signature == chosen.key.signature
            and one.key.target == chosen.key.target
            and one.key.algorithm["pipeline"] == "panels"
        )
    )
    both = of.run(call), of.run_explicit(panels[0].key.id, call)
    verdict("panels by its id", np.allclose(*both, atol=1e-4), "the same but for the order of sums")


def _43_conv_benchmark() -> None:
    """Times of the three operators on one thread, and the arithmetic they come to."""
    of, (x, weight) = over("conv"), arrays()
    dy = normal(2, 32, 14, 15, dtype="fp32", seed=2)
    of.set_timing(cold=2, repeat=5)
    for call in (
        Call("conv_fwd", x, weight, num_threads=1, **WINDOW),
        Call("conv_bwd_data", dy, weight, num_threads=1, **WINDOW),
        Call("conv_bwd_weight", x, dy, num_threads=1, **WINDOW),
    ):
        times, problem = of.time(call), of.from_call(call)
        speed = f"{times.median:.3f} ms, {problem.num_ops / times.median / 1e6:.1f} GFLOP/s"
        verdict(call.operator, times.runs == 5 and 0 < times.min <= times.median <= times.max, speed)
    of.set_benchmarking(False)


def _44_conv_registry() -> None:
    """A registry as JSON and back, keys that know no sizes, and a set of kernels that a program declares."""
    of = over("conv")
    read = Registry("conv")
    read.from_json(of.registry.to_json())
    verdict("export, import, export", read.to_json() == of.registry.to_json(), "the same bytes")
    small, large = resnet(), resnet().batch(64).input_size(56, 56).stride(2)
    verdict("another size", small.build().canonical_key() == large.build().canonical_key(), "the same key")
    verdict("another dtype", small.build().canonical_key() != large.data_type("bf16").build().canonical_key())
    signature = Signature("conv_fwd").dtype("fp32").set("out_dtype", "fp32").set("spatial", "d2").set("layout", "ngchw")
    declared = KernelSet("convolutions").add(signature, target="cpu-avx2")
    mine = Registry("mine")
    mine.add_all(declared.listing())
    found = [Dispatcher(mine).plan(one.build()).is_valid for one in (small, resnet().layout("nhwgc"))]
    verdict("a kernel set", found == [True, False], "answers its own layout")
    print(of.plan(resnet().data_type("int8").operation("bwd_data").build()).reason.partition(" in ")[0])


if __name__ == "__main__":
    main(globals())
