"""Secrets in commands, environments and URLs, kept out of errors, logs and results.

Errors and logs lose every value of an environment. In results, which a policy reads and a trace keeps, that would
change what a tool says of `production` or of a folder, so `Hiding` replaces only what is surely a credential: a value
under the name of a secret, an argument after such a flag, the password of a URL, what a login gave. A password that is
a word is left as well: a policy that reads `***` cannot name the column `password`.
"""

from __future__ import annotations

import base64
import binascii
import json
import logging
import operator
import re
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import SplitResult, parse_qsl, quote, quote_plus, unquote, urlsplit, urlunsplit

from ..records import Tool, ToolResult

logger = logging.getLogger(__name__)

HIDDEN = "***"

SHORTEST_SECRET = 6
_SAFE_ANYWHERE = 16
"""From this length on a secret is not a part of anything else by chance."""
_WORD = re.compile(r"(?:[A-Z]?[a-z]{1,13}(?:_[a-z]{1,13})*|[A-Z]{1,13}(?:_[A-Z]{1,13})*)\d{0,4}|\d{1,8}")
_BEGINS = r"(?:(?<![A-Za-z0-9_])|(?<=\\[nrtbf])|(?<=%[0-9A-Fa-f]{2})|(?<=\\u[0-9A-Fa-f]{4}))"
"""Where a word begins, also after an escape of JSON or of a URL."""

_SECRET_WORDS = re.compile(
    r"secret|passw|passphrase|pwd|credential|cookie|bearer|authori[sz]ation|api ?key|token(?!s|iz)"
    r"|(api|access|auth|refresh|bearer|session) tokens|(?<!by)(?<!com)(?<!over)pass$"
    r"|\b(auth|headers?|keys?|pat|pw|otp|pin)$"
)
_SHELL_FOLDERS = frozenset({"PWD", "OLDPWD"})
"""A shell's own variables: folders, where `pwd` elsewhere is a password."""

_WHOLE_ASSIGNMENT = re.compile(r"-{0,2}(?P<name>[\w.-]+)=(?P<value>.+)", flags=re.DOTALL)
# It begins at no other place of an unbroken run, and values are read of secrets alone, so that no text takes longer
# than its reading. A server may send any.
_ASSIGNMENT = re.compile(r"(?<![\w.-])(?P<name>[\w.-]++)[\"']?\s*+[=:]\s*")
_FLAG_IN_TEXT = re.compile(r"(?<![^\s\"'])--?(?P<name>[A-Za-z][\w-]*+)\s++(?!--)")
_VALUE = re.compile(r"\"[^\"]*\"|'[^']*'|(?P<word>[^\s&;,\"'}]+)")
_SCHEME_AND_TOKEN = re.compile(r"\b(?:bearer|basic)\s+(?P<value>[^\s\"',;]+)", flags=re.IGNORECASE)
# A password may hold `/`, `?` and `#` as they are; what looks like a port begins no password then.
_USERINFO = re.compile(r"(?<=://)(?P<value>[^/\s?#\"']+|[^/\s?#\"':@]++:(?!\d+[/?#])(?:(?!://)[^\s\"'@])+)(?=@)")


_LONG_WORD = re.compile(rf"[A-Za-z0-9_+=~-]{{{_SAFE_ANYWHERE},}}")


def is_secret_name(name: str, secret_words: re.Pattern[str] = _SECRET_WORDS) -> bool:
    """Whether a value under this name is a secret: `--api-key`, `HF_TOKEN`, `header`; not `max_tokens`, `PWD`.

    `secret_words` is searched in the words of the name, in small letters with a space between them.
    """
    words = re.sub(r"[^A-Za-z0-9]+", " ", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name)).lower().strip()
    return name not in _SHELL_FOLDERS and bool(secret_words.search(words))


def shown_arguments(arguments: Sequence[str]) -> list[str]:
    """The arguments of a command with `***` for secrets, however short: what follows a flag such as `--api-key`,
    `--flag=value`, `NAME=value`, `name: value`, the token of `Bearer token` and the user of a URL."""
    return [
        HIDDEN if follows else shown_text(argument)
        for argument, follows in zip(arguments, _follow_secret_flag(arguments), strict=True)
    ]


def shown_text(text: str) -> str:
    """The same for one string, which may hold a whole command."""
    end, parts = 0, []
    for start, stop in sorted(_secret_spans(text)):
        if stop > end:
            parts += [text[end:start], HIDDEN]
            end = stop
    return "".join([*parts, text[end:]])


