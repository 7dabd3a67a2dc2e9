"""Rows of tokens as one tree in which every distinct prefix token stands once.

Axes: B rows, L positions in the padded rows, N nodes of the tree (distinct prefixes), U nodes that predict.

Nodes are numbered in depth-first order, a row's own nodes before the branches that leave it, so that the
nodes a row adds to the tree stand one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class PrefixTree:
    """A packed batch. Example: rows `[5, 6, 7]` and `[5, 6, 8]` give

    `token_ids=[5, 6, 7, 8]`, `depths=[0, 1, 2, 2]`, `nodes=[[0, 1, 2], [0, 1, 3]]`:
    four forwarded tokens instead of six.
    """

    token_ids: list[int]
    """[N] token of each node."""
    depths: list[int]
    """[N] position in its row: what the rotary embedding sees."""
    nodes: list[list[int]]
    """[B][row length] the node of every token of every row."""


def build_prefix_tree(rows: Sequence[Sequence[int]]) -> PrefixTree:
    """Merge the rows' common prefixes. Linear in the number of tokens; an empty row has no nodes."""
    children: list[dict[int, int]] = [{}]  # of the root, then of every node in order of creation
    tokens: list[int] = []
    created: list[list[int]] = []
    for row in rows:
        parent, path = 0, []
        for token in row:
            node = children[parent].get(token)
            if node is None:
                tokens.append(token)
                children.append({})
                node = len(tokens)  # 1-based: 0 is the root
                children[parent][token] = node
            path.append(node)
            parent = node
        created.append(path)

    order: list[int] = [0] * len(children)  # creation number -> depth-first number
    token_ids: list[int] = []
    depths: list[int] = []
    stack = [(child, 0) for child in reversed(children[0].values())]
    while stack:
        node, depth = stack.pop()
        order[node] = len(token_ids)
        token_ids.append(tokens[node - 1])
        depths.append(depth)
        stack.extend((child, depth + 1) for child in reversed(children[node].values()))
    return PrefixTree(token_ids, depths, [[order[node] for node in path] for path in created])
