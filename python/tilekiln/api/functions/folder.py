# SPDX-License-Identifier: MIT
"""The operator of a pair of functions: the files that a build from outside takes, as text by name."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from typing import NamedTuple

from . import emit, emit_device, expression
from .expression import Node, Tensor, ordered, text

_CODE_DTYPES = {"fp32": "float", "fp16": "fp16", "bf16": "bf16"}
HEAD_DIMS = ((64, 64), (128, 128), (192, 128), (256, 256))
"""Largest head dims of q and v, of the kernels of a GPU."""
_SHAPES = {"h": "H", "b": "B"}  # a dimension that h or b alone indexes has as many numbers as there are


class Functions:
    """A score and a mask, of which one may be none, over tensors, for q of one dtype.

    wanted: of a backward, the names of the tensors with a gradient; None: a forward. weighs: the score is the weight of
    a value, and there is no softmax. head_dims: of HEAD_DIMS, for an NVIDIA GPU; None: for a CPU.
    """

    def __init__(
        self,
        score: Node | None,
        mask: Node | None,
        tensors: Sequence[Tensor],
        dtype: str,
        wanted: Collection[str] | None = None,
        weighs: bool = False,
        head_dims: tuple[int, int] | None = None,
    ) -> None:
        self.score, self.mask, self.tensors, self.dtype = score, mask, tuple(tensors), dtype
        self.head_dims = head_dims
        self.wanted = None if wanted is None else [one for one in self.tensors if one.name in wanted]
        self.weighs = weighs
        said = [dtype, *map(repr, tensors), *(text(one) if one else "" for one in (score, mask)), repr(self.wanted)]
        said += ["weighs"] * weighs
        said += [] if head_dims is None else [f"cuda {head_dims}"]
        self.key = hashlib.blake2b("\n".join(said).encode(), digest_size=8).hexdigest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Functions) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def operator(self) -> str:
        """The name of its operator."""
        return f"attention_{'' if self.wanted is None else 'bwd_'}{self.key}"

    def files(self) -> dict[str, str]:
        """Files of its folder."""
        name = self.operator()
        if self.head_dims is not None:
            return self._of_gpu(name, self.head_dims)
        return {
            "operator.yaml": self._operator(name),
            "family.yaml": _FAMILY.format(
                name=name,
                dtype=self.dtype,
                engine="FunctionEngine" if self.wanted is None else "FunctionBwdEngine",
                member="tile" if self.wanted is None else "chunk",
            ),
            "host.cpp": self._host(name),
            "cpu/qlanes.cpp": self._kernel(name),
        }

    def target(self) -> str:
        """The word for its target in `jit`."""
        return "native" if self.head_dims is None else "cuda"

    def _of_gpu(self, name: str, head_dims: tuple[int, int]) -> dict[str, str]:
        wanted = None if self.wanted is None else [one.name for one in self.wanted]
        functions = emit_device.functions(self.score, self.mask, self.tensors, wanted)
        words = {"name": name, "dtype": self.dtype, "scores": str(self.score is not None).lower()}
        words["masks"] = str(self.mask is not None).lower()
        kernels = _gpu_forward(*head_dims) if wanted is None else _gpu_backward(*head_dims)
        of = "Function" if wanted is None else "FunctionBwd"
        family = [
            _GPU_FAMILY.format(engine=of, member="tile" if wanted is None else "chunk", **words),
            "pipelines:",
            *(_GPU_PIPELINE.format(pipeline=one.pipeline) for one in kernels),
            "algorithms:",
            *(f"  {target}: [{{pipeline: {one.pipeline}}}]" for one in kernels for target in one.targets.split(", ")),
        ]
        files = {
            "operator.yaml": self._operator(name),
            "family.yaml": "\n".join(family) + "\n",
            "host.cpp": self._host(name),
            "cuda/builds.yaml": "".join(_GPU_BUILD.format(**one._asdict(), **words) for one in kernels),
        }
        for one in kernels:
            launch = one.launch.format(**words)
            files[f"cuda/{one.pipeline}.cpp"] = _GPU_ENGINE.format(**{**one._asdict(), "launch": launch}, **words)
            files[f"cuda/{one.pipeline}.cu"] = _GPU_SOURCE.format(functions=functions, kernel=one.kernel, **words)
        return files

    def _operator(self, name: str) -> str:
        shapes, letters, batched = dict[str, str](), dict[str, str](), list[str]()
        for tensor in self.tensors:
            shape = list[str]()
            for at in range(tensor.dimensions):
                letter = _SHAPES.get(self._index(tensor, at), "")
                if not letter:
                    letter = f"N{len(letters)}"
                    words = f"name: length {at}, word: {tensor.name}_{at}, of: {tensor.name}"
                    letters[letter] = f"{{{words}, least: 1, most: 2147483647}}"
                if letter == "B":
                    batched.append(tensor.name)
                shape.append(letter)
            shapes[tensor.name] = " ".join(shape)
        wanted = [one.name for one in self.wanted or ()]
        shapes |= {f"gradient_{one}": shapes[one] for one in wanted}
        batched += [f"gradient_{one}" for one in wanted if one in batched]
        arguments = [
            f"  {one.name}: {{array: {one.dtype}, strides: any, about: a tensor of the functions}}"
            for one in self.tensors
        ]
        results = [f"  gradient_{one}: {{written: fp32, about: the gradient of {one}}}" for one in wanted]
        return (_FORWARD if self.wanted is None else _BACKWARD).format(
            name=name,
            dtype=self.dtype,
            results="".join(f"{line}\n" for line in results),
            named="".join(f", {one.name}" for one in self.tensors),
            gradients="".join(f", gradient_{one}" for one in wanted),
            shapes="".join(f", {one}: {shape}" for one, shape in shapes.items()),
            batched="".join(f"{one}, " for one in dict.fromkeys(batched)),
            symbols="".join(f"\n  {letter}: {made}" for letter, made in letters.items()),
            order="".join(f", {letter}" for letter in letters),
            arguments="".join(f"{line}\n" for line in arguments),
        )

    def _index(self, tensor: Tensor, at: int) -> str:
        """The one name that every use of a tensor has at a place; "" where there are several or another."""
        found = {
            str(node.operands[at].value) if node.operands[at].op == "name" else ""
            for root in (self.score, self.mask)
            if root is not None
            for node in ordered([root])
            if node.op == "element" and node.value == tensor.name
        }
        return found.pop() if len(found) == 1 else ""

    def _host(self, name: str) -> str:
        tensors = [f"  fmha::fill_tensor(call.in.{one.name}, to.tensor[{at}]);" for at, one in enumerate(self.tensors)]
        for at, one in enumerate(self.tensors):
            if one in (self.wanted or ()):
                tensors.append(f"  fmha::fill_gradient(call.in.gradient_{one.name}, to.gradient[{at}]);")
        words = {"header": "host", "problem": "FunctionProblem", "what": "forward"}
        if self.wanted is not None:
            words = {"header": "bwd_host", "problem": "FunctionBwdProblem", "what": "backward"}
        return _HOST.format(name=name, tensors="".join(f"{line}\n" for line in tensors), **words)

    def _kernel(self, name: str) -> str:
        parts, members = [], []
        if self.wanted is not None:
            score = self.score or expression.name("score")
            parts.append(emit.gradients(score, self.tensors, [one.name for one in self.wanted], self.weighs))
            members.append(
                "template <class Compute> static constexpr GradientStage own_gradients = own_gradients_stage<Compute>;"
            )
        elif self.score is not None:
            parts.append(emit.score(self.score, self.tensors))
            members.append("static constexpr ScoreStage own_score = own_score_stage;")
            members += ["static constexpr bool own_weights = true;"] * self.weighs
        if self.mask is not None:
            parts.append(emit.mask(self.mask, self.tensors))
            members.append("static constexpr MaskStage own_mask = own_mask_stage;")
        functions = "\n".join(["struct Functions {", *(f"  {one}" for one in members), "};", ""])
        words = {"header": "forward", "problem": "FunctionProblem", "engine": "FunctionEngine"}
        if self.wanted is not None:
            words = {"header": "backward", "problem": "FunctionBwdProblem", "engine": "FunctionBwdEngine"}
        parts.append(functions)
        return _KERNEL.format(name=name, parts="\n".join(parts), dtype=_CODE_DTYPES[self.dtype], **words)


_FAMILY = """family: {name}
about: Attention with functions of a program.
axes:
  - {{name: dtype, values: [{dtype}], about: "Element type of q, k, v and out."}}
