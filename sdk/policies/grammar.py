"""Grammars tell which tokens a reply may go on with. They hold it to calls in the model's own form whose arguments
their schemas allow, or to content by a schema.

llguidance parses the bytes of the tokens so far (an Earley parser over derivatives of regular expressions) and tells
which tokens may be next. Where only one text may follow, that is the tokenizer's own token for it, so that a model is
not led to spell a word as it never learnt to. How a model writes calls is found by letting its renderer write some.
Where it does not write arguments as JSON (some families write them as XML), only the beginning of a call can be asked
for.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, Self

from mcp_bridge.records import Tool

from ..errors import ModelError
from ..records import Message, ToolCall
from .rendering import ChatRenderer

if TYPE_CHECKING:
    import torch

_MOST_COMPILED = 64
_MOST_CHECKED = 16_384
_MOST_MASKS = 1024
"""Of a grammar, of which equal ones are one object: 6 MB of a vocabulary of 49,152."""
_STACK_BYTES = 128 << 20
"""Of the thread that compiles: llguidance follows a schema's definitions by recursion, up to 14 kB for each level, and
where the stack ends, the whole process does. Memory that is not used is not taken."""
SPECIAL = b"\xff"
"""Stands around the id of a special token where `GrammarTokenizer.spell` writes tokens as bytes. No text has it."""


class GrammarTokenizer:
    """Compiles grammars for the tokens of one model. Safe to use from several threads."""

    def __init__(self, tokenizer: Any, *, stop_token_ids: Sequence[int]) -> None:
        """`tokenizer`: llguidance's. `stop_token_ids`: those that end a reply, which may come where a grammar does."""
        self._tokenizer = tokenizer
        self._stop_ids = frozenset(stop_token_ids)
        special = filter(tokenizer.is_special_token, range(tokenizer.vocab_size))
        self._special_names = [name for name in map(self._name, special) if name]
        self._compiled = lru_cache(maxsize=_MOST_COMPILED)(self._compile)
        self._valid = dict[bytes, bool]()

    @classmethod
    def of(cls, tokenizer: Any, *, vocabulary: int, stop_token_ids: Sequence[int]) -> Self:
        """Of a tokenizer of transformers. `vocabulary`: how many logits the model has.

        Raises `ModelError` for a tokenizer that llguidance does not know: one that is not fast, or whose tokens are not
        bytes, as those of WordPiece.
        """
        from llguidance import hf

        try:
            made = hf.from_tokenizer(tokenizer, n_vocab=max(vocabulary, len(tokenizer)), eos_token=list(stop_token_ids))
        except ValueError as error:
            raise ModelError(f"grammars cannot be used with this model's tokenizer: {str(error)[:200]}") from error
        return cls(made, stop_token_ids=stop_token_ids)

    def spell(self, token_ids: Sequence[int]) -> bytes:
        """The tokens as UTF-8 bytes, without stop tokens; special tokens are their ids between two `SPECIAL`."""
        spelt, run = b"", []
        for token in [*token_ids, None]:
            if token is not None and not self._tokenizer.is_special_token(token):
                run.append(token)
                continue
            spelt, run = spelt + self._tokenizer.decode_bytes(run), []
            if token is not None and token not in self._stop_ids:
                spelt += SPECIAL + str(token).encode() + SPECIAL
        return spelt

    def token_bytes(self, token: int) -> bytes:
        """A token as UTF-8 bytes, which may be part of a character; a special token by its name."""
        if self._tokenizer.is_special_token(token):
            return self._name(token).encode()
        return bytes(self._tokenizer.decode_bytes([token]))

    def _name(self, special: int) -> str:
        return str(self._tokenizer.decode_str([special]))

    def compile(self, text: str) -> Grammar:
        """The grammar that a text in llguidance's form of Lark describes. Raises `ValueError` for one it refuses."""
        found = self._compiled(text)
        if isinstance(found, str):
            raise ValueError(found)
        return found

    def is_valid(self, text: str) -> bool:
        """Whether `compile` takes a text. It is told by a digest: clients may send more tools than there are grammars
        kept."""
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
        if (found := self._valid.get(digest)) is None:
            found = not isinstance(self._compile(text), str)
            if len(self._valid) >= _MOST_CHECKED:
                self._valid.clear()
            self._valid[digest] = found
        return found

    def _compile(self, text: str) -> Grammar | str:
        """A grammar, or why there is none: clients send the same tools again and again."""
        from llguidance import LLMatcher

        if any(json.dumps(name)[1:-1] in text for name in self._special_names):
            # The tokenizer's own token for such text is the special one, which would end a reply in its midst. Without
            # that, text is spelt as ordinary tokens.
            text = '%llguidance {"no_forcing": true}\n' + text
        matcher = _compiling_thread().submit(LLMatcher, self._tokenizer, text, log_level=0).result()
        if matcher.is_error():
            return _reason(matcher.get_error())
        return Grammar(text, matcher, self._tokenizer.vocab_size)


