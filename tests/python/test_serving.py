# SPDX-License-Identifier: MIT
"""tilekiln.torch.Server and `tilekiln serve-bench`: many requests at once get what each would get alone."""

from __future__ import annotations

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
from typing import Any

import numpy as np
import pytest
import tilekiln as tk

pytestmark = [pytest.mark.transformers, pytest.mark.usefixtures("binding")]
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from tests.python.tiny_models import DECODERS, libraries, make  # noqa: E402, F401

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODELS = {name: more for name, more in DECODERS.items() if name != "OPT"}
SERVERS: dict[str, dict[str, Any]] = {
    "whole prompts": {"pages": 64},
    "parts of prompts": {"pages": 64, "chunk": 7, "page_size": 8},
    "few pages": {"pages": 4},
    "two at once, no prefixes": {"pages": 32, "together": 2, "prefixes": False},
}


def requests() -> list[list[int]]:
    random = torch.Generator().manual_seed(2)
    prompts = [torch.randint(1, 90, (n,), generator=random).tolist() for n in (5, 40, 17, 33, 1)]
    return [*prompts, [*prompts[1][:34], 5, 6], prompts[1]]


def alone(model: Any, prompts: list[list[int]], most: int) -> list[list[int]]:
    return [
        model.generate(torch.tensor([one]), max_new_tokens=most, do_sample=False)[0, len(one) :].tolist()
        for one in prompts
    ]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("how", SERVERS)
@pytest.mark.sampled(2)
def test_answers_are_those_of_each_prompt_alone(name: str, how: str) -> None:
    import tilekiln.torch

    model, prompts = make(name, **MODELS[name]), requests()
    expected, before = alone(model, prompts, 9), model.config._attn_implementation
    for optimized in (False, True):
        if optimized:
            before = "tilekiln"
            tilekiln.torch.optimize(model)
        with tilekiln.torch.Server(model, **SERVERS[how]) as server:
            assert server.serve(prompts, most=9) == expected
            assert not server.busy
        assert model.config._attn_implementation == before


def test_a_beginning_is_computed_once() -> None:
    from tilekiln.torch import Server

    model, prompts = make("Llama"), requests()
    with Server(model, pages=64) as server:
        answers, done = server.serve(prompts, most=3), {}
        numbers = [server.add(prompts[1] + answers[1] + [7], most=2), server.add(prompts[0], most=2)]
        while server.busy:
            done |= {one.number: one for one in server.step()}
        assert [done[one].reused for one in numbers] == [32, 0]  # whole pages of 16
        held = {page for one in server.cache.sequences for page in server.cache.pages_of(one)}
        assert len(held) + server.cache.free_places == 64
        for one in list(server.kept.kept):
            server.kept.forget(one)
        assert (server.cache.free_places, server.cache.sequences) == (64, [])
        assert not server.kept._found


def test_requests_come_go_and_end_early() -> None:
    from tilekiln.torch import Server

    model, prompts = make("Llama"), requests()
    expected = alone(model, prompts, 9)
    with Server(model, pages=64, chunk=16) as server:
        first = server.add(prompts[0], most=9, ends=[expected[0][3]])
        second = server.add(prompts[1], most=9)
        last = server.add(prompts[2], most=9)
        server.cancel(last)
        done = {one.number: one for one in server.step()}
        assert 0 < server.running[second].computed < len(prompts[1])
        server.cancel(second)
        while server.busy:
            done |= {one.number: one for one in server.step()}
        until = expected[0].index(expected[0][3]) + 1
        assert done[first].answer == expected[0][:until]
        assert done[first].came <= done[first].first <= done[first].finished
        assert server.step() == []
        with pytest.raises(tk.ArgumentError, match=f"number: was {second}, must be of a request that is not done"):
            server.cancel(second)


