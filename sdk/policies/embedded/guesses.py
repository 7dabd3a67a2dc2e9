"""What a conversation may say next, guessed from what was said before: a guess costs little, a step of its own much.

A decode step reads all weights for however few tokens, so the tokens that are likely to come are computed in the step
before (speculative decoding: Leviathan et al., arXiv 2211.17192). They are looked up in what the same weights have
sampled, as in prompt lookup and SuffixDecoding (arXiv 2411.04975): rollouts of a policy that learns to use tools repeat
each other. A guess changes no result. Each token is sampled from the model's own logits by the request's own random
numbers, and a guess only decides whether these logits are there already.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

MOST_GUESSED = 4
"""So many tokens ahead. Of a quickstart step's guesses five in six are right."""
CONTEXT = 3
"""So many tokens decide what is guessed."""
_MOST_KNOWN = 200_000

# Measured with the embedded model on two cores, in what one more token costs; on a GPU steps cost more of these.
_STEP_COSTS = 32.0
"""A step, whatever it computes."""
_PADDING_COSTS = 1 / 6
"""A place of a row that has fewer tokens than the longest, in attention."""


class Guesses:
    """Which token came last after each sequence of three."""

    def __init__(self) -> None:
        self._next: dict[tuple[int, ...], int] = {}
        # As if ten had been made before, eight of them right.
        self._made, self._right = 10.0, 8.0

    def learn(self, tokens: Sequence[int], token: int) -> None:
        """`token` was sampled after `tokens`."""
        context = tuple(tokens[-CONTEXT:])
        self._next.pop(context, None)
        self._next[context] = token
        if len(self._next) > _MOST_KNOWN:
            del self._next[next(iter(self._next))]

    def guess(self, tokens: Sequence[int], *, most: int, stop_ids: Collection[int]) -> list[int]:
        """At most `most` tokens that may come after `tokens`; none of `stop_ids`, after which nothing is computed."""
        context = list(tokens[-CONTEXT:])
        guessed: list[int] = []
        while len(guessed) < min(most, MOST_GUESSED):
            token = self._next.get(tuple(context[-CONTEXT:]))
            if token is None or token in stop_ids:
                break
            guessed.append(token)
            context.append(token)
        return guessed

    def shorten(self, guesses: Sequence[list[int]]) -> list[list[int]]:
        """The guesses of all rows of a step, cut to the length at which they save most."""
        rows, share = max(len(guesses), 1), self._right / self._made

        def saved(most: int) -> float:
            tokens = sum(min(len(guess), most) for guess in guesses)
            return tokens * share * (_STEP_COSTS / rows + 1) - tokens - rows * most * _PADDING_COSTS

        best = max(range(1 + max(map(len, guesses), default=0)), key=saved)
        return [guess[:best] for guess in guesses]

    def note(self, made: int, right: int) -> None:
        """So many tokens were guessed, and so many of them sampled. What was long ago counts less."""
        self._made, self._right = 0.998**made * self._made + made, 0.998**made * self._right + right
