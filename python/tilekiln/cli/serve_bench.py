# SPDX-License-Identifier: MIT
"""The command `tilekiln serve-bench [MODEL]`: many requests at once, beside Transformers' own continuous batching."""

from __future__ import annotations

import argparse
import json
import logging
import math
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from .command_line import count

EPILOG = """Requests have random prompts of --prompt tokens, which all begin with the same --prefix, come at once, and
get --answer tokens each, greedily. Seconds are wall time from the first request to the last token; "first" is how long
a request waited for its first token, half of them and 99 % of them at most; "reused" are tokens of prompts whose keys
an earlier request had left.

  tilekiln serve-bench                                        a random Llama of 512 columns
  tilekiln serve-bench FOLDER --dtype bfloat16 --weights int8 a model of Transformers
  tilekiln serve-bench --prompt 16-64 --prefix 256 --json -   a system prompt that all share
"""


class Run(NamedTuple):
    """One way to serve the requests. first: seconds until the first token of each request."""

    way: str
    tokens: int
    seconds: float
    processor: float
    first: list[float]
    reused: int
    answers: list[list[int]]

    def as_json(self) -> dict[str, Any]:
        """Its figures."""
        return {
            "way": self.way,
            "tokens": self.tokens,
            "seconds": self.seconds,
            "processor_seconds": self.processor,
            "tokens_per_second": self.tokens / self.seconds,
            "first_token_p50": percentile(self.first, 0.5),
            "first_token_p99": percentile(self.first, 0.99),
            "reused_tokens": self.reused,
        }


