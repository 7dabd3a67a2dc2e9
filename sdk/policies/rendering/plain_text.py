"""A codec of text and token ids in which only the template's own control tokens become control tokens.

A tool result that contains `<|im_end|>` is data: encoded the usual way it would end the turn and let whoever
wrote it speak in any role. `protect` therefore replaces control tokens in messages and tools by stand-ins that
survive a chat template; `encode` puts the text back and encodes it as ordinary characters.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any

from mcp_bridge.safe_text import whole_characters

from ...errors import ModelError

LONG_CHARS = 50_000
"""Longer texts are not kept, and are encoded without holding the interpreter's lock."""
_MOST_TEXTS = 1024


class PlainTextCodec:
    """Encodes rendered text and decodes ids. It has copies of the tokenizer of its own: what is set later on the
    tokenizer changes nothing here."""

    def __init__(self, tokenizer: Any) -> None:
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None:
            name = getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__
            raise ModelError(f"tokenizer {name!r} has no fast version; use a model whose folder has a tokenizer.json")
        self._whole, self._plain = _copies(backend.to_str())
        added = tokenizer.added_tokens_decoder
        self._ids = {token.content: token_id for token_id, token in added.items()}
        self._strips = {token.content: (token.lstrip, token.rstrip) for token in added.values()}
        self._control_ids = frozenset(i for i, token in added.items() if token.special)
        everywhere = [token.content for token in added.values() if token.special]
        marked = [token.content for token in added.values() if token.special or re.search(r"[^\w\s]", token.content)]
        self._control_pattern = _any_of(everywhere)
        self._marked_pattern = _any_of(marked)
        self._token_pattern = _any_of(list(self._ids))
        self._names = sorted(marked)
        self._nonce = "TEXT" + secrets.token_hex(8).upper()
        self._stand_in = re.compile(self._nonce + r"N(\d+)E")
        # The rollouts of a group begin alike, and often hear the same.
        self._encode_again = lru_cache(maxsize=_MOST_TEXTS)(partial(_encode, self._whole))

    def protect(self, value: Any, *, keep_markup: bool = False) -> Any:
        """A copy of a JSON value in which no string holds a control token.

        `keep_markup`: leave markers that are tokens but control nothing (`<think>`), which templates look for in
        the assistant's own words.
        """
        if isinstance(value, str):
            pattern = self._control_pattern if keep_markup else self._marked_pattern
            return pattern.sub(self._stand_in_of, whole_characters(value))
        if isinstance(value, dict):
            return {
                self.protect(k, keep_markup=keep_markup): self.protect(v, keep_markup=keep_markup)
                for k, v in value.items()
            }
        if isinstance(value, list):
            return [self.protect(item, keep_markup=keep_markup) for item in value]
        return value

    def _stand_in_of(self, match: re.Match[str]) -> str:
        return f"{self._nonce}N{self._names.index(match.group())}E"

    def restore(self, text: str) -> str:
        """The text as it was before `protect`, for reading only."""
        return self._stand_in.sub(lambda m: self._names[int(m.group(1))], text)

    def encode(self, text: str) -> list[int]:
        """The ids of rendered text; protected text becomes ordinary tokens. Without protected text these are exactly
        the tokenizer's own ids."""
        if self._nonce not in text:
            return list(self._encode_again(text)) if len(text) < LONG_CHARS else _encode(self._whole, text)
        ids: list[int] = []
        position = 0
        swallow = False
        for match in [*self._token_pattern.finditer(text), None]:
            piece = text[position : match.start() if match else len(text)]
            strip_left, strip_right = self._strips[match.group()] if match else (False, False)
            piece = piece.lstrip() if swallow else piece
            piece = piece.rstrip() if strip_left else piece
            ids += self._encode_plain(self.restore(piece))
            if match:
                ids.append(self._ids[match.group()])
                position, swallow = match.end(), strip_right
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, control tokens shown as text; bytes that are not UTF-8 become U+FFFD."""
        return str(self._whole.decode(list(ids), skip_special_tokens=False))

    def is_control(self, token: int) -> bool:
        """Whether a token is a control token, and no text."""
        return token in self._control_ids

    def first_token(self, text: str) -> tuple[str, int, int] | None:
        """The first control token in rendered text: its text, its id and the place behind it."""
        match = self._control_pattern.search(text)
        return (match.group(), self._ids[match.group()], match.end()) if match else None

    def _encode_plain(self, text: str) -> list[int]:
        ids = _encode(self._plain, text)
        if not self._control_ids.isdisjoint(ids):
            raise ModelError(f"the tokenizer encodes the text {text[:80]!r} as a control token even as plain text")
        return ids


def _encode(tokenizer: Any, text: str) -> list[int]:
    """The ids of a text. A batch is encoded without holding the interpreter's lock, so that a long text in one thread
    does not stop the others."""
    if len(text) < LONG_CHARS:
        return list(tokenizer.encode(text, add_special_tokens=False).ids)
    return list(tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids)


@lru_cache(maxsize=4)
def _copies(described: str) -> tuple[Any, Any]:
    """The tokenizer that a text describes, and the same without control tokens. Nobody changes them, so that all codecs
    of a tokenizer share them: making them takes most of a second."""
    from tokenizers import Tokenizer

    specification = json.loads(described) | {"truncation": None, "padding": None, "post_processor": None}
    whole, plain = specification, specification | {"added_tokens": []}
    return Tokenizer.from_str(json.dumps(whole)), Tokenizer.from_str(json.dumps(plain))


def _any_of(contents: list[str]) -> re.Pattern[str]:
    """Matches the longest of `contents` first; matches nothing when there are none."""
    longest_first = sorted((c for c in contents if c), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
