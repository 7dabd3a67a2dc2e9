"""Faults of one kind that are alike, by any model that turns texts into vectors."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

Embedder = Callable[[Sequence[str]], Sequence[Sequence[float]]]
"""Texts to vectors of one length, in the same order; for example `SentenceTransformer(...).encode`."""


def alike(texts: Sequence[str], embed: Embedder, *, least: float = 0.8) -> list[list[int]]:
    """Places of texts that are alike, the largest group first: each joins the first group whose first member it
    resembles (cosine of `least` or more), and begins one of its own otherwise. The order of texts decides ties.

    Raises `ValueError` where `embed` gives other than one vector a text.
    """
    if not texts:
        return []
    vectors = [list(map(float, vector)) for vector in embed(list(texts))]
    if len(vectors) != len(texts):
        raise ValueError(f"the embedder gave {len(vectors)} vectors for {len(texts)} texts; it must give one for each")
    groups: list[list[int]] = []
    for place, vector in enumerate(vectors):
        group = next((g for g in groups if _cosine(vectors[g[0]], vector) >= least), None)
        if group is None:
            groups.append([place])
        else:
            group.append(place)
    return sorted(groups, key=lambda group: -len(group))


def _cosine(one: Sequence[float], other: Sequence[float]) -> float:
    size = math.sqrt(math.fsum(a * a for a in one)) * math.sqrt(math.fsum(b * b for b in other))
    return math.fsum(a * b for a, b in zip(one, other, strict=True)) / size if size else 0.0
