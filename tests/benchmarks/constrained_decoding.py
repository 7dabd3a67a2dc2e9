"""What a grammar costs a decode step: content by a JSON schema and calls of tools beside plain text.

    python tests/benchmarks/constrained_decoding.py [--rounds 3] [--new-tokens 32] [--threads 1]

The embedded engine samples as many tokens of the same prompts at temperature 1.0: of plain text, of content by a schema
(`response_format`) and of calls of six tools (`tool_choice: required`), in turns. Both forms have strings of any text,
names and numbers, and go on for longer than is sampled. First each step computes one token of each row, so that all
steps are of one size: what the grammar says must follow is asked for, but not used. Then the engine is as it is: it
computes such tokens in one step with the one before. Times are those of the steps after the prompts are computed. What
a grammar adds is measured where it acts, in the choice of tokens and in what must follow, and given as a share of a
step of plain text: on a machine that other programs use, the difference of two whole steps tells more about these.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

# Its import sets what must be set before torch is loaded.
from engine_throughput import PROMPT_TOKENS, TOOLS, Seconds, opened, prompts, spread

FORMS = TEXT, CONTENT, CALLS = ("plain text", "content by a JSON schema", "calls of tools")
ROWS = (1, 16)
ENDLESS = 1000
"""Items of each array: more than are sampled."""
_ITEM = {
    "type": "object",
    "properties": {
        "order_id": {"type": "string"},
        "status": {"enum": ["open", "shipped", "delivered", "returned"]},
        "items": {"type": "integer", "minimum": 1},
        "note": {"type": "string"},
    },
    "required": ["order_id", "status", "items", "note"],
}
SCHEMA = {
    "type": "object",
    "properties": {"orders": {"type": "array", "items": _ITEM, "minItems": ENDLESS}},
    "required": ["orders"],
}


@dataclass
class Steps:
    """Of one run: what each step took that decodes for all rows, and the tokens of all of them."""

    seconds: list[Seconds] = field(default_factory=list)
    tokens: int = 0
    choosing: float = 0.0
    """Processor seconds of the choice of tokens, of all these steps."""

    def medians(self) -> Seconds:
        clock, processor = (statistics.median(one) for one in zip(*self.seconds, strict=True))
        return Seconds(clock, processor)

    def a_token(self) -> Seconds:
        clock, processor = (sum(one) / self.tokens for one in zip(*self.seconds, strict=True))
        return Seconds(clock, processor)

    def more_than(self, text: Steps) -> float:
        """What the choice of a token takes longer than in `text`, as a share of all that a token of `text` takes."""
        more = self.choosing / self.tokens - text.choosing / text.tokens
        return more / text.a_token().processor


@contextmanager
def watched(engine: Any, rows: int, *, one_token: bool) -> Iterator[Steps]:
    """The engine's steps in the block. `one_token`: nothing that is guessed is computed."""
    from sdk.policies.embedded import speculative_decoding
    from sdk.policies.grammar import Derivation

    batch, found, choosing = engine._batch, Steps(), 0.0
    step, guess = batch.step, batch._guess

    def guess_nothing(row: Any) -> list[int]:
        guess(row)
        return []

    def timed_step() -> None:
        nonlocal choosing
        going = [request for row in batch.rows.live_rows() for request in row.requests]
        before, choosing = sum(len(request.token_ids) for request in going), 0.0
        began, used = time.perf_counter(), time.process_time()
        step()
        took = Seconds(time.perf_counter() - began, time.process_time() - used)
        if len(going) == rows:
            found.seconds.append(took)
            found.tokens += sum(len(request.token_ids) for request in going) - before
            found.choosing += choosing

    def timed(function: Callable[..., Any]) -> Callable[..., Any]:
        def work(*arguments: Any, **named: Any) -> Any:
            nonlocal choosing
            used = time.thread_time()
            try:
                return function(*arguments, **named)
            finally:
                choosing += time.thread_time() - used

        return work

    with ExitStack() as patches:
        patches.enter_context(patch.object(batch, "step", timed_step))
        if one_token:
            patches.enter_context(patch.object(batch, "_guess", guess_nothing))
        for place, name in ((Derivation, "forced"), (Derivation, "take"), (speculative_decoding, "choose")):
            patches.enter_context(patch.object(place, name, timed(getattr(place, name))))
        yield found


