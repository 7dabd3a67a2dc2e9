"""The scrubber, which keeps secrets out of a cassette.

A secret is replaced as a whole or not at all: every place is found in the original text first, places that overlap are
one, and only then `***` is put in. Nothing is cut before.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache, partial
from typing import Any
from urllib.parse import quote

from mcp_bridge.access.redaction import HIDDEN, SHORTEST_SECRET, escaped, is_secret_name
from mcp_bridge.errors import SourceError

_SECRET_NAME = re.compile(
    r"secret|passw|passphrase|(?<!by)(?<!com)(?<!over)pass$|pwd|credential|cookie|bearer|authori[sz]ation|jwt"
    r"|(api|access|private|signing|encryption|ssh|subscription|shared|master|service)[ _-]?keys?"
    r"|(?<!next )(?<!prev )(?<!previous )(?<!page )(?<!continuation )(?<!sync )(?<!cursor )\btoken$"
    r"|(api|access|auth|refresh|bearer|session) tokens$|\b(pw|otp)( code)?$"
)
"""Narrower than for commands: `issue_key` and `next_page_token` are data, without which nothing could be replayed."""

_PIN_NAME = re.compile(r"\bpin( code)?$")
_PIN = re.compile(r"(?:\\*[\"'])?(?P<digits>\d{4,8})(?!\w|[.-]\w)")
"""A pin of fewer digits is rather one of a chip."""

_NAMED = re.compile(r"(?<![\w.-])(?P<run>[\w.-]++)(?:\\*[\"'])?\s*+[=:]\s*")
"""What may be a name, and what assigns. It is possessive, and begins at no other place of an unbroken run, so that
100,000 characters of base64 take no longer than their reading."""
_NAME = re.compile(r"[A-Za-z].*", flags=re.DOTALL)
_VALUE = re.compile(
    # true, false and null tell nothing.
    r"(?!(?:[Tt]rue|[Ff]alse|null|None)\b)"
    # What begins in brackets; in quotes; in quotes inside a JSON text; or one word.
    r"(?:(?P<nested>[\[{])"
    r"|\"(?P<double>(?:[^\"\\]|\\.)*)\"|'(?P<single>[^']*)'|(?P<slashes>\\{1,31})\"(?P<escaped>.*?)(?P=slashes)\""
    r"|(?P<word>(?:[Bb]earer\s+|[Bb]asic\s+)?[^\s&;,\"'}\])<\\]+))"
)
_FLAG = re.compile(r"(?<![^\s\"'])--?(?P<name>[A-Za-z][\w-]*+)\s++(?P<value>(?!-)[^\s&;,\"'}\])<\\]+)")
_ELEMENT = re.compile(
    r"<(?P<name>[A-Za-z_][\w.:-]*+)(?:\s[^<>]*+)?>\s*+(?!(?:true|false|null)\s*<)"
    r"(?:<!\[CDATA\[(?P<cdata>(?:(?!\]\]>|<!\[CDATA\[).)*)|(?P<content>[^<]*+)<\\*/(?P=name)\s*>)",
    flags=re.DOTALL | re.IGNORECASE,
)
"""An element of XML with text in it."""
_BLOCKS = (
    (
        re.compile(r"[|>][-+\d]{0,2}[ \t]*+(?:#[^\n]*+)?\r?\n(?:[ \t\r]*\n)*(?=(?P<indent> ++)[^ \t\r\n])"),
        re.compile(r"(?P<indent> ++)(?P<block>[^\n]++(?:\n(?:[ \t\r]*+(?=\n)|(?P=indent)[^\n]*+))*)"),
    ),
    (
        re.compile(r"[|>][-+\d]{0,2} *+(?=\\++n(?P<indent> ++))"),
        re.compile(
            r"(?P<slashes>\\++)n(?P<indent> ++)(?P<block>(?:"
            r"[^\\\"\n]|(?!(?P=slashes)n)\\++[^\\\"]|(?P=slashes)\\*+\"|(?:(?P=slashes)n)+(?P=indent))+)"
        ),
    ),
)
"""Lines of text under a name in YAML, as they stand and inside JSON: how they begin, and the lines."""
_LONGER = ("[", "{", "Bearer", "bearer", "Basic", "basic")
"""With these a value may go on behind the end of a word."""
_VALUES = ("double", "single", "escaped", "word")
_STRING = re.compile(r"\"((?:[^\"\\]|\\.)*)\"(?P<is_key>\s*:)?")
_NUMBER = re.compile(r"-?\d[\d.eE+-]*")
_FORMS = re.compile(
    r"\b(?:[Bb]earer|[Bb]asic)\s+(?P<scheme>[A-Za-z0-9._~+/=-]{8,})"
    r"|(?<=://)(?P<userinfo>[^/\s?#\"':@]*+:(?:[^/\s?#\"'@]++(?=@)|(?!\d+[/?#])(?:(?!://)[^\s\"'@])+(?=@)))"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
    r"|\beyJ[A-Za-z0-9_-]{8,}+(?:\.[A-Za-z0-9_-]{8,}+\.[A-Za-z0-9_-]*|(?P<nothing>))"
    r"|\b(?:sk|pk|rk)[-_](?:[A-Za-z0-9]{1,15}[-_]){0,16}[A-Za-z0-9]{16}[\w-]*"
    r"|\bgh[pousr]_[A-Za-z0-9]{20,}|\bgithub_pat_\w{20,}|\bglpat-[\w-]{16,}|\bxox[abprs]-[\w-]{10,}"
    r"|\bxapp-[\w-]{10,}|\bnpm_[A-Za-z0-9]{20,}|\bpypi-[\w-]{20,}|\bSG\.[\w-]{16,}\.[\w-]{16,}|\bwhsec_[\w+/=]{16,}"
    r"|\b(?:AKIA|ASIA)[A-Z0-9]{16}\b|\bhf_[A-Za-z0-9]{20,}|\bAIza[\w-]{30,}",
    flags=re.DOTALL,
)


class Scrubber:
    """Replaces secrets in JSON values. `count`: how many places it has replaced so far."""

    def __init__(self, secrets: Iterable[str] | Callable[[], Iterable[str]] = (), patterns: Iterable[str] = ()) -> None:
        """`secrets`: values that are known; a function is asked for each text, because tokens are renewed. `patterns`:
        regular expressions; what one matches is replaced.

        Raises `SourceError` for a pattern that is not a valid regular expression or matches the empty text.
        """
        self._secrets = secrets if callable(secrets) else partial(tuple, tuple(secrets))
        self._patterns = [_compiled(pattern) for pattern in patterns]
        self.count = 0

    def value(self, value: Any) -> Any:
        """JSON with the secrets in its texts replaced, those in keys of objects included. A text or number under the
        name of a secret is replaced as a whole, and each text in an object there."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self.text(str(key)): self._named(str(key), one) for key, one in value.items()}
        if isinstance(value, list | tuple):
            return [self.value(one) for one in value]
        return value

    def text(self, text: str) -> str:
        """One text with its secrets replaced. JSON in it is JSON still."""
        return self._replaced(text, [*self._spans(text), *_assigned(text)])

    def words(self, text: str) -> str:
        """The same for a text that explains, in which `password: the new one` is not a secret."""
        return self._replaced(text, self._spans(text))

    def _replaced(self, text: str, spans: Iterable[tuple[int, int]]) -> str:
        end, parts = 0, []
        for start, stop in _united(spans):
            parts += [text[end:start], f'"{HIDDEN}"' if _is_number_in_json(text, start, stop) else HIDDEN]
            end = stop
            self.count += text[start:stop] != HIDDEN
        return "".join([*parts, text[end:]])

    def _named(self, name: str, value: Any) -> Any:
        if _is_secret(name, str(value) if isinstance(value, str | int) else ""):
            if isinstance(value, str | int | float) and not isinstance(value, bool) and value != "":
                self.count += value != HIDDEN
                return HIDDEN
            if isinstance(value, list):
                return [self._named(name, one) for one in value]
            if isinstance(value, dict):  # its numbers are rather data, such as the seconds until a token expires
                return {
                    self.text(str(key)): self._named(name if isinstance(one, str | list | dict) else str(key), one)
                    for key, one in value.items()
                }
        return self.value(value)

    def _spans(self, text: str) -> Iterator[tuple[int, int]]:
        known, in_json = _known(tuple(self._secrets()))
        for secret in known:
            start = text.find(secret)
            while start >= 0:
                yield start, start + len(secret)
                start = text.find(secret, start + 1)
        if in_json is not None and "\\" in text:
            yield from (match.span() for match in in_json.finditer(text))
        for pattern in self._patterns:
            yield from (match.span() for match in pattern.finditer(text))
        for match in _FORMS.finditer(text):
            yield match.span(match.lastgroup or 0)


