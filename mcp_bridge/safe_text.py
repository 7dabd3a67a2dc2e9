"""Safe text: what models and tools wrote, made harmless for Markdown, HTML and terminals, and visibly cut; and JSON,
read strictly."""

from __future__ import annotations

import difflib
import inspect
import json
import math
import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from typing import Any

_JOINERS = "\u200c\u200d"  # invisible, but part of writing Persian, Hindi and emoji
_MARKUP = re.compile(r"[\\`*\[\]<>|~&$]|(?<![^\W_])_|_(?![^\W_])")

_START = re.compile(r"^(\d*)([#+\-=.)])")
"""What begins a heading, a list or a rule."""


_HALF = re.compile("[\ud800-\udfff]")


def whole_characters(text: str) -> str:
    """The text with U+FFFD for each half of a surrogate pair, which UTF-8 cannot hold."""
    return _HALF.sub("\ufffd", text)


def with_texts(value: Any, change: Callable[[str], str]) -> Any:
    """A value of JSON with each text in it changed, names included."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {change(key): with_texts(one, change) for key, one in value.items()}
    return [with_texts(one, change) for one in value] if isinstance(value, list) else value


def json_in(text: str | bytes) -> Any:
    """The JSON value that a text is; None where it is not valid JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


_DECODER = json.JSONDecoder()
_SPACE = re.compile(r"\s*")


def json_values(text: str) -> list[Any] | None:
    """The JSON values that a text is made of, one after the other, as MCP sends the items of a list; None where it has
    anything else."""
    values, at = list[Any](), _SPACE.match(text).end()  # type: ignore[union-attr]
    while at < len(text):
        try:
            value, at = _DECODER.raw_decode(text, at)
        except (ValueError, RecursionError):
            return None
        values.append(value)
        at = _SPACE.match(text, at).end()  # type: ignore[union-attr]
    return values


def visible(text: str) -> str:
    """Control, direction-changing and invisible characters as escapes (`\\x1b`); line breaks and tabs stay."""
    return "".join(_escape(char) if _is_hidden(char) else char for char in text)


def _is_hidden(char: str) -> bool:
    if char in "\n\t" or char in _JOINERS:
        return False
    return unicodedata.category(char) in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")


def _escape(char: str) -> str:
    code = ord(char)
    if char == "\r":
        return "\\r"
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def shown_by(form: Callable[[Any], str], value: object) -> str:
    """`str` or `repr` of what code of the user's made, whose own text may fail."""
    try:
        return form(value)
    except Exception as failure:
        return f"(its text cannot be shown: {type(failure).__name__})"


def cut(text: str, limit: int) -> str:
    """The text, or its beginning and how many characters were left out."""
    return text if len(text) <= limit else f"{text[:limit]} … [{len(text) - limit:,} more characters]"


def shortened(text: str, limit: int) -> str:
    """The text, or its beginning and how long it is."""
    return text if len(text) <= limit else f"{text[:limit]}... ({len(text)} characters)"


def and_more(names: Sequence[str], most: int, sign: str = ",") -> str:
    """The first names, and how many others there are: `a, b and 3 more`; after another sign `a; b; and 3 more`."""
    others = f"{'' if sign == ',' else sign} and {len(names) - most} more" if len(names) > most else ""
    return f"{sign} ".join(names[:most]) + others


def plural(count: int, noun: str) -> str:
    """The noun as it stands after the count: `task` after 1, else `tasks`."""
    return noun if count == 1 else f"{noun}s"


_ES = re.compile(r"(?:ss|sh|ch|x|zz|(?:(?<![Aa])[Bb]|foc|circ|croc|cauc|nex|[ilnprst])us)es$")


def singular_of(word: str) -> str:
    """`companies` is `company`, and `statuses` is `status`; a word that is not a plural stays as it is."""
    if word.endswith("ies") and len(word) > 4:
        return f"{word[:-3]}y"
    if _ES.search(word):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith(("ss", "us", "is")) and len(word) > 2 else word


def did_you_mean(given: object, known: Iterable[str]) -> str:
    """` Did you mean 'orders'?`, where one of the known names is near to what was given; else nothing."""
    near = difflib.get_close_matches(str(given), list(known), n=1)
    return f" Did you mean {near[0]!r}?" if near else ""


