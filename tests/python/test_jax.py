# SPDX-License-Identifier: MIT
"""tilekiln.jax: values and gradients against plain jax.numpy, the transformations, and what is refused.

On JAX's default device: on a GPU (tools/gpu/README.md says how) fp16 takes the place of fp32, which attention there
has not.
"""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
import tilekiln as tk
from tilekiln import dtypes

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402

pytestmark = pytest.mark.jax

DTYPES = dtypes.FLOATS
CLOSE = {"fp32": 2e-5, "fp16": 4e-3, "bf16": 4e-2}
ON_GPU = jax.default_backend() == "gpu"
WIDEST = "fp16" if ON_GPU else "fp32"
"""Of attention."""


@pytest.fixture(scope="module")
def libraries(load):
    return [load("flash"), load("ck_default")]


@pytest.fixture(autouse=True)
def face(libraries, jax_handlers, monkeypatch):
    """tilekiln.jax with these available libraries: flash, and ck_default for biases."""
    monkeypatch.setattr("tilekiln.api.operators._at_hand", lambda: libraries)
    import tilekiln.jax

    tilekiln.jax._calls._choose.cache_clear()
    return tilekiln.jax


def normal(seed, shape, dtype=WIDEST):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape, np.float32).astype(DTYPES[dtype]))