def _is_secret(name: str, value: str) -> bool:
    if is_secret_name(name, _SECRET_NAME):
        return True
    return is_secret_name(name, _PIN_NAME) and bool(_PIN.fullmatch(value))


def _is_number_in_json(text: str, start: int, stop: int) -> bool:
    before, after = text[max(0, start - 9) : start].rstrip(), text[stop : stop + 9].lstrip()
    return bool(_NUMBER.fullmatch(text, start, stop)) and before.endswith('":') and after.startswith((",", "}"))


def _assigned(text: str) -> Iterator[tuple[int, int]]:
    """Values under the names of secrets: `password=...`, `--password ...`, `"apiKey": "..."`, and each text in
    `"api_tokens": ["...", "..."]`, and blocks of YAML and elements of XML with such a name."""
    for flag in _FLAG.finditer(text):
        if _is_secret(flag["name"], flag["value"]):
            yield flag.span("value")
    for element in _ELEMENT.finditer(text):
        for part in ("cdata", "content"):
            if element[part] and _is_secret(element["name"], element[part].strip()):
                yield element.span(part)
    word_end = nested_end = block_end = 0
    for named in _NAMED.finditer(text):
        name, at = _NAME.search(named["run"]), named.end()
        # A word goes on to the same end where another assignment stands in it: `token=a=b=c`.
        if name is None or at < block_end or (at < word_end and not text.startswith(_LONGER, at)):
            continue
        if not is_secret_name(name[0], _SECRET_NAME):
            if is_secret_name(name[0], _PIN_NAME) and (pin := _PIN.match(text, at)):
                yield pin.span("digits")
            continue
        if block := _block(text, named.start(), at):
            yield block
            block_end = block[1]
            continue
        match = _VALUE.match(text, at)
        if match is None:
            continue
        if match["nested"]:
            if at >= nested_end:
                nested_end, texts = _nested(text, at)
                yield from texts
        else:
            yield from (match.span(group) for group in _VALUES if match[group])
            word_end = match.end() if match["word"] else word_end