def shown_value(value: Any) -> str:
    """A value that does not belong where it was written, as `repr` shows it: without secrets, and without what looks
    like a token, which somebody may have put into the wrong line."""
    if isinstance(value, list):
        text = repr(shown_arguments([str(one) for one in value]))
    else:
        text = repr(shown_text(str(value))) if isinstance(value, str) else shown_text(repr(value))
    return _LONG_WORD.sub(lambda word: HIDDEN if _looks_random(word[0]) else word[0], text)


def _looks_random(word: str) -> bool:
    return sum(map(str.isdigit, word)) > 1 and any(map(str.isalpha, word))


def argument_secrets(arguments: Sequence[str], *, names: bool = True) -> tuple[str, ...]:
    """The values that `shown_arguments` hides, in every form in which a server may print them. `names`: see
    `text_secrets`."""
    found: list[str] = []
    for argument, follows in zip(arguments, _follow_secret_flag(arguments), strict=True):
        found += [*_forms(argument)] if follows else []
        found += text_secrets(argument, names=names)
    return tuple(found)


def text_secrets(text: str, *, names: bool = True) -> tuple[str, ...]:
    """The secrets inside one string; for a URL with a user, the password alone too. `names`: also the user of a URL
    without a password, which may be a name as well as a token; a token is a secret either way."""
    users = [match["value"].partition(":") for match in _USERINFO.finditer(text)]
    plain = {form for user, colon, _ in users if not (colon or names or _is_token(user)) for form in _forms(user)}
    found: list[str] = []
    for start, stop in _secret_spans(text):
        found += [form for form in _forms(text[start:stop]) if form not in plain]
    return (*found, *(form for _, colon, password in users if colon for form in _forms(password)))


def is_weak(secret: str) -> bool:
    """Whether a secret is so short or so much like a word (`postgres`, `order_items`, `password1`) or a number that a
    tool may return the same without repeating it: the name of a column or of a database, a date, an id."""
    return len(secret) < SHORTEST_SECRET or _WORD.fullmatch(secret) is not None


def whole(secret: str) -> str:
    """A pattern for a secret. A short one of letters and digits alone may be a part of a longer word, such as a hash,
    and is not found there."""
    if len(secret) >= _SAFE_ANYWHERE or re.fullmatch(r"[A-Za-z0-9_]+", secret) is None:
        return re.escape(secret)
    return rf"{_BEGINS}{secret}(?![A-Za-z0-9_])"


def escaped(secrets: Iterable[str]) -> re.Pattern[str] | None:
    """What matches secrets also inside a regular expression, such as the `pattern` of a schema, and inside JSON: each
    language escapes other letters there, such as PHP `\\/` and .NET `\\u002B`. None where none has such a letter."""
    letters = [re.sub(r"\W", _escaped_letter, one) for one in secrets if re.fullmatch(r"\w+", one) is None]
    return re.compile("|".join(letters)) if letters else None


def environment_secrets(values: Iterable[str]) -> tuple[str, ...]:
    """Every value, and the secrets inside it: which of the variables are secret is not known."""
    return tuple(form for value in values for form in (*_forms(value), *text_secrets(value)))


def is_url(text: str) -> bool:
    return text.lower().startswith(("http://", "https://"))