def plain(
    q, k, v, *, bias=None, alibi_slopes=None, sink=None, causal=False, window=(-1, -1), top_left=False, softcap=0.0
):
    """The same in jax.numpy and fp32: (batch, seqlen, nhead, hdim)."""
    q, k, v = (x.astype(jnp.float32) for x in (q, k, v))
    k, v = (jnp.repeat(x, q.shape[2] // x.shape[2], 2) for x in (k, v))
    score = jnp.einsum("bqhd,bkhd->bhqk", q, k) / q.shape[-1] ** 0.5
    row = jnp.arange(q.shape[1])[:, None] + (0 if top_left else k.shape[1] - q.shape[1])
    column = jnp.arange(k.shape[1])[None]
    if softcap:
        score = softcap * jnp.tanh(score / softcap)
    if bias is not None:
        score = score + bias.astype(jnp.float32)
    if alibi_slopes is not None:
        score = score - alibi_slopes[:, None, None] * abs(row - column)
    left, right = window[0], 0 if causal else window[1]
    hidden = (column < row - left if left >= 0 else False) | (column > row + right if right >= 0 else False)
    score = jnp.where(hidden, -1e30, score)
    if sink is not None:
        score = jnp.concatenate([score, jnp.broadcast_to(sink[:, None, None], (*score.shape[:-1], 1))], -1)
    lse = jax.nn.logsumexp(score, -1)
    probability = jnp.where(hidden, 0.0, jnp.exp(score[..., : k.shape[1]] - lse[..., None]))
    return jnp.einsum("bhqk,bkhd->bqhd", probability, v), lse


def close(ours, theirs, dtype):
    for got, expected in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        expected = np.asarray(expected, np.float32)
        size = max(1.0, abs(expected).max())
        np.testing.assert_allclose(np.asarray(got, np.float32), expected, atol=CLOSE[dtype] * size, rtol=0)


def alike(ours, expected):
    """Results that the facade makes of NumPy's arrays: the same bits on the same device."""
    if ON_GPU:
        close(ours, expected, WIDEST)
    else:
        np.testing.assert_array_equal(np.asarray(ours), expected)


CASES = {
    "plain": {},
    "causal": {"causal": True},
    "top left": {"causal": True, "mask_origin": "top_left"},
    "window": {"window": (20, 5)},
    "softcap": {"softcap": 3.0, "causal": True},
    "alibi": {"alibi_slopes": (4,), "causal": True},
    "bias": {"bias": (2, 4, 50, 70)},
    "bias of one head": {"bias": (1, 1, 50, 70), "window": (-1, 9)},
    "sink": {"sink": (4,), "window": (30, 0)},
}


@pytest.mark.parametrize(
    ("case", "dtype"),
    [(case, "bf16") for case in CASES]
    + [(case, WIDEST) for case in CASES if not case.startswith(("bias", "sink"))]
    + [("plain", "fp16"), ("bias", "fp16")][ON_GPU:],
)
@pytest.mark.sampled(6)
def test_values_and_gradients(face, case, dtype):
    options = dict(CASES[case])
    arrays = {"q": normal(0, (2, 50, 4, 40), dtype), "k": normal(1, (2, 70, 2, 40), dtype)}
    arrays["v"] = normal(2, (2, 70, 2, 40), dtype)
    for name in ("bias", "sink", "alibi_slopes"):
        if name in options:
            arrays[name] = normal(3, options.pop(name), dtype if name == "bias" else "fp32")
    constant = {"alibi_slopes": abs(arrays.pop("alibi_slopes"))} if "alibi_slopes" in arrays else {}
    dout = normal(4, (2, 50, 4, 40), "fp32")

    def ours(arrays):
        out, lse = face.attention(**arrays, **constant, **options, return_lse=True)
        assert out.dtype == DTYPES[dtype]
        return (out.astype(jnp.float32) * dout).sum(), (out, lse)

    def theirs(arrays):
        plain_options = {k: v for k, v in options.items() if k != "mask_origin"}
        out, lse = plain(**arrays, **constant, **plain_options, top_left="mask_origin" in options)
        return (out * dout).sum(), (out, lse)

    (_, got), gradients = jax.jit(jax.value_and_grad(ours, has_aux=True))(arrays)
    (_, expected), expected_gradients = jax.jit(jax.value_and_grad(theirs, has_aux=True))(arrays)
    close(got, expected, dtype)
    assert {name: (x.shape, x.dtype) for name, x in gradients.items()} == {
        name: (x.shape, x.dtype) for name, x in arrays.items()
    }
    close(gradients, expected_gradients, dtype)


def packed(dtype=WIDEST):
    """Three sequences, the second one without queries."""
    q, k, v = normal(0, (11, 4, 32), dtype), normal(1, (17, 2, 32), dtype), normal(2, (17, 2, 32), dtype)
    cu_q, cu_k = jnp.array([0, 5, 5, 11], jnp.int32), jnp.array([0, 7, 9, 17], jnp.int32)
    return q, k, v, cu_q, cu_k


def test_varlen(face):
    """Index arrays may be traced: one compilation serves any lengths."""
    q, k, v, cu_q, cu_k = packed()

    @jax.jit
    def loss(q, k, v, cu_q, cu_k):
        return (face.attention(q, k, v, cu_seqlens_q=cu_q, cu_seqlens_k=cu_k, causal=True) ** 2).sum()

    def reference(q, k, v):
        total = 0.0
        for a, b, c, d in ((0, 5, 0, 7), (5, 11, 9, 17)):
            total += (plain(q[None, a:b], k[None, c:d], v[None, c:d], causal=True)[0] ** 2).sum()
        return total

    close(jax.grad(loss, (0, 1, 2))(q, k, v, cu_q, cu_k), jax.jit(jax.grad(reference, (0, 1, 2)))(q, k, v), WIDEST)
    assert jnp.isfinite(loss(q, k, v, jnp.array([0, 1, 2, 11], jnp.int32), cu_k))
    assert loss._cache_size() == 1


def test_padded_rows_are_zero_in_out_and_gradients(face):
    q, k, v = (normal(seed, (2, 20, 2, 32)) for seed in range(3))
    lengths = jnp.array([20, 7], jnp.int32)

    def run(q, k, v):
        out = face.attention(q, k, v, cu_seqlens_q=jnp.array([0, 20, 27], jnp.int32), cu_seqlens_k=None)
        return (out**2).sum(), out

    (_, out), (dq, _, _) = jax.jit(jax.value_and_grad(run, (0, 1, 2), has_aux=True))(q, k, v)
    expected = jax.jit(plain)(q, k, v)[0]
    for row, length in enumerate(lengths):
        close(out[row, :length], expected[row, :length], WIDEST)
        assert not out[row, length:].any()
        assert not dq[row, length:].any()


def test_bhsd(face):
    q, k, v = normal(0, (2, 4, 9, 32)), normal(1, (2, 2, 11, 32)), normal(2, (2, 2, 11, 32))

    def swapped(f):
        return lambda q, k, v: f(*(x.swapaxes(1, 2) for x in (q, k, v)))[0].swapaxes(1, 2)

    out, lse = face.attention(q, k, v, layout="bhsd", return_lse=True)
    assert (out.shape, lse.shape) == ((2, 4, 9, 32), (2, 4, 9))
    close(out, jax.jit(swapped(plain))(q, k, v), WIDEST)
    ours = jax.jit(jax.grad(lambda *x: (face.attention(*x, layout="bhsd") ** 2).sum(), (0, 1, 2)))(q, k, v)
    close(ours, jax.jit(jax.grad(lambda *x: (swapped(plain)(*x) ** 2).sum(), (0, 1, 2)))(q, k, v), WIDEST)


def test_vmap_of_values_and_of_gradients(face):
    q, k, v = normal(0, (3, 2, 9, 4, 32)), normal(1, (2, 11, 2, 32)), normal(2, (3, 2, 11, 2, 32))
    mapped = jax.vmap(lambda q, v: face.attention(q, k, v, causal=True), in_axes=(0, 0))(q, v)
    close(mapped, jax.jit(jax.vmap(lambda q, v: plain(q, k, v, causal=True)[0]))(q, v), WIDEST)
    gradient = jax.jit(jax.vmap(jax.grad(lambda q, v: (face.attention(q, k, v) ** 2).sum())))(q, v)
    expected = jax.jit(jax.vmap(jax.grad(lambda q, v: (plain(q, k, v)[0] ** 2).sum())))(q, v)
    close(gradient, expected, WIDEST)


def test_checkpoint_and_scan(face):
    q, k, v = (normal(seed, (1, 12, 2, 32)) for seed in range(3))

    def deep(layer):
        def loss(q):
            step = jax.checkpoint(lambda x, _: (x + layer(x), None))
            return (jax.lax.scan(step, q, None, length=3)[0] ** 2).mean()

        return jax.jit(jax.grad(loss))(q)

    close(
        deep(lambda x: face.attention(x, k, v, causal=True)),
        deep(lambda x: plain(x, k, v, causal=True)[0].astype(x.dtype)),
        WIDEST,
    )


def test_dropout_is_that_of_the_facade_and_goes_back(face):
    q, k, v = (normal(seed, (2, 33, 2, 32)) for seed in range(3))
    key = jax.random.key(7)
    words = [int(word) for word in jax.random.key_data(key)]
    rng = (words[0] << 32 | words[1], 0)
    run = jax.jit(lambda q, key: face.attention(q, k, v, dropout_p=0.3, rng=key))
    expected = tk.attention(*map(np.asarray, (q, k, v)), dropout_p=0.3, rng=rng)
    alike(run(q, key), expected)
    np.testing.assert_array_equal(run(q, jax.random.key_data(key)), run(q, key))
    assert abs(run(q, jax.random.key(8)) - expected).max() > 0.1
    dq = jax.grad(lambda q: run(q, key).sum())(q)
    out, lse = tk.attention(*map(np.asarray, (q, k, v)), dropout_p=0.3, rng=rng, return_lse=True)
    arrays = [np.ones_like(out), *map(np.asarray, (q, k, v)), out, lse]
    alike(dq, tk.attention_backward(*arrays, dropout_p=0.3, rng=rng, deterministic=True)[0])


def test_lse_is_a_constant(face):
    q, k, v = (normal(seed, (1, 8, 2, 32)) for seed in range(3))
    gradient = jax.grad(lambda q: face.attention(q, k, v, return_lse=True)[1].sum())(q)
    assert not gradient.any()


def test_one_gradient_alone(face):
    """The bias gradient, an array as large as the scores, is computed only for who wants it."""
    q, k, v = (normal(seed, (1, 8, 2, 32), "bf16") for seed in range(3))
    bias = normal(3, (1, 2, 8, 8), "bf16")
    program = jax.jit(jax.grad(lambda v: (face.attention(q, k, v, bias=bias).astype(jnp.float32) ** 2).sum()))
    close(program(v), jax.jit(jax.grad(lambda v: (plain(q, k, v, bias=bias)[0] ** 2).sum()))(v), "bf16")
    assert "dbias" not in program.lower(v).as_text()


@pytest.mark.parametrize("rows", [0, 3])
def test_empty(face, rows):
    q, k, v = (jnp.zeros((2, length, 2, 32), DTYPES[WIDEST]) for length in (rows, 3 - rows, 3 - rows))
    out, gradient = jax.value_and_grad(lambda q: face.attention(q, k, v).sum())(q)
    assert out == 0
    assert gradient.shape == q.shape
    assert not gradient.any()


REFUSED = {
    "k": ({"k": (2, 9, 3, 32)}, "k: nhead was 3, must divide 4"),
    "v": ({"v": (2, 8, 2, 32)}, "v: seqlen"),
    "dtype": ({"dtype": "fp64"}, "k: dtype"),
    "fp8": ({"dtype": "fp8"}, "q: was float8_e4m3fn, must be fp32, fp16 or bf16"),
    "bias": ({"bias": (2, 4, 9, 8)}, "bias: "),
    "window": ({"window": (3,)}, "window: was (3,), must be a pair"),
    "mask_origin": ({"mask_origin": "left"}, "mask_origin: "),
    "softcap": ({"softcap": -1.0}, "softcap: "),
    "dropout_p": ({"dropout_p": 1.0, "rng": jax.random.key(0)}, "dropout_p: "),
    "rng": ({"dropout_p": 0.5}, "rng: was None"),
    "rng of another make": ({"dropout_p": 0.5, "rng": jax.random.key(0, impl="rbg")}, "rng: was uint32 of shape (4,)"),
    "layout": ({"layout": "sbhd"}, "layout: "),
    "index arrays": ({"cu_seqlens_q": jnp.zeros(2)}, "cu_seqlens_q: "),
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("jit", [False, True])
def test_refused_while_tracing(face, case, jit):
    options, sentence = dict(REFUSED[case][0]), REFUSED[case][1]
    shapes = {"q": (2, 8, 4, 32), "k": (2, 9, 2, 32), "v": (2, 9, 2, 32)}
    arrays = {name: jnp.zeros(shape, DTYPES[WIDEST]) for name, shape in shapes.items()}
    for name, value in list(options.items()):
        if name in ("k", "v", "bias"):
            arrays[name] = jnp.zeros(options.pop(name), DTYPES[WIDEST])
        elif name == "dtype":
            arrays = {n: x.astype({"fp64": "int32", "fp8": "float8_e4m3fn"}[value]) for n, x in arrays.items()}
            options.pop(name)
            sentence = "q: dtype" if value == "fp64" else sentence

    def run(**arrays):
        return face.attention(**arrays, **options)

    with pytest.raises(tk.ArgumentError) as raised:
        (jax.jit(run) if jit else run)(**arrays)
    assert str(raised.value).startswith(sentence), raised.value


def test_refused_because_traced(face):
    q = jnp.zeros((1, 8, 2, 32), DTYPES[WIDEST])
    with pytest.raises(tk.ArgumentError, match="softcap: was traced, must be a plain value"):
        jax.jit(lambda q, cap: face.attention(q, q, q, softcap=cap))(q, 1.0)
    with pytest.raises(tk.ArgumentError, match="window: was traced"):
        jax.jit(lambda q, left: face.attention(q, q, q, window=(left, 0)))(q, 3)


def test_refused_when_it_runs(face):
    q, k, v, _, cu_k = packed()
    with pytest.raises(jax.errors.JaxRuntimeError, match="cu_seqlens_q: must not decrease, but entry 2 is 4 after 5"):
        jax.block_until_ready(face.attention(q, k, v, cu_seqlens_q=[0, 5, 4, 11], cu_seqlens_k=cu_k))


def test_no_kernel(face):
    q = jnp.zeros((1, 8, 2, 64), jnp.float32)
    bias = jnp.zeros((1, 2, 8, 8))  # of fp32: in neither library
    with pytest.raises(tk.NoKernelError, match="dtype=fp32" if ON_GPU else "bias=elementwise"):
        jax.jit(face.attention)(q, q, q, bias=bias)


def test_no_other_derivatives(face):
    q = normal(0, (1, 8, 2, 32))
    with pytest.raises(ValueError, match=r"tilekiln_fmha_bwd.*cannot be differentiated"):
        jax.grad(lambda q: jax.grad(lambda q: face.attention(q, q, q).sum())(q).sum())(q)
    with pytest.raises(TypeError, match="forward-mode"):
        jax.jvp(lambda q: face.attention(q, q, q), (q,), (q,))


def test_programs_name_libraries_and_hold_no_addresses(face):
    """So that one of JAX's compilation cache runs in another process; without its library it says which to build."""
    q = jnp.ones((1, 8, 2, 32), DTYPES[WIDEST])
    text = jax.jit(lambda q: face.attention(q, q, q)).lower(q).as_text()
    assert 'library = "flash"' in text
    assert "0x" not in text
    with pytest.raises(jax.errors.JaxRuntimeError, match="receipt 'elsewhere', which is not available here; build it"):
        face._calls._call("fmha_fwd", "elsewhere", {"q": q, "k": q, "v": q}, ())["out"].block_until_ready()


def test_the_handler_takes_any_operator_by_its_table(face, load):
    """Plain arguments by kind, results as declared; what an operator has not is refused."""
    library = load("norm_default")
    name, x, gamma = face._handlers.add(library), jnp.linspace(-2, 3, 24).reshape(4, 6), jnp.arange(6.0)
    options = (("epsilon", 1), ("rounding", "pytorch"), ("return_inv_rms", True))
    made = jax.jit(lambda x: face._calls._call("rmsnorm2d", name, {"x": x, "gamma": gamma}, options))(x)
    expected = library.rmsnorm2d(np.asarray(x), np.asarray(gamma), epsilon=1.0, return_inv_rms=True)
    assert made.keys() == {"y", "inv_rms"}
    for mine, its in zip((made["y"], made["inv_rms"]), expected, strict=True):
        np.testing.assert_allclose(np.asarray(mine), its, rtol=1e-6 if ON_GPU else 0)
    for wrong, text in (
        ((("softcap", 1.0),), "attributes: some are no argument of rmsnorm2d"),
        ((("rounding", "none"),), "rounding: was 'none', which is none of its words"),
    ):
        with pytest.raises(jax.errors.JaxRuntimeError, match=text):
            face._calls._call("rmsnorm2d", name, {"x": x, "gamma": gamma}, wrong)["y"].block_until_ready()
    q = jnp.ones((1, 8, 2, 32), DTYPES[WIDEST])
    with pytest.raises(jax.errors.JaxRuntimeError, match="library 'norm_default' has no fmha_fwd"):
        face._calls._call("fmha_fwd", name, {"q": q, "k": q, "v": q}, ())["out"].block_until_ready()
    with pytest.raises(jax.errors.JaxRuntimeError, match="q: is no argument of rmsnorm2d"):
        face._calls._call("rmsnorm2d", name, {"x": x, "gamma": gamma, "q": x}, ())["y"].block_until_ready()


@pytest.fixture
def norms(load, finds):
    """The library of norms, available."""
    finds(load("norm_default"))


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_norms_and_their_gradients(face, norms, dtype):
    """Against jax.numpy in fp32: values under jit, gradients of every array."""
    narrow = [normal(1, (2, 3, 40), dtype), normal(2, (40,), dtype), normal(3, (40,), dtype)]
    up = normal(4, (2, 3, 40), dtype)

    def rms(x, weight, _):
        return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-3) * weight

    def layer(x, weight, bias):
        away = x - x.mean(-1, keepdims=True)
        return away * jax.lax.rsqrt((away * away).mean(-1, keepdims=True) + 1e-3) * weight + bias

    def gated(x, weight, _):
        return jax.nn.silu(x) * (up.astype(x.dtype) * weight)

    def gelu(tanh):
        return lambda x, weight, _: jax.nn.gelu(x, approximate=tanh) * (up.astype(x.dtype) * weight)

    pairs = (
        (lambda x, weight, _: face.rms_norm(x, weight, 1e-3), rms),
        (lambda x, weight, bias: face.layer_norm(x, weight, bias, 1e-3), layer),
        (lambda x, weight, _: face.silu_and_mul(x, up * weight), gated),
        (lambda x, weight, _: face.gelu_and_mul(x, up * weight, "tanh"), gelu(True)),
        (lambda x, weight, _: face.gelu_and_mul(x, up * weight), gelu(False)),
    )
    wide = [a.astype(jnp.float32) for a in narrow]
    for ours, stock in pairs:
        made, right = jax.jit(ours)(*narrow), stock(*wide)
        assert (made.dtype, made.shape) == (DTYPES[dtype], right.shape)
        np.testing.assert_allclose(np.asarray(made, np.float32), right, rtol=CLOSE[dtype], atol=CLOSE[dtype])
        mine = jax.grad(lambda *a, f=ours: (f(*a).astype(jnp.float32) ** 2).sum(), argnums=(0, 1, 2))(*narrow)
        its = jax.grad(lambda *a, f=stock: (f(*a) ** 2).sum(), argnums=(0, 1, 2))(*wide)
        for one, other in zip(mine, its, strict=True):
            most = float(jnp.abs(other).max())
            np.testing.assert_allclose(np.asarray(one, np.float32), other, rtol=CLOSE[dtype], atol=CLOSE[dtype] * most)
    with pytest.raises(tk.ArgumentError, match="gamma: column count was 39, must be 40"):
        face.rms_norm(wide[0], wide[1][1:])


SHARDED = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, PartitionSpec as P
from tilekiln.jax import attention
random = np.random.default_rng(0)
q, k, v = (jnp.asarray(random.standard_normal((n, 20, 2, 32), np.float32)) for n in (4, 1, 4))
mesh = Mesh(np.array(jax.devices()), ("devices",))

def run(q, k, v):
    return attention(q, jnp.broadcast_to(k, q.shape), v, causal=True)

def loss(run):
    return jax.jit(jax.value_and_grad(lambda *arrays: (run(*arrays) ** 2).sum(), (0, 1, 2)))

split = jax.shard_map(run, mesh=mesh, in_specs=(P("devices"), P(), P("devices")), out_specs=P("devices"))
for ours, theirs in zip(*(jax.tree.leaves(loss(f)(q, k, v)) for f in (split, run))):
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)
print("alike")
"""


@pytest.fixture
def run(libraries, jax_handlers):
    """run(code, *arguments) -> what it printed, in a process of its own with two devices."""

    def run(code: str, *arguments: object) -> str:
        environment = {
            **os.environ,
            "TILEKILN_PATH": libraries[0].path,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
            "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
        }
        command = [sys.executable, "-c", code, *map(str, arguments)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return run


@pytest.mark.skipif(ON_GPU, reason="its two devices are of the host; tools/gpu test has it for GPUs")
def test_shard_map(run):
    """The gradient of keys that both devices have is the sum of theirs."""
    assert run(SHARDED) == "alike"


CACHED = """
import sys, jax, jax.numpy as jnp
events = []
jax.monitoring.register_event_listener(lambda event, **_: events.append(event.rpartition("/")[2]))
jax.config.update("jax_compilation_cache_dir", sys.argv[1])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
from tilekiln.jax import attention
q = jnp.ones((1, 8, 2, 32), sys.argv[2])
program = jax.jit(jax.grad(lambda q: attention(q, 2 * q, q, causal=True).sum())).lower(q)
events.clear()
made = program.compile()
said = [event for event in events if event in ("cache_hits", "cache_misses")]
print(round(float(made(q).sum()), 3), *said)
"""


def test_programs_of_the_compilation_cache_run_in_other_processes(run, tmp_path):
    first, second = (run(CACHED, tmp_path, DTYPES[WIDEST].name) for _ in range(2))
    assert first.split()[1:] == ["cache_misses"]
    assert second.split()[1:] == ["cache_hits"]
    assert first.split()[0] == second.split()[0]


@pytest.mark.skipif(ON_GPU, reason="its handlers lie beside the package, not where they are built")
def test_without_handlers_the_import_says_what_to_do(tmp_path, libraries):
    """In a fresh process: the face is imported by nobody but its users, and says what is missing."""
    code = """
import pathlib, sys, tilekiln, tilekiln._core.native
assert "jax" not in sys.modules
tilekiln._core.native.TREE = pathlib.Path(sys.argv[1])
try:
    import tilekiln.jax
except ImportError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "libtilekiln_jax_handlers.so is not built" in done.stdout, done.stderr
    assert "tools/dev --with jax scons jax" in done.stdout