@cache
def _compiling_thread() -> ThreadPoolExecutor:
    thread = ThreadPoolExecutor(1, "toolbake-grammars")
    usual = threading.stack_size(_STACK_BYTES)  # of threads that are started from now on
    try:
        thread.submit(int).result()
    finally:
        threading.stack_size(usual)
    return thread


class Grammar:
    """What a reply may be. Any number of replies follow it at the same time."""

    def __init__(self, text: str, matcher: Any, vocabulary: int) -> None:
        """`matcher`: llguidance's, at its beginning; `vocabulary`: how many tokens it knows."""
        self.text = text
        """In llguidance's form of Lark."""
        self.vocabulary = vocabulary
        self._matcher = matcher
        self._copying = threading.Lock()
        self._kept_mask = lru_cache(maxsize=_MOST_MASKS)(bytes)

    def begin(self) -> Derivation:
        """A reply without tokens so far."""
        with self._copying:
            return Derivation(self, self._matcher.deep_copy())

    def allowed_along(self, token_ids: Sequence[int]) -> list[bytes]:
        """What each token of a reply was chosen from, as `TokenRow.allowed` has it. Equal ones are one object, as far
        as they are remembered.

        Raises `ValueError` for a token that is not allowed, and a grammar that becomes too complex.
        """
        derivation, masks = self.begin(), []
        for place, token in enumerate(token_ids):
            mask = self._kept_mask(derivation.bits())
            if not mask[token // 8] >> token % 8 & 1:
                raise ValueError(
                    f"token {token} at place {place} of a reply is not allowed by its grammar, so its sampler follows "
                    'another one; start vLLM with --structured-outputs-config \'{"backend": "guidance"}\''
                )
            masks.append(mask)
            # What comes after the last one does not matter, and an end of the reply is not a text of the grammar.
            if place < len(token_ids) - 1 and (problem := derivation.take(token)) is not None:
                raise ValueError(f"the grammar of the reply has become too complex ({problem}); use a simpler one")
        return masks


class Derivation:
    """A reply that follows a grammar, as far as it has come."""

    def __init__(self, grammar: Grammar, matcher: Any) -> None:
        self.grammar = grammar
        self._matcher = matcher

    def allowed(self) -> torch.Tensor:
        """Which tokens may be next: [vocabulary] of bool, one or more of them True."""
        import numpy as np
        import torch

        bits = np.frombuffer(self.bits(), dtype=np.uint8)
        return torch.from_numpy(np.unpackbits(bits, count=self.grammar.vocabulary, bitorder="little")).bool()

    def bits(self) -> bytes:
        """The same, a bit for each token, the lowest of a byte first."""
        return bytes(self._matcher.compute_bitmask())

    def forced(self) -> list[int]:
        """The tokens that come next, whatever is sampled: as many as are certain."""
        return list(self._matcher.compute_ff_tokens())

    def take(self, token: int, *, ends: bool = False) -> str | None:
        """Go on by an allowed token, or end with it. Returns why the grammar cannot be followed any more, where that is
        so: it has become too complex for the parser."""
        if self._matcher.is_error() if ends else not self._matcher.consume_token(token):
            return _reason(self._matcher.get_error())
        return None


def _reason(error: str) -> str:
    """What is wrong, without the parser's state and without the place in a grammar that no user wrote."""
    said = error.strip().partition("\n<state>")[0].partition("<backtrace>")[0]
    return re.sub(r"^at \d+\(\d+\): |\n +\d+ \| .*|\n +\^\s*$", "", said).strip()


# ---------------------------------------------------------------------------------------------------------------------
# The grammars of replies.

_NAME = "probe_tool"
_ARGUMENTS = {"a": "x", "b": [1, 2]}
_TOOL = Tool(name=_NAME, description="Probe.", input_schema={"type": "object", "properties": {}})
_SEPARATORS = ((", ", ": "), (",", ":"))
_MOST_LEVELS = 10_000
"""Of a schema, counted as `_size_of` does. The stack that compiles it holds about three times as many."""
_MOST_ITEMS = 50_000
"""Of all arrays of a grammar: llguidance writes a rule for each item that may be, takes seconds for so many, and ends
the process where memory does."""
_MOST_PATTERNS = 8
"""Of one string: llguidance looks for a text that all of them allow, in milliseconds for so many and in minutes for
twice as many."""
_MOST_REMAINDERS = 10_000
"""Of a `multipleOf`: llguidance makes a state of each, in half a second for so many and in minutes for a thousand times
more."""


@dataclass(frozen=True)
class CallForm:
    """How a model writes a call: `opening`, the name, `middle`, the arguments as JSON, `closing`; all as
    `GrammarTokenizer.spell` writes tokens."""

    opening: bytes
    middle: bytes
    closing: bytes
    between: bytes | None
    """What stands between two calls of one reply; None where it cannot have two."""
    separators: tuple[str, str]
    """Of the items of the arguments' arrays and objects, and of keys and values."""

    @property
    def mark(self) -> bytes:
        """The beginning of `opening` that tells a call from text: all that stands before its JSON, where something
        does."""
        return self.opening.partition(b"{")[0].rstrip() or self.opening


class ReplyGrammars:
    """Makes the grammars of replies for one renderer. Safe to use from several threads."""

    def __init__(self, renderer: ChatRenderer, tokenizer: GrammarTokenizer) -> None:
        self._renderer = renderer
        self._tokenizer = tokenizer
        self.token_bytes = tokenizer.token_bytes
        self._form = lru_cache(maxsize=1)(self._find_form)
        self._reasoning_marks = lru_cache(maxsize=1)(self._find_reasoning_marks)

    @classmethod
    def of(
        cls, renderer: ChatRenderer, tokenizer: Any, *, vocabulary: int, stop_token_ids: Sequence[int] | None = None
    ) -> Self:
        """Of a tokenizer of transformers. `vocabulary`: how many logits the model has. `stop_token_ids`: those that may
        end a reply; the renderer's where None. Raises `ModelError` as `GrammarTokenizer.of` does."""
        stops = renderer.stop_token_ids if stop_token_ids is None else stop_token_ids
        return cls(renderer, GrammarTokenizer.of(tokenizer, vocabulary=vocabulary, stop_token_ids=stops))

    @property
    def knows_calls(self) -> bool:
        """Whether the model writes arguments as JSON, so that `text_or_calls` has a grammar."""
        return self._form()[0] is not None

    def content(
        self, schema: Mapping[str, Any], tools: Sequence[Tool] = (), *, parallel: bool = True, reasoning: bool = False
    ) -> Grammar:
        """Content that is JSON by `schema`, or calls of `tools`, where there are some. `reasoning`: the prompt has
        opened the reasoning, which comes first. Where it has not, a model that has a token for it may open it.

        Raises `ValueError` for a schema that no grammar can be made of; the text names the reason.
        """
        form = self._form()[0]
        separators = form.separators if form is not None else _SEPARATORS[0]
        rule = f"content: {_json_by(schema, separators)}"
        alone = self._tokenizer.compile("\n".join([*self._start("content", reasoning), rule]))
        if form is None or not tools:
            return alone  # with tools it was compiled for its errors: `_compile` takes those for the tools'
        return self._compile(form, [*self._start("content | mark calls", reasoning), rule], tools, parallel=parallel)

    def calls(self, tools: Sequence[Tool], *, parallel: bool = True, reasoning: bool = False) -> Grammar:
        """One call or, with `parallel`, more, and nothing else but reasoning that the prompt has opened.

        Where the model's form of calls is not known, the beginning that all its calls share, and any text. Raises
        `ModelError` where they share none.
        """
        form, shared = self._form()
        if form is not None:
            return self._compile(form, self._start("mark calls", reasoning), tools, parallel=parallel)
        if not shared:
            raise ModelError("the model's format of calls has no common start, so a call cannot be forced")
        return self._tokenizer.compile("\n".join(self._start(f"{_literal(shared)} TEXT", reasoning)))

    def text_or_calls(self, tools: Sequence[Tool], *, parallel: bool = True, reasoning: bool = False) -> Grammar | None:
        """Any text, and calls where it goes on to begin one. None where the form of calls is not known."""
        form = self._form()[0]
        if form is None:
            return None
        # The lazy lexeme wins over the text that goes on: what has the mark is a call. A special token is in no text.
        lazy = "" if form.mark.startswith(SPECIAL) else "[lazy]"
        rules = [*self._start("called calls | TEXT", reasoning), f"called{lazy}: TEXT {_literal(form.mark)}"]
        return self._compile(form, rules, tools, parallel=parallel)

    def _compile(self, form: CallForm, rules: Sequence[str], tools: Sequence[Tool], *, parallel: bool) -> Grammar:
        more = parallel and form.between is not None
        lines = [
            *rules,
            f"mark: {_literal(form.mark)}",
            "calls: call" + (f" ({_literal(form.between or b'')} mark call)*" if more else ""),
            f"call: {_literal(form.opening.removeprefix(form.mark))} call_of {_literal(form.closing)}",
            "call_of: " + " | ".join(f"call_{place}" for place in range(len(tools))),
        ]

        def by(schemas: Sequence[Mapping[str, Any]]) -> Grammar:
            return self._tokenizer.compile("\n".join([*lines, *_calls_of(tools, schemas, form)]))

        schemas = [tool.input_schema for tool in tools]
        if sum(_size_of(schema)[1] for schema in schemas) > _MOST_ITEMS:
            schemas = [{} if _size_of(schema)[1] else schema for schema in schemas]
        with suppress(ValueError):
            return by(schemas)
        # Of what has no grammar, any object: its calls are held against the schema when they are complete. And schemas
        # that have one each may be too large together.
        known = [schema if self._has_grammar(schema) else {} for schema in schemas]
        if known != schemas:
            with suppress(ValueError):
                return by(known)
        return by([{} for _ in tools])

    def _has_grammar(self, schema: Mapping[str, Any]) -> bool:
        try:
            return self._tokenizer.is_valid(f"start: {_json_by(schema, _SEPARATORS[0])}")
        except ValueError:
            return False

    def _start(self, reply: str, reasoning: bool) -> list[str]:
        """The first rules: a reply, after reasoning where there is some, or may be some."""
        rules = [r"TEXT: /(.|\n)*/"]
        opening, closing = self._reasoning_marks()
        if not (reasoning or opening):
            return [f"start: {reply}", *rules]
        lazy = "" if closing.startswith(SPECIAL) else "[lazy]"  # a special token is in no text
        thought = [f"thought{lazy}: TEXT {_literal(closing)}", r"BLANK: /\s+/"]
        start = "thought BLANK? reply" if reasoning else f"({_literal(opening)} thought BLANK?)? reply"
        return [f"start: {start}", *thought, f"reply: {reply}", *rules]

    def _find_reasoning_marks(self) -> tuple[bytes, bytes]:
        """What begins the reasoning in a reply, empty where nothing does, and what ends it.

        A model begins it by itself only with a token for that: one without was not made to reason, and would rather
        begin there than with the form that it is asked for.
        """
        try:
            said = self._renderer.encode_reply(Message(role="assistant", reasoning="Hm", content="Said"), [])
        except ModelError:
            said = []
        marks = {self._tokenizer.token_bytes(token): SPECIAL + str(token).encode() + SPECIAL for token in said}
        opens = bool(said) and self._tokenizer.token_bytes(said[0]) == b"<think>"
        return marks[b"<think>"] if opens else b"", marks.get(b"</think>", b"</think>")

    def _find_form(self) -> tuple[CallForm | None, bytes]:
        """The form of calls, where arguments are JSON; and how each call begins."""
        try:
            one, others = self._write(1), self._write(1, {"Z": 1}, "other")
        except ModelError:
            return None, b""
        two = b""
        with suppress(ModelError):  # some templates take one call at a time
            two = self._write(2)
        shared = _common_start(one, others)
        for separators in _SEPARATORS:
            arguments = json.dumps(_ARGUMENTS, separators=separators).encode()
            before, found, closing = one.partition(arguments)
            opening, named, middle = before.rpartition(_NAME.encode())
            if not (found and named and opening):
                continue
            call = before + arguments + closing
            rest = two.removeprefix(call).removesuffix(call)
            between = rest if two == call + rest + call else None
            return CallForm(opening, middle, closing, between, separators), shared
        return None, shared

    def _write(self, count: int, arguments: Mapping[str, Any] = _ARGUMENTS, name: str = _NAME) -> bytes:
        calls = [ToolCall(id=f"call_{n}", name=name, arguments=dict(arguments)) for n in range(count)]
        tool = _TOOL.model_copy(update={"name": name})
        said = self._renderer.encode_reply(Message(role="assistant", tool_calls=calls), [tool])
        spelled = self._tokenizer.spell(said)
        # Qwen3's template writes empty reasoning before a call. Reasoning has rules of its own, see `_start`.
        _, ended, call = spelled.partition(self._reasoning_marks()[1])
        return call.lstrip() if ended else spelled


def _calls_of(tools: Sequence[Tool], schemas: Sequence[Mapping[str, Any]], form: CallForm) -> list[str]:
    """A rule for each tool, of its name and its arguments, and one for each schema."""
    calls, rules = [], dict[str, str]()
    for place, (tool, schema) in enumerate(zip(tools, schemas, strict=True)):
        named = json.dumps(tool.name, ensure_ascii=False)[1:-1].encode() + form.middle
        arguments = _json_by({**_closed(schema), "type": "object"}, form.separators)
        calls.append(f"call_{place}: {_literal(named)} {rules.setdefault(arguments, f'arguments_{len(rules)}')}")
    return [*calls, *(f"{name}: {arguments}" for arguments, name in rules.items())]


_OPENING = {"additionalProperties", "unevaluatedProperties", "patternProperties", "minProperties"}
"""What tells of properties that have no name in a schema."""
_COMBINING = {"$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "not", "if", "dependentSchemas"}
"""What may name properties elsewhere."""


def _closed(schema: Any) -> Any:
    """`schema` without properties that it does not name, where it allows them by its silence: servers ignore or refuse
    such arguments, and OpenAI's strict mode and xgrammar's know none."""
    if not isinstance(schema, Mapping) or _COMBINING & schema.keys():
        return schema
    made = dict(schema)
    properties, required = schema.get("properties"), schema.get("required")
    required = required if isinstance(required, list) else []  # clients send null, and what is not a JSON Schema
    if isinstance(properties, Mapping):
        made["properties"] = {name: _closed(one) for name, one in properties.items()}
        if not _OPENING & schema.keys() and all(isinstance(name, str) and name in properties for name in required):
            made["additionalProperties"] = False
    if "items" in schema:
        made["items"] = _closed(schema["items"])
    return made


def _json_by(schema: Mapping[str, Any], separators: tuple[str, str]) -> str:
    """What llguidance makes a rule of. What it does not know of JSON Schema it leaves out: replies are held against the
    whole schema when they are complete."""
    levels, items, remainders, patterns = _size_of(schema)
    if levels > _MOST_LEVELS:
        raise ValueError(f"its references times its levels are {levels}, more than {_MOST_LEVELS}")
    if items > _MOST_ITEMS:
        raise ValueError(f"its minItems and maxItems add up to {items:g}, more than {_MOST_ITEMS}")
    if remainders > _MOST_REMAINDERS:
        raise ValueError(f"its multipleOf is {remainders} without its zeros, more than {_MOST_REMAINDERS}")
    if patterns > _MOST_PATTERNS:
        raise ValueError(f"one of its strings may have to match {patterns} patterns, more than {_MOST_PATTERNS}")
    item, key = separators
    options = {"whitespace_flexible": False, "item_separator": item, "key_separator": key, "lenient": True}
    return "%json " + json.dumps({**schema, "x-guidance": options})


def _size_of(schema: Any) -> tuple[int, float, int, int]:
    """The most levels of a schema below each other, where each reference may lead to a definition as deep as all; how
    many items its arrays may have together; the largest `multipleOf`, as a whole number without zeros at its end; and
    the most patterns that one string may have to match.

    Those are all patterns of properties of one name where schemas are combined; a definition may be any of them.
    """
    references, deepest, items, remainders, combined = set(), 0, 0.0, 0, False
    patterns = defaultdict[str | None, set[str]](set)
    rest: list[tuple[Any, int, str | None]] = [(schema, 1, None)]
    while rest:
        part, level, name = rest.pop()
        deepest = max(deepest, level)
        if isinstance(part, Mapping):
            if type(step := part.get("multipleOf")) in (int, float):
                digits = Decimal(str(step)).normalize().as_tuple().digits  # none of NaN
                remainders = max(remainders, int("0" + "".join(map(str, digits))))
            counts = (part.get("minItems"), part.get("maxItems"))
            counted = [count for count in counts if isinstance(count, int | float) and count > 0]
            items += sum(min(count, 1e300) for count in counted)  # a whole number may be beyond a float
            found = {part[key] for key in ("$ref", "$dynamicRef") if isinstance(part.get(key), str)}
            references |= found
            combined |= "allOf" in part or bool(found and {"pattern", "properties"} & part.keys())
            if isinstance(part.get("pattern"), str):
                patterns[name].add(part["pattern"])
            for key, inner in part.items():
                if key == "properties" and isinstance(inner, Mapping):
                    rest += [(one, level + 2, of) for of, one in inner.items() if isinstance(one, Mapping | list)]
                    deepest = max(deepest, level + 1)
                elif isinstance(inner, Mapping | list):
                    rest.append((inner, level + 1, None if key in ("$defs", "definitions") else name))
        else:
            rest += [(one, level + 1, name) for one in part if isinstance(one, Mapping | list)]
    of_any = len(patterns.pop(None, ()))
    most = of_any + max(map(len, patterns.values()), default=0) if combined else 0
    return (1 + len(references)) * deepest, items, remainders, most


def _literal(spelt: bytes) -> str:
    """The bytes as terms of a rule."""
    parts = spelt.split(SPECIAL)  # text, id, text, id, ..., text
    terms = [f"<[{part.decode()}]>" if place % 2 else json.dumps(part.decode()) for place, part in enumerate(parts)]
    return " ".join(term for term in terms if term != '""') or '""'


def _common_start(one: bytes, other: bytes) -> bytes:
    length = next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    shared = one[:length]
    return shared if shared.count(SPECIAL) % 2 == 0 else shared[: shared.rindex(SPECIAL)]