def percentile(values: list[float], share: float) -> float:
    """The least value that is not below that share of them; NaN of none."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else math.nan


def span(text: str) -> tuple[int, int]:
    """The type of an option that is a number of 1 or more, or two, LEAST-MOST."""
    least, dash, most = text.partition("-")
    low, high = count(least), count(most if dash else least)
    if low > high:
        raise argparse.ArgumentTypeError(f"was {text!r}, must be LEAST-MOST, the lesser first")
    return low, high


def none_or_more(text: str) -> int:
    """The type of an option that is a number of 0 or more."""
    return 0 if text == "0" else count(text)


def add(commands: Any) -> None:
    """The command to those of `tilekiln`."""
    parser = commands.add_parser(
        "serve-bench",
        help="tokens a second of many requests at once, beside Transformers' generate_batch",
        description="Serves requests by tilekiln.torch.Server, continuous batching over pages with an optimized model, "
        "and by generate_batch of Transformers with PyTorch's attention.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", nargs="?", metavar="MODEL", help="folder of a model of Transformers [a random Llama]")
    parser.add_argument("--hidden", type=count, default=512, help="of the random one, a multiple of 256 [%(default)s]")
    parser.add_argument("--layers", type=count, default=4, help="of it [%(default)s]")
    parser.add_argument("--words", type=count, default=2048, help="of its vocabulary [%(default)s]")
    parser.add_argument("--requests", type=count, default=32, help="[%(default)s]")
    parser.add_argument("--prompt", type=span, default="16-128", help="tokens, LEAST-MOST [%(default)s]")
    parser.add_argument("--prefix", type=none_or_more, default=0, help="tokens that all begin with [%(default)s]")
    parser.add_argument("--answer", type=count, default=32, help="tokens [%(default)s]")
    parser.add_argument("--pages", type=count, help="of the cache [room for all requests]")
    parser.add_argument("--page-size", type=count, default=16, help="tokens a page [%(default)s]")
    parser.add_argument("--chunk", type=count, default=512, help="tokens of prompts a step [%(default)s]")
    parser.add_argument("--dtype", choices=("float32", "float16", "bfloat16"), default="bfloat16", help="[%(default)s]")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="[%(default)s]")
    parser.add_argument(
        "--weights", choices=("int8", "int4", "fp8", "mxfp4"), help="quantised by optimize [as they are]"
    )
    parser.add_argument("--threads", type=count, default=1, help="of a CPU [%(default)s]")
    parser.add_argument("--repeat", type=count, default=1, help="runs of each way, the median is told [%(default)s]")
    parser.add_argument("--seed", type=none_or_more, default=0, help="of weights and prompts [%(default)s]")
    parser.add_argument("--alone", action="store_true", help="without Transformers' own")
    parser.add_argument("--json", metavar="FILE", help="write it there too; - is standard output, alone")
    parser.set_defaults(run=run)


def run(given: argparse.Namespace) -> int:
    """2 where what was given is wrong, 1 where fp32 answers differ."""
    # The binding reads it when it is loaded, so before that.
    os.environ["TILEKILN_NUM_THREADS"] = str(given.threads)
    try:
        from .._core.native import ArgumentError, NoKernelError
    except ImportError as error:
        print(f"tilekiln serve-bench: {error}", file=sys.stderr)
        return 2
    try:
        import torch
        import transformers
    except ModuleNotFoundError as error:
        print(f"tilekiln serve-bench: {error}: it works with PyTorch and Transformers: pip install torch transformers, "
              "or in this tree tools/dev --with transformers", file=sys.stderr)  # fmt: skip
        return 2
    torch.set_num_threads(given.threads)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    try:
        return _report(given)
    except (ArgumentError, NoKernelError, OSError) as error:
        print(f"tilekiln serve-bench: {error}", file=sys.stderr)
        return 2


def _model(given: argparse.Namespace) -> Any:
    import torch
    import transformers

    from .._core.native import ArgumentError

    if given.device == "cuda" and not torch.cuda.is_available():
        raise ArgumentError("--device: was 'cuda', must be 'cpu': PyTorch sees no GPU")
    dtype = getattr(torch, given.dtype)
    if given.model is not None:
        if not os.path.isfile(os.path.join(given.model, "config.json")):
            raise ArgumentError(
                f"MODEL: was {given.model!r}, must be a folder with config.json, of a model of Transformers"
            )
        made = transformers.AutoModelForCausalLM.from_pretrained(given.model, dtype=dtype, local_files_only=True)
    else:
        if given.hidden % 256:
            raise ArgumentError(f"--hidden: was {given.hidden}, must be a multiple of 256")
        torch.manual_seed(given.seed)
        heads = given.hidden // 64
        config = transformers.LlamaConfig(
            hidden_size=given.hidden, intermediate_size=given.hidden * 11 // 4, num_hidden_layers=given.layers,
            num_attention_heads=heads, num_key_value_heads=heads // 4, vocab_size=given.words,
            max_position_embeddings=max(1024, given.prefix + given.prompt[1] + given.answer), tie_word_embeddings=False,
            initializer_range=0.1, eos_token_id=None, bos_token_id=None, pad_token_id=0,
        )  # fmt: skip
        made = transformers.LlamaForCausalLM(config).to(dtype)
    return made.to(given.device).eval()


def _report(given: argparse.Namespace) -> int:
    import torch
    import transformers

    from .. import torch as ours

    model = _model(given)
    words = model.config.get_text_config(decoder=True).vocab_size
    random = torch.Generator("cpu").manual_seed(given.seed)
    low, high = given.prompt
    prefix = torch.randint(1, words, (given.prefix,), generator=random, device="cpu").tolist()
    lengths = torch.randint(low, high + 1, (given.requests,), generator=random, device="cpu").tolist()
    own = [torch.randint(1, words, (one,), generator=random, device="cpu").tolist() for one in lengths]
    prompts = [prefix + one for one in own]
    size = given.page_size
    pages = given.pages or sum(-(-(len(one) + given.answer) // size) for one in prompts)
    quiet = given.json == "-"
    if not quiet:
        what = f"{given.requests} requests, prompts of {min(map(len, prompts))} to {max(map(len, prompts))} tokens"
        where = f"{given.dtype}, {given.device}, {given.threads} threads"
        print(f"{type(model).__name__}, {where}: {what}, {given.answer} more")
        print(f"{'':32}{'tokens/s':>10}{'seconds':>10}{'first 50 %':>12}{'99 %':>10}{'reused':>8}")
    ways: list[tuple[str, Callable[[], Run]]] = []
    skipped = None
    if not given.alone:
        if int(transformers.__version__.partition(".")[0]) < 5:
            skipped = f"generate_batch is not timed: Transformers is {transformers.__version__}, must be 5 or newer"
        else:
            ways.append(("generate_batch", lambda: _theirs(given, model, prompts, pages)))
    ways.append(("tilekiln.torch.Server", lambda: _ours(given, model, prompts, pages)))
    made = []
    for way, call in ways:
        if way == "tilekiln.torch.Server":
            ours.optimize(model, weights=given.weights)
        runs = [call() for _ in range(given.repeat)]
        middle = statistics.median_low([one.seconds for one in runs])
        one = next(one for one in runs if one.seconds == middle)
        made.append(one)
        if not quiet:
            told = one.as_json()
            print(
                f"{one.way:32}{told['tokens_per_second']:10.1f}{one.seconds:10.2f}{told['first_token_p50']:12.3f}"
                f"{told['first_token_p99']:10.3f}{one.reused:8}",
                flush=True,
            )
    return _end(given, made, skipped, quiet)


def _end(given: argparse.Namespace, made: list[Run], skipped: str | None, quiet: bool) -> int:
    """The ratio, and the same as JSON."""
    told: dict[str, Any] = {
        name: value for name, value in vars(given).items() if name not in ("run", "command", "json")
    }
    told["runs"] = [one.as_json() for one in made]
    same = None
    if len(made) == 2:
        theirs, ours = made
        told["ratio"] = ours.tokens / ours.seconds / (theirs.tokens / theirs.seconds)
        same = sum(a == b for a, b in zip(theirs.answers, ours.answers, strict=True))
        told["same_answers"] = same
        if not quiet:
            same_answers = f", {same} of {given.requests} answers the same" if given.dtype == "float32" else ""
            print(f"{told['ratio']:.2f} times as many tokens a second{same_answers}")
    if skipped and not quiet:
        print(skipped)
    if quiet:
        print(json.dumps(told, indent=2))
    elif given.json:
        with open(given.json, "w") as file:
            json.dump(told, file, indent=2)
    if given.dtype == "float32" and given.weights is None and same is not None and same < given.requests:
        print("tilekiln serve-bench: answers of fp32 differ", file=sys.stderr)
        return 1
    return 0


def _ours(given: argparse.Namespace, model: Any, prompts: list[list[int]], pages: int) -> Run:
    from ..torch.serving import Server

    with Server(model, pages=pages, page_size=given.page_size, chunk=given.chunk) as server:
        server.serve([[1, 2, 3]], most=2, ends=())  # kernels are found, pages written once
        done = {}
        begin, processor = time.perf_counter(), time.process_time()
        numbers = [server.add(one, most=given.answer, ends=()) for one in prompts]
        while server.busy:
            for one in server.step():
                if one.is_done:
                    done[one.number] = one
                    _progress(len(done), len(prompts))
        seconds, processor = time.perf_counter() - begin, time.process_time() - processor
    requests = [done[one] for one in numbers]
    return Run(
        "tilekiln.torch.Server", sum(len(one.answer) for one in requests), seconds, processor,
        [one.first - one.came for one in requests], sum(one.reused for one in requests),
        [one.answer for one in requests],
    )  # fmt: skip


def _theirs(given: argparse.Namespace, model: Any, prompts: list[list[int]], pages: int) -> Run:
    """By one call of generate_batch. Its seconds end with the last token, and do not count what it sets up before."""
    import transformers

    from .._core.native import ArgumentError

    model.set_attn_implementation("sdpa")
    greedy = transformers.GenerationConfig(
        max_new_tokens=given.answer, do_sample=False, eos_token_id=-1, pad_token_id=0
    )
    kind = transformers.ContinuousBatchingConfig
    size = {"page_size" if hasattr(kind, "page_size") else "block_size": given.page_size}  # to 5.17
    pool = kind(num_blocks=pages, **size)

    def serve(some: list[list[int]], bar: bool = False) -> list[Any]:
        made = model.generate_batch(
            some, generation_config=greedy, continuous_batching_config=pool, record_timestamps=True, progress_bar=bar
        ).values()
        by_prompt = {tuple(one.prompt_ids): one for one in made if one.timestamps}
        if not all(tuple(one) in by_prompt for one in some):
            raise ArgumentError(f"generate_batch: answered {len(by_prompt)} of {len(some)} requests: say --alone")
        return [by_prompt[tuple(one)] for one in some]

    logging.disable(logging.ERROR)
    try:
        serve([[1, 2, 3]])
        processor = time.process_time()
        made = serve(prompts, bar=_is_seen())
        processor = time.process_time() - processor
    finally:
        logging.disable(logging.NOTSET)
    seconds = max(one.timestamps[-1] for one in made) - min(one.created_time for one in made)
    answers = [list(one.generated_tokens) for one in made]
    first = [one.timestamps[0] - one.created_time for one in made]
    return Run("generate_batch, PyTorch", sum(map(len, answers)), seconds, processor, first, 0, answers)


def _is_seen() -> bool:
    return sys.stderr.isatty()


def _progress(done: int, most: int) -> None:
    """A bar, where standard error is a terminal."""
    if _is_seen():
        filled = 30 * done // most
        end = "\r\033[K" if done == most else ""
        print(
            f"\r[{'#' * filled}{' ' * (30 - filled)}] {done} of {most} requests{end}",
            end="",
            file=sys.stderr,
            flush=True,
        )
