"""Rows of tokens as one tree in which every distinct prefix token stands once.

Axes: B rows, L positions in the padded rows, N nodes of the tree (distinct prefixes), U nodes that predict.

Nodes are numbered in depth-first order, so the descendants of node j are exactly the nodes
j .. last[j], and "j is an ancestor of i" is one comparison (the Euler-tour labelling of trees).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class PrefixTree:
    """A packed batch. Example: rows `[5, 6, 7]` and `[5, 6, 8]` give

    `token_ids=[5, 6, 7, 8]`, `depths=[0, 1, 2, 2]`, `last=[3, 3, 2, 3]`, `nodes=[[0, 1, 2], [0, 1, 3]]`:
    four forwarded tokens instead of six.
    """

    token_ids: list[int]
    """[N] token of each node."""
    depths: list[int]
    """[N] position in its row: what the rotary embedding sees."""
    last: list[int]
    """[N] the last node of each node's subtree."""
    nodes: list[list[int]]
    """[B][row length] the node of every token of every row."""

    def ancestor_mask(self, device: torch.device | str = "cpu") -> torch.Tensor:
        """[N, N] True where column j is row i itself or an ancestor of it: what i may attend to."""
        index_N = torch.arange(len(self.token_ids), device=device)
        last_N = torch.tensor(self.last, device=device)
        return (index_N[None, :] <= index_N[:, None]) & (index_N[:, None] <= last_N[None, :])


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
    last: list[int] = []
    stack: list[tuple[int, int, bool]] = [(child, 0, False) for child in reversed(children[0].values())]
    while stack:
        node, depth, leaving = stack.pop()
        if leaving:
            last[order[node]] = len(token_ids) - 1
            continue
        order[node] = len(token_ids)
        token_ids.append(tokens[node - 1])
        depths.append(depth)
        last.append(-1)
        stack.append((node, depth, True))
        stack.extend((child, depth + 1, False) for child in reversed(children[node].values()))
    return PrefixTree(token_ids, depths, last, [[order[node] for node in path] for path in created])