def _block(text: str, name_at: int, value_at: int) -> tuple[int, int] | None:
    """The block of YAML that is the value of a name: lines that are indented more than the name."""
    for begins, lines in _BLOCKS:
        if begun := begins.match(text, value_at):
            indent = begun["indent"]
            if not text.endswith(indent, 0, name_at) and (block := lines.match(text, begun.end())):
                return block.span("block")
    return None


def _nested(text: str, start: int) -> tuple[int, list[tuple[int, int]]]:
    """The end of the JSON that begins at `start`, and its texts; the rest of the line where it is not JSON."""
    try:
        _, end = json.JSONDecoder().raw_decode(text, start)
    except (ValueError, RecursionError):
        line_end = text.find("\n", start)
        end = len(text) if line_end < 0 else line_end
        return end, [(start, end)]
    return end, [found.span(1) for found in _STRING.finditer(text, start, end) if not found["is_key"]]


def _united(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The spans sorted, those that overlap or touch as one."""
    united: list[tuple[int, int]] = []
    for start, stop in sorted(span for span in spans if span[0] < span[1]):
        if united and start <= united[-1][1]:
            united[-1] = (united[-1][0], max(stop, united[-1][1]))
        else:
            united.append((start, stop))
    return united


@lru_cache(maxsize=8)
def _known(secrets: tuple[str, ...]) -> tuple[list[str], re.Pattern[str] | None]:
    """The forms of all secrets, the longest first, and what finds them where JSON has escaped them."""
    forms = sorted({form for secret in secrets for form in _forms(secret)}, key=len, reverse=True)
    return forms, escaped(forms)


def _forms(secret: str) -> Iterator[str]:
    """A secret as it stands, and as it stands inside JSON and inside a URL."""
    in_json = (json.dumps(secret, ensure_ascii=ascii)[1:-1] for ascii in (True, False))
    for form in (secret, *in_json, quote(secret, safe="")):
        # Shorter values of an environment (`1`, `true`) are words that stand everywhere.
        if len(form) >= SHORTEST_SECRET and form != HIDDEN:
            yield form


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise SourceError(f"--scrub {pattern!r} is not a valid regular expression: {error}") from error
    if compiled.match(""):
        raise SourceError(f"--scrub {pattern!r} matches the empty text and so everything; say what it must contain")
    return compiled