def test_a_request_draws_the_same_whoever_is_beside_it() -> None:
    from tilekiln.torch import Server

    model, prompts = make("Llama"), requests()
    how = {"most": 12, "temperature": 1.5, "top_k": 40, "top_p": 0.95, "seed": 11}
    greedy = alone(model, prompts[:1], 12)[0]
    with Server(model, pages=64) as server:
        one = server.serve(prompts[:1], **how)[0]
        together = server.serve(prompts, **how)
        assert together[0] == one != greedy
        assert server.serve(prompts[:1], **how | {"seed": 12})[0] != one
        assert server.serve(prompts[:1], **how | {"top_k": 1})[0] == greedy
        with pytest.raises(RuntimeError, match=r"tilekiln\.torch\.Server's, by which alone it is called"):
            model(torch.tensor([[1]]))


def test_a_step_that_fails_may_be_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    from tilekiln.torch import Server

    model, prompts = make("Llama"), requests()
    expected = alone(model, prompts[:2], 5)
    with Server(model, pages=64) as server:
        numbers = [server.add(one, most=5) for one in prompts[:2]]
        server.step()
        with monkeypatch.context() as patch:
            patch.setattr(model.lm_head, "forward", _interrupted)
            with pytest.raises(KeyboardInterrupt):
                server.step()
        done = {}
        while server.busy:
            done |= {one.number: one.answer for one in server.step()}
        assert [done[one] for one in numbers] == expected


def _interrupted(*_: Any) -> None:
    raise KeyboardInterrupt


WRONG = {
    "model: was Linear, must be a causal": lambda server: server(torch.nn.Linear(2, 2)),
    "model: was T5.*, must be a decoder with": lambda server: server(make("T5", _name="T5ForConditionalGeneration")),
    "model: was .* of torch.float64, must be": lambda server: server(make("Llama").double()),
    "model: was .*, must lie on one device and be in": lambda server: server(make("Llama").train()),
    "page_size: was 12, must be a power of two": lambda server: server(page_size=12),
    "pages: was 0": lambda server: server(pages=0),
    "chunk: was 0": lambda server: server(chunk=0),
    "prompt: was of no tokens": lambda server: server().add([], most=1),
    "prompt: was with token 90, must be of tokens from 0 to 89": lambda server: server().add([3, 90], most=1),
    "most: was 0": lambda server: server().add([1], most=0),
    "most: was 99 after a prompt of 1, must fit 64": lambda server: server().add([1], most=99),
    "temperature: was -1": lambda server: server().add([1], most=1, temperature=-1),
    "top_p: was 0, must be above 0": lambda server: server().add([1], most=1, top_p=0),
    "top_k: was -1": lambda server: server().add([1], most=1, top_k=-1),
}


@pytest.mark.parametrize("message", WRONG)
def test_refused(message: str) -> None:
    from tilekiln.torch import Server

    def server(model: Any = None, **more: Any) -> Any:
        return Server(make("Llama") if model is None else model, **{"pages": 4} | more)

    with pytest.raises(tk.ArgumentError, match=f"^{message}"):
        WRONG[message](server)


def test_a_closed_server_takes_nothing() -> None:
    from tilekiln.torch import Server

    server = Server(make("Llama"), pages=4)
    server.close()
    server.close()
    with pytest.raises(tk.ArgumentError, match="server: was closed, must be open"):
        server.add([1], most=1)


def test_pages_that_sequences_share(load: Any) -> None:
    """KVCache: a prefix is read by both, written by none, and free when the last one goes."""
    cache = tk.KVCache(pages=4, page_size=16, nhead_k=2, hdim=64, library=load("flash"))
    k = np.random.default_rng(0).standard_normal((1, 40, 2, 64)).astype(np.float32)
    first = cache.add()
    cache.append([first], k, k)
    second = cache.add(first, 32)
    assert cache.pages_of(second) == cache.pages_of(first)[:2]
    assert (cache.length(second), cache.free_places) == (32, 1)
    cache.append([second], k[:, 32:], k[:, 32:])
    q = k[:, :1].repeat(2, axis=2)
    outs = [tk.decode(q, cache, [one]) for one in (first, second)]
    np.testing.assert_array_equal(*outs)
    for wrong, message in (
        ((first, 8), "whole pages of 16"),
        ((first, 48), "at most 40"),
        ((None, 16), "without a prefix"),
    ):
        with pytest.raises(tk.ArgumentError, match=f"tokens: was .*{message}"):
            cache.add(*wrong)
    for tokens in (20, 41, -1):
        with pytest.raises(tk.ArgumentError, match=f"tokens: was {tokens}, must be at most 40"):
            cache.shorten(first, tokens)
    cache.shorten(second, 36)
    cache.shorten(second, 32)
    assert cache.free_places == 1
    cache.free(first)
    assert cache.free_places == 2
    with pytest.raises(MemoryError, match="3 pages are needed and 2 are free"):
        cache.grow(second, 33)
    cache.grow(second, 20)
    assert (cache.length(second), cache.free_places) == (52, 0)
    cache.free(second)
    assert sorted(cache._free) == [0, 1, 2, 3]


