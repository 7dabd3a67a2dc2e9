"""A rendered conversation with places for its texts: rendered once, filled in for each conversation of its form."""

from __future__ import annotations

import json
import re
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from jinja2 import TemplateError, ext, nodes
from jinja2.compiler import CodeGenerator
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from .sealed_text import (
    CHANGES,
    QUESTIONS,
    Condition,
    Examined,
    Record,
    SealedText,
    Slot,
    contained,
    guarded_filter,
    refuse_reading,
)

_MOST_FORMS = 1024
_MOST_VARIANTS = 8
"""Of one form, for texts of which the template's questions have different answers."""


@dataclass(frozen=True)
class Skeleton:
    """Rendered text with slots. Exact for all texts for which the conditions hold."""

    pieces: tuple[str | Slot, ...]
    conditions: tuple[Condition, ...]

    def fits(self, texts: Sequence[str]) -> bool:
        """Whether the template would answer its questions about `texts` as it did."""
        return all(
            QUESTIONS[one.question](CHANGES[one.slot.change](texts[one.slot.number]), one.argument) is one.answer
            for one in self.conditions
        )

    def fill(self, texts: Sequence[str]) -> str:
        """The rendered text with `texts` in it."""
        return "".join(
            [piece if isinstance(piece, str) else CHANGES[piece.change](texts[piece.number]) for piece in self.pieces]
        )

    def after(self, opening: str) -> Skeleton | None:
        """The rest of it behind `opening`; None where it begins otherwise, or with a text."""
        first = self.pieces[0] if self.pieces else ""
        if not isinstance(first, str) or not first.startswith(opening):
            return None
        return Skeleton((first[len(opening) :], *self.pieces[1:]), self.conditions)


class SkeletonCache:
    """Skeletons by the form of a conversation, at most 1 024 forms; the oldest goes first."""

    def __init__(self) -> None:
        self._forms: dict[Hashable, list[Skeleton]] = {}
        self._without: dict[Hashable, None] = {}

    def filled(self, form: Hashable, texts: Sequence[str]) -> str | None:
        """The rendered text, where a skeleton fits."""
        for skeleton in self._forms.get(form, ()):
            if skeleton.fits(texts):
                return skeleton.fill(texts)
        return None

    def wants(self, form: Hashable) -> bool:
        """Whether another skeleton of this form would be kept."""
        return form not in self._without and len(self._forms.get(form, ())) < _MOST_VARIANTS

    def keep(self, form: Hashable, skeleton: Skeleton) -> None:
        """Remember a skeleton of this form."""
        _make_room(self._forms, form)
        self._forms.setdefault(form, []).append(skeleton)

    def keep_none(self, form: Hashable) -> None:
        """Remember that this form has no skeleton."""
        _make_room(self._without, form)
        self._without[form] = None


def _make_room(kept: dict[Hashable, Any], form: Hashable) -> None:
    while len(kept) >= _MOST_FORMS and form not in kept:
        del kept[next(iter(kept))]


class SealingTemplate:
    """A chat template in an environment like transformers' own, in which messages' texts may be sealed."""

    def __init__(self, source: str) -> None:
        """Raises jinja2's `TemplateError` for a template that does not compile here."""
        self._environment = _Environment()
        self._template = self._environment.from_string(source)

    def skeleton(
        self, messages: Sequence[dict[str, Any]], sealed: Sequence[int], variables: Mapping[str, Any]
    ) -> Skeleton:
        """`messages` rendered, with slots for the contents of those at `sealed`, in that order.

        Raises `Examined` where the template does more with them than place them, or asks the clock, and whatever the
        template raises.
        """
        record = Record()
        given = list(messages)
        for number, place in enumerate(sealed):
            given[place] = given[place] | {"content": SealedText.of(number, given[place]["content"], record)}
        text = self._template.render(**variables, messages=given, strftime_now=lambda form: _read_clock(record, form))
        if record.reads_clock:
            raise Examined("the clock")
        parts = re.split(rf"{record.nonce}(N\d+C[a-z]+)E", str.__str__(text))
        pieces = [record.slot(part) if place % 2 else part for place, part in enumerate(parts)]
        return Skeleton(tuple(pieces), tuple(record.conditions))


def _read_clock(record: Record, form: str) -> str:
    record.reads_clock = True
    return datetime.now().strftime(form)


class _Generator(CodeGenerator):
    """Compiles what would hide sealed text from us into calls of the environment."""

    def visit_Concat(self, node: nodes.Concat, frame: Any) -> None:
        self.write("environment.concat(map(str, (")
        for one in node.nodes:
            self.visit(one, frame)
            self.write(", ")
        self.write(")))")

    def visit_Compare(self, node: nodes.Compare, frame: Any) -> None:
        if len(node.ops) != 1 or node.ops[0].op not in ("in", "notin"):
            super().visit_Compare(node, frame)
            return
        self.write("(not " if node.ops[0].op == "notin" else "(")
        self.write("environment.contained(")
        self.visit(node.expr, frame)
        self.write(", ")
        self.visit(node.ops[0].expr, frame)
        self.write("))")


class _GenerationBlocks(ext.Extension):
    """`{% generation %}` marks what an assistant says, for whoever trains on rendered text; it renders as it stands."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True)).set_lineno(line)


class _Environment(ImmutableSandboxedEnvironment):
    code_generator_class = _Generator
    concat = staticmethod(SealedText.joined)
    contained = staticmethod(contained)

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlocks, ext.loopcontrols])
        self.filters["tojson"] = _tojson
        self.filters = {name: guarded_filter(name, function) for name, function in self.filters.items()}
        for name in ("iterable", "sequence"):
            ask = self.tests[name]
            self.tests[name] = lambda value, ask=ask: isinstance(value, str) or ask(value)
        self.tests["in"] = contained
        self.globals["raise_exception"] = _raise_exception

    def call(self, context: Any, function: Any, *args: Any, **options: Any) -> Any:
        refuse_reading(function, [*args, *options.values()])
        return super().call(context, function, *args, **options)


def _tojson(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)


def _raise_exception(message: str) -> None:
    raise TemplateError(message)