def public_url(url: str) -> str:
    """A URL without user, password, query and fragment, where tokens are often kept."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path, "", ""))


def split_url(url: str) -> SplitResult:
    """Raises `ValueError`, whose text holds no part of the URL."""
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 - read, it is checked
    except ValueError:
        raise ValueError("the host or port of the URL is not valid") from None
    return parts


def require_http_url(url: str, example: str) -> None:
    """Raises `ValueError` for what is not an address to ask, and for one with credentials, which it does not show."""
    try:
        parts = split_url(url)
    except ValueError as error:
        raise ValueError(f"{error}; try {example}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{parts.hostname or url[:40]!r} is not an http(s) URL; try {example}")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise ValueError(f"the URL of {parts.hostname!r} holds credentials, a query or a fragment; take them out")


def url_secrets(url: str) -> tuple[str, ...]:
    """The parts of a URL that `public_url` leaves out."""
    parts = urlsplit(url)
    values = [value for _, value in parse_qsl(parts.query)]
    return tuple(part for part in (parts.username, parts.password, parts.query, parts.fragment, *values) if part)


def redacted(text: str, secrets: Iterable[str]) -> str:
    """`text` with every secret value replaced; very short values are left, they would blank out ordinary words."""
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= SHORTEST_SECRET:
            text = text.replace(secret, HIDDEN)
    return text


def redacted_command(text: str, secrets: Iterable[str]) -> str:
    """As `redacted`, but that a weak secret is replaced only where it is not part of a longer name: a server's program
    may be called `mcp-server-postgres`, and its password `postgres`."""
    known = {secret for secret in secrets if len(secret) >= SHORTEST_SECRET}
    text = redacted(text, (secret for secret in known if not is_weak(secret)))
    for secret in filter(is_weak, known):
        text = re.sub(rf"(?<![\w.-]){re.escape(secret)}(?![\w.-])", HIDDEN, text)
    return text


def _escaped_letter(letter: re.Match[str]) -> str:
    # A run of backslashes before the first letter is read once, not again from each of them.
    begins = "" if letter.start() else r"(?<!\\)"
    return rf"(?:{begins}\\*{re.escape(letter[0])}|\\u(?i:{ord(letter[0]):04x}))"


def _follow_secret_flag(arguments: Sequence[str]) -> Iterator[bool]:
    after_flag = False
    for argument in arguments:
        # A flag that takes no value, such as `--auth`, may be followed by another flag.
        yield after_flag and not argument.startswith("--")
        is_flag = argument.startswith("-") and "=" not in argument and " " not in argument
        after_flag = argument == "-H" or (is_flag and is_secret_name(argument))


def _is_token(user: str) -> bool:
    return len(user) >= _SAFE_ANYWHERE and user.isascii() and any(map(str.isdigit, user)) and "%40" not in user


def _secret_spans(text: str) -> list[tuple[int, int]]:
    whole = _WHOLE_ASSIGNMENT.fullmatch(text)
    if whole is not None and is_secret_name(whole["name"]):
        return [whole.span("value")]
    found = [match.span("value") for rule in (_SCHEME_AND_TOKEN, _USERINFO) for match in rule.finditer(text)]
    for rule in (_ASSIGNMENT, _FLAG_IN_TEXT):
        word_end = 0
        for match in rule.finditer(text):
            # What stands in a word goes on to its end, too: `token=a=b`. Others are found inside a value that is none:
            # `--url=https://host?token=...`.
            if match.end() >= word_end and is_secret_name(match["name"]) and (value := _VALUE.match(text, match.end())):
                found.append(value.span())
                word_end = value.end() if value["word"] else word_end
    return found


def _forms(value: str) -> Iterator[str]:
    """A value as it stands, without quotes and spaces around it, and decoded as in a URL."""
    bare = value.strip().strip("\"'")
    yield from dict.fromkeys(form for form in (value, bare, unquote(bare)) if form)


_LOGIN_HEADERS = frozenset({"authorization", "proxy-authorization", "cookie"})


def environment_credentials(env: Mapping[str, str]) -> tuple[str, ...]:
    """The values under names of secrets, and the secrets inside the others, such as the password in a URL."""
    found: list[str] = []
    for name, value in env.items():
        found += [value, value.strip()] if is_secret_name(name) else text_secrets(value, names=False)
    return tuple(found)


def header_credentials(headers: Mapping[str, str]) -> tuple[str, ...]:
    """The values of headers that log in or have names of secrets, the token in `Bearer token`, the password in
    `Basic ...`; of other headers, such as a version, the secrets inside them."""
    found: list[str] = []
    for name, value in headers.items():
        if name.lower() not in _LOGIN_HEADERS and not is_secret_name(name):
            found += text_secrets(value, names=False)
            continue
        scheme, _, token = value.strip().partition(" ")
        found += [value, *token.split()]
        if scheme.lower() == "basic":
            found += basic_credentials(token)
    return tuple(found)


def basic_credentials(token: str) -> list[str]:
    """What `Basic` says: the name with the password, and the password alone; nothing where it is of another form."""
    try:
        pair = base64.b64decode(token, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return []
    return [pair, pair.partition(":")[2]]


class Hiding:
    """Replaces the credentials of one server by `***`."""

    def __init__(self, credentials: Callable[[], tuple[str, ...]], label: str) -> None:
        """`credentials`: asked each time, because tokens are learned while a session goes on. Weak ones are left, with
        one warning that names the server by its `label`."""
        self._credentials = credentials
        self._label = label
        self._of: tuple[str, ...] = ()
        self._forms: tuple[str, ...] = ()
        self._pattern = re.compile("")
        self._escaped: re.Pattern[str] | None = None
        self._has_warned = False

    def result(self, result: ToolResult) -> ToolResult:
        """The result without credentials; the same record where it holds none."""
        if not self._knows_any():
            return result
        # A list: what is not JSON is not looked into.
        parts = None if result.content is None else list(result.content)
        found = {"text": result.text, "structured": result.structured, "content": parts, "meta": result.meta}
        hidden = {field: self._hidden(value) for field, value in found.items()}
        changed = {field: value for field, value in hidden.items() if value is not found[field]}
        if "content" in changed:
            changed["content"] = tuple(changed["content"])
        return result.model_copy(update=changed) if changed else result

    def text(self, text: str) -> str:
        """The text without credentials."""
        return str(self._hidden(text)) if self._knows_any() else text

    def tool(self, tool: Tool) -> Tool:
        """The tool without credentials in its description and schemas."""
        if not self._knows_any():
            return tool
        said = ("description", "input_schema", "output_schema", "title", "meta", "icons")
        return tool.model_copy(update={field: self._hidden(getattr(tool, field)) for field in said})

    def _knows_any(self) -> bool:
        now = self._credentials()
        if now is not self._of:
            self._of, self._forms = now, hidden_forms(now)
            self._pattern = re.compile("|".join(map(whole, self._forms)))
            self._escaped = escaped(self._forms)
            self._has_warned = self._has_warned or warn_of_weak(now, self._label)
        return bool(self._forms)

    def _hidden(self, value: Any) -> Any:
        """`value` itself where nothing in it had to be replaced."""
        if isinstance(value, str):
            if any(form in value for form in self._forms):
                value = self._pattern.sub(HIDDEN, value)
            return self._escaped.sub(HIDDEN, value) if self._escaped is not None and "\\" in value else value
        if isinstance(value, list):
            items = [self._hidden(one) for one in value]
            return value if all(map(operator.is_, items, value)) else items
        if isinstance(value, dict):
            entries = {self._hidden(key): self._hidden(one) for key, one in value.items()}
            same = all(map(operator.is_, entries.values(), value.values())) and entries.keys() == value.keys()
            return value if same else entries
        return value


def hidden_forms(credentials: Iterable[str]) -> tuple[str, ...]:
    """Those that are not weak, as they stand, inside JSON and in a URL; the longest first, so that none is left in
    part."""
    strong = [one for one in credentials if not is_weak(one)]
    found = {form for one in strong for form in (one, json.dumps(one)[1:-1], quote(one, safe=""))}
    return tuple(sorted(found, key=len, reverse=True))


def warn_of_weak(credentials: Iterable[str], label: str) -> bool:
    """Warn where a credential is left in results because it is a word. Whether there is one."""
    is_any = any(len(one) >= SHORTEST_SECRET and is_weak(one) for one in credentials)
    if is_any:
        logger.warning(
            "%s has a credential that is an ordinary word or a short number. Its results may hold it for other "
            "reasons, so it is hidden in logs and errors alone; where its tools may repeat the credential, give it a "
            "random one",
            label,
        )
    return is_any


_PARTS = ("connection", "http11", "http2", "proxy", "socks")
_HTTP_LOGGERS = (
    *("httpx", "httpx2", "mcp.client.sse", "mcp.client.streamable_http"),
    *(f"{library}.{part}" for library in ("httpcore", "httpcore2") for part in _PARTS),
)
"""Of libraries that write URLs and the headers of answers. A filter of a logger's parent is not asked."""