def inline(text: object, limit: int = 120) -> str:
    """A text on one line with Markdown's and HTML's signs escaped: for table cells, headings and sentences."""
    return _MARKUP.sub(lambda sign: "\\" + sign[0], short_line(text, limit))


def short_line(text: object, limit: int = 120) -> str:
    """The same without the escapes, for terminals."""
    return one_line(cut(str(text), limit))


def one_line(text: str) -> str:
    """The text in `visible` form on a single line."""
    return " ".join(visible(text).split())


def strict_json(text: str | bytes, *, unique_keys: bool = False) -> Any:
    """The value of JSON text. Raises `ValueError` for anything else, for what Python alone takes for JSON (`NaN`, and
    numbers such as 1e999 that no answer could repeat), and for deep nesting. `unique_keys`: also for a key that an
    object has twice, of which Python would keep the last and say nothing."""
    try:
        return json.loads(text, object_pairs_hook=_once if unique_keys else None, **STRICT)
    except RecursionError:
        raise ValueError("nested too deeply to be read") from None


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON value; use a number or null")


def _finite(text: str) -> float:
    if math.isinf(value := float(text)):
        raise ValueError(f"{text[:40]} is out of range for a number; give a smaller one, or a text")
    return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice!r} occurs twice; keep one of them")
    return found


STRICT: dict[str, Any] = {"parse_constant": _no_constant, "parse_float": _finite}
"""What makes a decoder of the standard library strict."""


def json_problem(error: json.JSONDecodeError) -> str:
    """What is wrong in a JSON text, where, and what may stand there. It shows one character: the text may hold keys."""
    found = f"{error.doc[error.pos]!r} stands" if error.pos < len(error.doc) else "the text ends"
    line = f"line {error.lineno}, " if "\n" in error.doc else ""
    fixes = {
        "Extra data": "leave out what follows the first value",
        "Unterminated": "end the text with a double quote",
        "Unexpected UTF-8 BOM": "save the file as UTF-8 without a byte order mark",
    }
    write = "write JSON there: texts in double quotes, numbers, true, false, null, [...] or {...}"
    fix = next((fix for begins, fix in fixes.items() if error.msg.startswith(begins)), write)
    return (
        f"{error.msg.removesuffix(' at').removesuffix(' starting')} at {line}column {error.colno}, where {found}; {fix}"
    )


def fence(text: str) -> str:
    """A block of plain text that nothing in the text can end."""
    text = visible(text)
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    ticks = "`" * max(3, longest + 1)
    return f"{ticks}text\n{text}\n{ticks}"


def listed(text: str) -> str:
    """Lines as Markdown: the first as a sentence, the others as a list, all escaped."""
    lines = (inline(line, limit=1000) for line in text.splitlines() if line.strip())
    first, *rest = (_START.sub(lambda sign: f"{sign[1]}\\{sign[2]}", line) for line in lines)
    return "\n".join([first, *([""] if rest else []), *(f"- {line}" for line in rest)])


def table(head: Sequence[str], rows: Sequence[Sequence[str]], *, left_columns: int = 1) -> str:
    """A Markdown table with its columns in line, so that it reads well as plain text too.

    Cells are used as they are: pass what is not yours through `inline` first.
    """
    first, *rest = aligned([head, *rows], left_columns=left_columns)
    rule = ["-" * len(c) if i < left_columns else "-" * (len(c) - 1) + ":" for i, c in enumerate(first)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (first, rule, *rest))


def aligned(rows: Sequence[Sequence[str]], *, left_columns: int = 1) -> list[list[str]]:
    """The cells padded to the width of their column, three at least; the first `left_columns` begin at the left."""
    widths = [max(3, *map(len, column)) for column in zip(*rows, strict=True)]
    return [
        [c.ljust(w) if i < left_columns else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))]
        for row in rows
    ]


class _Unquoted(str):
    """An annotation that is text, as under `from __future__ import annotations`; a signature shows it in quotes."""

    __repr__ = str.__str__


def shown_parameters(function: Callable[..., Any]) -> str:
    """What a function takes, as it is written: `(seed: int = 0)`. Raises as `inspect.signature` does."""
    signature = inspect.signature(function)
    parameters = [
        one.replace(annotation=_Unquoted(one.annotation)) if isinstance(one.annotation, str) else one
        for one in signature.parameters.values()
    ]
    return str(signature.replace(parameters=parameters, return_annotation=signature.empty))