pipelines:
  - {{name: qlanes, about: Vector lanes run along queries.}}
engine: {{header: kernels/attention/function/engine.h, type: "tilekiln::fmha::{engine}"}}
entries:
  - member: {member}
source_by: [dtype]
algorithms:
  cpu-generic:
    - {{pipeline: qlanes}}
"""
_FORWARD = """operator: {name}
about: Attention with functions of a program.
details: |
  Arrays have any strides, the last dimension of q, k, v and out is contiguous. out overlaps no input.
defaults: All fields absent, instance -1.
stages: [{name}]
area: attention
call: {{header: kernels/attention/function/engine.h, problem: fmha::FunctionProblem}}
forms:
  batch: {{q: B Sq H D, k: B Sk Hk D, v: B Sk Hk Dv, lse: B H Sq, out: B Sq H Dv{shapes}}}
symbols:
  B: {{name: batch, of: q, most: 2147483647, equal: [k, v, {batched}out]}}{symbols}
symbol_order: [B, D, H, Hk, Sq, Sk, Dv{order}]
arguments:
  q: {{array: [{dtype}], place: yes, about: queries}}
  k: {{array: as q, place: yes, about: keys}}
  v: {{array: as q, place: yes, about: values}}
{arguments}  out: {{result: as q, about: the weighted values}}
  lse: {{result: fp32, asked_by: return_lse, about: natural log of the sum of exponentials}}
  softmax_scale: {{float: derived, range: finite, about: "null: 1 / sqrt(hdim_q)"}}
  include mask:
  include run:
order: [softmax_scale, include mask, instance, arrays, [q, k, v{named}, out], lse, signature, overlaps, run]
signature:
  dtype: {{q: {{{dtype}: {dtype}}}}}
work: [q, Sk]
"""
_BACKWARD = """operator: {name}
about: Gradients of attention with functions of a program.
details: |
  Arrays have any strides, the last dimension of all but the tensors is contiguous. Results overlap nothing.
defaults: All fields absent, instance -1.
stages: [{name}]
area: attention
call: {{header: kernels/attention/function/engine.h, problem: fmha::FunctionBwdProblem}}
forms:
  batch: {{q: B Sq H D, k: B Sk Hk D, v: B Sk Hk Dv, out: B Sq H Dv, lse: B H Sq{shapes}}}
symbols:
  B: {{name: batch, of: q, most: 2147483647, equal: [dout, k, v, {batched}out, lse, dq, dk, dv]}}{symbols}
symbol_order: [B, D, H, Hk, Sq, Sk, Dv{order}]
arguments:
  dout: {{array: as out, like: out, place: yes, about: the gradient of out}}
  q: {{array: [{dtype}], place: yes, about: queries}}
  k: {{array: as q, place: yes, about: keys}}
  v: {{array: as q, place: yes, about: values}}
  out: {{array: as q, place: yes, about: as the forward wrote it}}
  lse: {{array: fp32, place: yes, about: as the forward wrote it}}
{arguments}  dq: {{result: as q, like: q, about: the gradient of q}}
  dk: {{result: as k, like: k, about: the gradient of k}}
  dv: {{result: as v, like: v, about: the gradient of v}}
{results}  softmax_scale: {{float: derived, range: finite, about: "null: 1 / sqrt(hdim_q)"}}
  include mask:
  include run:
order: [softmax_scale, include mask, instance, arrays, [dout, q, k, v, out, lse{named}, dq, dk, dv{gradients}],
  signature, overlaps, run]
signature:
  dtype: {{q: {{{dtype}: {dtype}}}}}
work: [q, Sk]
"""
_HOST = """// Arguments of {name} as the plain data of its engines. Generated.
#include "kernels/generated/operators/{name}_entries.h"

#include "kernels/attention/function/{header}.h"

namespace tilekiln::op::{name} {{

void fill(const Args& args, Call& call) {{
  fmha::{problem}& to = call.to.problem;
  fmha::fill_{what}(args, call, to);
{tensors}}}

tilekiln_status launch(StageCall<fmha::{problem}>& call) {{ return fmha::launch_{what}(call); }}

}}  // namespace tilekiln::op::{name}
"""
_KERNEL = """// The functions of {name} as stages of the attention engine. Generated.
#include "kernels/attention/function/{header}.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {{
namespace {{

using OwnProblem = fmha::{problem};

{parts}
using Element = {dtype};
}}  // namespace
}}  // namespace tilekiln::cpu::inline TILEKILN_TARGET

#define TILEKILN_JOIN(a, b, c) a##b##c
#define TILEKILN_ENGINE(target) TILEKILN_JOIN(tilekiln_, target, _{name}_qlanes)

extern "C" const tilekiln::fmha::{engine} TILEKILN_ENGINE(TILEKILN_TARGET) =
    tilekiln::cpu::{header}_engine<tilekiln::cpu::Functions, tilekiln::cpu::Element>;
"""
_GPU_FAMILY = """family: {name}
about: Attention with functions of a program.
axes:
  - {{name: dtype, values: [{dtype}], about: "Element type of q, k, v and out."}}
engine: {{header: kernels/attention/function/engine.h, type: "tilekiln::fmha::{engine}Engine"}}
entries:
  - member: {member}
