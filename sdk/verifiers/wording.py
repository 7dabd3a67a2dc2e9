"""Sentences, and the words in them that carry something: for checks that compare words and understand none."""

from __future__ import annotations

import re

from .text_tokens import Token, tokenize

_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z0-9\"'(\[])|\n+|(?<=;)\s+")
_CAPITAL = re.compile(r"(?<![.!?]\s)(?<!^)\b[A-Z][\w'-]+")
_SMALL_WORDS = """
a an the this that these those it its he she they them his her their i you we me my your our is are was were
be been being am do does did done has have had having will would can could may might shall should must of in
on at to from by for with about as into over under and or but if then than so because while where when which
who whom whose what how there here not no yes also just only very too any some each all both more most other
such own same up down out off again further once please thanks now currently according one
"""
NO_CONTENT = frozenset(_SMALL_WORDS.split())


def sentences(text: str) -> list[str]:
    """The sentences of a text, lines and half-sentences after semicolons each for themselves. A citation after the
    full stop belongs to the sentence before it."""
    text = re.sub(r"([.!?])((?:\s*\[[^\[\]\s]+\])+)", r"\2\1", text)
    return [part.strip() for part in _END.split(text) if part and part.strip()]


def content_words(text: str) -> list[Token]:
    """The words that carry something, each once, in order: no articles, pronouns, forms of to be."""
    return [word for word in dict.fromkeys(tokenize(text)) if word not in NO_CONTENT]


def numbers_and_names(text: str) -> list[Token]:
    """Numbers, words with a digit, and capitalised words inside a sentence: what nobody says in other words."""
    names = {word for found in _CAPITAL.findall(text) for word in tokenize(found)} - NO_CONTENT
    return [
        word
        for word in dict.fromkeys(tokenize(text))
        if not isinstance(word, str) or any(sign.isdigit() for sign in word) or word in names
    ]