class HiddenInLogs:
    """Keeps secrets out of the logs of HTTP clients for as long as it lives."""

    def __init__(self, secrets: Callable[[], Iterable[str]]) -> None:
        """`secrets`: asked for each line, because tokens are learned while a session goes on."""
        self.secrets = secrets
        with _LOCK:
            _HIDDEN_IN_LOGS[:] = [*(one for one in _HIDDEN_IN_LOGS if one() is not None), weakref.ref(self)]
            for name in _HTTP_LOGGERS:
                logging.getLogger(name).addFilter(_without_secrets)


_LOCK = threading.Lock()
_HIDDEN_IN_LOGS: list[weakref.ref[HiddenInLogs]] = []


def _without_secrets(record: logging.LogRecord) -> bool:
    told = record.getMessage()
    known = {secret for ref in _HIDDEN_IN_LOGS.copy() if (one := ref()) is not None for secret in one.secrets()}
    forms = {form for secret in known for form in _forms_in_urls(secret)}
    hidden = redacted(without_inputs(told), forms)
    if hidden != told:
        record.msg, record.args = hidden, ()
    if record.exc_info:
        record.exc_text = redacted(without_inputs(_FORMATTER.formatException(record.exc_info)), forms)
        record.exc_info = None
    return True


_FORMATTER = logging.Formatter()
_INPUT = re.compile(r"input_value=.*(?=, input_type=)")


def without_inputs(text: str) -> str:
    """An error's text without the values that pydantic quotes: it cuts them, and part of a secret is not found."""
    return _INPUT.sub(f"input_value={HIDDEN}", text)


def _forms_in_urls(secret: str) -> tuple[str, ...]:
    return (secret, quote(secret, safe=""), quote(secret), quote_plus(secret))