source_by: [dtype]"""
_GPU_PIPELINE = """  - name: {pipeline}
    about: Blocks of threads for tiles.
    shares: [kernels/attention/cuda/operands.cpp]"""
_GPU_BUILD = """{name}_{pipeline}:
  target: [{targets}]
  family: {name}
  source: operators/{name}/cuda/{pipeline}.cu
  define: {{{define}}}
  kilobytes: 600
  wgmma: {wgmma}
  dtypes: [{dtype}]
"""
_GPU_ENGINE = """// The engine of {name} on NVIDIA GPUs. Generated.
#include "kernels/attention/{room}/functions_launch.h"

#define TILEKILN_OWN_JOIN(a, b, c) a##b##c
#define TILEKILN_OWN_ENGINE(target) TILEKILN_OWN_JOIN(tilekiln_, target, _{name}_{pipeline})

extern "C" const tilekiln::cuda::Engine TILEKILN_OWN_ENGINE(TILEKILN_TARGET) = {{tilekiln::cuda::{launch}}};
"""
_GPU_SOURCE = """// The functions of {name} in a kernel of attention. Generated.
#include "kernels/backends/cuda/ptx.h"

#include "kernels/attention/function/bounds.h"

namespace tilekiln::cuda::own {{

using fmha::FunctionTensor;
using scalars::add_to, scalars::bound, scalars::bound_lanes, scalars::Bounds, scalars::element, scalars::element_bounds,
    scalars::Pairs, scalars::Truth;

{functions}
}}  // namespace tilekiln::cuda::own

#define TILEKILN_FUNCTIONS
{kernel}"""


class _GpuKernel(NamedTuple):
    """A kernel of attention that takes functions: its pipeline and targets, what it is built and launched by."""

    pipeline: str
    targets: str
    wgmma: str
    define: str
    room: str
    launch: str
    kernel: str


_HOPPER_DEFINE = {
    (64, 64): "WARPGROUPS: 3, KEYS: 128, STAGES: 3, QUERY_STAGES: 2, LOADER_REGISTERS: 32, REGISTERS: 160",
    (128, 128): "WARPGROUPS: 2, KEYS: 128, STAGES: 2, QUERY_STAGES: 2, LOADER_REGISTERS: 40, REGISTERS: 232",
    (192, 128): "WARPGROUPS: 2, KEYS: 128, STAGES: 2, QUERY_STAGES: 1, LOADER_REGISTERS: 40, REGISTERS: 232",
    (256, 256): "WARPGROUPS: 2, KEYS: 80, STAGES: 2, QUERY_STAGES: 1, LOADER_REGISTERS: 24, REGISTERS: 240",
}
"""By HEAD_DIMS, as kernels/backends/cuda/builds.yaml has them."""


def _gpu_forward(hdim_q: int, hdim_v: int) -> list[_GpuKernel]:
    room, dims = "fmha_fwd/cuda", f"HDIM_Q: {hdim_q}, HDIM_V: {hdim_v}"
    launch = "fmha_fwd::launch_functions_{}<{{scores}}, {{masks}}>"
    by_warps = f"{dims}, WARPS: 4, BLOCKS: {2 if hdim_v <= 128 >= hdim_q else 1}, KEYS: 64"
    own = "OwnFunctions<tilekiln::cuda::own::Functions>"
    ampere = (
        f'#include "kernels/attention/{room}/functions.h"\n\n'
        f"TILEKILN_FORWARD(attention_functions, tilekiln::cuda::fmha_fwd::FunctionParams, false, {own})\n"
    )
    by_warpgroups = f"{dims}, {_HOPPER_DEFINE[hdim_q, hdim_v]}"
    hopper = (
        f'#include "kernels/attention/{room}/forward.cu"\n\n'
        'extern "C" __global__ void __launch_bounds__(128)\n'
        "    key_maps(const __grid_constant__ fmha_fwd::Argument p) {\n  fmha_fwd::write_bits(p);\n}\n"
    )
    return [
        _GpuKernel("ampere", "cuda-sm80", "false", by_warps, room, launch.format("ampere"), ampere),
        _GpuKernel("hopper", "cuda-sm90a", "true", by_warpgroups, room, launch.format("hopper"), hopper),
    ]


def _gpu_backward(hdim_q: int, hdim_v: int) -> list[_GpuKernel]:
    hdim, room = max(hdim_q, hdim_v) if hdim_q <= 128 else 256, "fmha_bwd/dq_dk_dv/cuda"
    define = f"HDIM: {hdim}, HDIM_V: {hdim}, QUERY_ROWS: {8192 // hdim}"
    launch = "fmha_bwd::launch_functions<tilekiln::fmha::Dtype::{dtype}>"
    kernel = f'#include "kernels/attention/{room}/ampere.cu"\n'
    return [_GpuKernel("ampere", "cuda-sm80, cuda-sm90a", "false", define, room, launch, kernel)]
