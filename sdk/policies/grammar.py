"""Grammars: which tokens a reply may go on with, where it must have a form, such as calls that their schemas allow.

llguidance parses the bytes of the tokens so far (an Earley parser over derivatives of regular expressions) and tells
which tokens may be next. Where only one text may follow, that is the tokenizer's own token for it, so that a model is
not led to spell a word as it never learnt to.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, Self

from ..errors import ModelError

if TYPE_CHECKING:
    import torch

_MOST_COMPILED = 64
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
        self._compiled = lru_cache(maxsize=_MOST_COMPILED)(self._compile)

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

    def compile(self, text: str) -> Grammar:
        """The grammar that a text in llguidance's form of Lark describes. Raises `ValueError` for one it refuses."""
        return self._compiled(text)

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
            return str(self._tokenizer.decode_str([token])).encode()
        return bytes(self._tokenizer.decode_bytes([token]))

    def _compile(self, text: str) -> Grammar:
        from llguidance import LLMatcher

        matcher = _compiling_thread().submit(LLMatcher, self._tokenizer, text, log_level=0).result()
        if matcher.is_error():
            raise ValueError(_first_line(matcher.get_error()))
        return Grammar(matcher, self._tokenizer.vocab_size)


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

    def __init__(self, matcher: Any, vocabulary: int) -> None:
        """`matcher`: llguidance's, at its beginning; `vocabulary`: how many tokens it knows."""
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
                raise ValueError(f"token {token} at place {place} of a reply is not allowed by its grammar")
            masks.append(mask)
            # What comes after the last one does not matter, and an end of the reply is no text of the grammar.
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
            return _first_line(self._matcher.get_error())
        return None


def _first_line(error: str) -> str:
    """What is wrong, without the parser's state."""
    return error.strip().partition("\n<state>")[0].partition("<backtrace>")[0].strip()