def grammars(loaded: Any) -> dict[str, Any]:
    """The grammar of each form, by the code of the endpoint."""
    from mcp_bridge.records import Tool
    from sdk.policies.grammar import GrammarTokenizer, ReplyGrammars
    from sdk.policies.rendering import make_renderer

    renderer = make_renderer(loaded.tokenizer)
    tokenizer = GrammarTokenizer.of(
        loaded.tokenizer, vocabulary=loaded.model.config.vocab_size, stop_token_ids=renderer.stop_token_ids
    )
    tools = []
    for name, description, arguments in TOOLS:
        properties = {one: {"type": kind} for one, kind in arguments.items()}
        asked = {"type": "object", "properties": properties, "required": list(properties)}
        notes = {"type": "array", "items": asked, "minItems": ENDLESS}
        schema = {"type": "object", "properties": {"each": notes}, "required": ["each"]}
        tools.append(Tool(name=name, description=description, input_schema=schema))
    made = ReplyGrammars(renderer, tokenizer)
    return {TEXT: None, CONTENT: made.content(SCHEMA), CALLS: made.calls(tools)}


def sample(engine: Any, rows: list[list[int]], grammar: Any, new_tokens: int) -> None:
    """So many tokens of each row, all at once."""
    from sdk.policies.protocol import Sampling

    async def go() -> int:
        sampling = Sampling(max_tokens=new_tokens)
        asked = [engine.sample(row, sampling=sampling, seed=i, grammar=grammar) for i, row in enumerate(rows)]
        return sum(len(one.token_ids) for one in await asyncio.gather(*asked))

    if (made := asyncio.run(go())) != len(rows) * new_tokens:
        raise RuntimeError(f"the engine made {made} tokens instead of {len(rows) * new_tokens}")


def measured(
    engine: Any, made: dict[str, Any], rows: list[list[int]], *, new_tokens: int, rounds: int, one_token: bool
) -> dict[str, list[Steps]]:
    """The steps of each form, in each round."""
    taken: dict[str, list[Steps]] = {form: [] for form in FORMS}
    for grammar in made.values():
        sample(engine, rows, grammar, 2)
    for number in range(rounds):
        for form in FORMS:
            engine.forget()
            with watched(engine, len(rows), one_token=one_token) as found:
                sample(engine, rows, made[form], new_tokens)
            taken[form].append(found)
            print(f"round {number}: {len(rows)} rows: {form}: {found.medians()} a step", flush=True)
    return taken


def table(title: str, taken: dict[int, dict[str, list[Steps]]], of: Callable[[Steps], Seconds]) -> list[str]:
    """Milliseconds `of` each form, and how many times as long as plain text it took in the same round."""
    lines = [
        f"| rows | {title} | ms, median | processor ms | times as long | of processor time | the grammar adds |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for rows, forms in taken.items():
        texts = [of(run) for run in forms[TEXT]]
        for form, runs in forms.items():
            ours = [of(run) for run in runs]
            clock, processor = (1000 * statistics.median(one) for one in zip(*ours, strict=True))
            ratios = [
                spread([one / its for one, its in zip(mine, others, strict=True)])
                for mine, others in zip(zip(*ours, strict=True), zip(*texts, strict=True), strict=True)
            ]
            more = [run.more_than(text) for run, text in zip(runs, forms[TEXT], strict=True)]
            shown = ["1", "1", ""] if form == TEXT else [*ratios, f"{100 * statistics.median(more):.1f} %"]
            lines.append(f"| {rows} | {form} | {clock:.1f} | {processor:.1f} | {' | '.join(shown)} |")
    return lines


def section(*, rounds: int = 3, new_tokens: int = 32, threads: int = 1) -> str:
    """The result as Markdown."""
    alone: dict[int, dict[str, list[Steps]]] = {}
    served: dict[int, dict[str, list[Steps]]] = {}
    with opened(threads) as one:
        made = grammars(one.loaded)
        for count in ROWS:
            rows = prompts(one.loaded.tokenizer, count)
            for one_token, into in ((True, alone), (False, served)):
                into[count] = measured(
                    one.engine, made, rows, new_tokens=new_tokens, rounds=rounds, one_token=one_token
                )
    return "\n".join(
        [
            "## Constrained decoding: what a grammar costs a step",
            "",
            f"{new_tokens} new tokens after different prompts of about {PROMPT_TOKENS} tokens, temperature 1.0, "
            f"float32, {threads} thread{'s' * (threads > 1)}, {rounds} rounds in turns. A ratio is to plain text in "
            "the same round, the median and in brackets the least and the largest. The last column is measured apart: "
            "what the choice of tokens takes longer, as a share of all of plain text's processor time. Each step "
            "computes one token of each row:",
            "",
            *table("a step of", alone, Steps.medians),
            "",
            "As served, where tokens that must follow are computed in one step with the one before:",
            "",
            *table("a token of", served, Steps.a_token),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--new-tokens", type=int, default=32)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    print(section(rounds=options.rounds, new_tokens=options.new_tokens, threads=options.threads))


if __name__ == "__main__":
    main()