SMALL = ("serve-bench", "--hidden", "256", "--layers", "1", "--requests", "3", "--answer", "3", "--dtype", "float32")


def say(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    from tilekiln.__main__ import main

    monkeypatch.setenv("TILEKILN_NUM_THREADS", "1")  # which the command sets
    return main([*SMALL, *words])


def test_the_command_tells_both_ways(monkeypatch: Any, capsys: Any, tmp_path: pathlib.Path) -> None:
    assert say(monkeypatch, "--json", str(tmp_path / "told.json"), "--prefix", "16", "--prompt", "4-9") == 0
    out = capsys.readouterr().out
    assert "times as many tokens a second, 3 of 3 answers the same" in out
    told = json.loads((tmp_path / "told.json").read_text())
    theirs, ours = told["runs"]
    assert (theirs["way"], ours["way"]) == ("generate_batch, PyTorch", "tilekiln.torch.Server")
    assert (ours["tokens"], ours["reused_tokens"]) == (9, 32)
    assert 0 < ours["first_token_p50"] <= ours["first_token_p99"] <= ours["seconds"]
    assert told["ratio"] == pytest.approx(ours["tokens_per_second"] / theirs["tokens_per_second"])


def test_the_command_alone_over_a_model_in_a_folder(monkeypatch: Any, capsys: Any, tmp_path: pathlib.Path) -> None:
    make("Llama").save_pretrained(tmp_path)
    assert say(monkeypatch, str(tmp_path), "--alone", "--json", "-", "--prompt", "5", "--repeat", "2") == 0
    told = json.loads(capsys.readouterr().out)
    assert [one["tokens"] for one in told["runs"]] == [9]


REFUSED = {
    "MODEL: was 'nowhere', must be a folder with config.json": ("nowhere",),
    "--hidden: was 100, must be a multiple of 256": ("--hidden", "100"),
    "--prompt: was '9-3', must be LEAST-MOST": ("--prompt", "9-3"),
    "--requests: was '0', must be an integer of 1 or more": ("--requests", "0"),
    "there is no option '--reqeusts'; did you mean '--requests'": ("--reqeusts=3",),
    "page_size: was 12, must be a power of two": ("--page-size", "12", "--alone"),
    "most: was 3 after a prompt of .*, must fit 16 tokens": ("--pages", "1", "--alone", "--prompt", "40"),
}


@pytest.mark.parametrize("message", REFUSED)
def test_the_command_names_what_is_wrong(monkeypatch: Any, capsys: Any, message: str) -> None:
    try:
        code = say(monkeypatch, *REFUSED[message])
    except SystemExit as error:
        code = int(error.code or 0)
    assert code == 2
    assert re.search(message, capsys.readouterr().err)


@pytest.mark.day
def test_the_command_ends_at_ctrl_c() -> None:
    words = (*SMALL[:5], "--answer", "3000", "--alone", "--prompt", "4", "--requests", "8", "--hidden", "1024")
    child = subprocess.Popen(
        [sys.executable, "-m", "tilekiln", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "python")},
    )  # fmt: skip
    assert child.stdout is not None
    assert "8 requests" in child.stdout.readline()
    time.sleep(1)
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=60)
    assert (child.returncode, err) == (130, "")
