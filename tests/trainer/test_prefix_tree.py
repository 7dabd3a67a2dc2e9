"""Rows as a tree: nothing lost, nothing twice, ancestors exactly the prefixes."""

import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from sdk.trainer.prefix_tree import build_prefix_tree
from sdk.trainer.tree_attention import TreePlan

ROWS = st.lists(st.lists(st.integers(0, 3), max_size=8), max_size=6)


def test_the_worked_example_of_the_docstring() -> None:
    tree = build_prefix_tree([[5, 6, 7], [5, 6, 8]])
    assert tree.token_ids == [5, 6, 7, 8]
    assert tree.depths == [0, 1, 2, 2]
    assert tree.nodes == [[0, 1, 2], [0, 1, 3]]


def test_pieces_are_runs_with_the_path_above_them() -> None:
    plan = TreePlan(build_prefix_tree([[5, 6, 7, 7], [5, 6, 8], [5, 6, 7, 9]]), queries_per_key=2, device="cpu")
    found = [(piece.start, piece.end, piece.ancestors.tolist()) for piece in plan.pieces]
    assert found == [(0, 4, []), (4, 5, [0, 1, 2]), (5, 6, [0, 1])]
    mask = plan.masks(torch.float64)[1]
    assert mask is not None
    assert mask.tolist() == [[0.0] * 4] * 2  # once for each query head of a key head
    assert [piece.follows_all for piece in plan.pieces] == [True, False, False]
    assert plan.masks(torch.float64)[0].tolist()[:2] == [[0.0, *[-math.inf] * 3], [0.0, 0.0, *[-math.inf] * 2]]  # type: ignore[union-attr]


def test_long_runs_are_several_pieces_where_their_scores_need_a_mask() -> None:
    tree = build_prefix_tree([[5] * 300])
    ends = [piece.end for piece in TreePlan(tree, queries_per_key=3, device="cpu").pieces]
    assert ends == [128, 256, 300]
    (whole,) = TreePlan(tree, queries_per_key=1, device="cpu").pieces
    assert whole.mask(1, torch.float32) is None


@given(ROWS)
def test_every_row_can_be_read_back_from_its_nodes(rows: list[list[int]]) -> None:
    tree = build_prefix_tree(rows)
    for row, nodes in zip(rows, tree.nodes, strict=True):
        assert [tree.token_ids[node] for node in nodes] == row
        assert [tree.depths[node] for node in nodes] == list(range(len(row)))


@given(ROWS)
def test_there_is_one_node_for_each_distinct_prefix(rows: list[list[int]]) -> None:
    prefixes = {tuple(row[:end]) for row in rows for end in range(1, len(row) + 1)}
    assert len(build_prefix_tree(rows).token_ids) == len(prefixes)


@given(ROWS, st.integers(1, 6))
def test_every_node_sees_exactly_its_own_path(rows: list[list[int]], longest_piece: int) -> None:
    tree = build_prefix_tree(rows)
    seen: dict[int, list[int]] = {}
    plan = TreePlan(tree, queries_per_key=2, device="cpu", longest_piece=longest_piece)
    for piece, mask in zip(plan.pieces, plan.masks(torch.float32), strict=True):
        assert piece.end - piece.start <= longest_piece
        assert piece.follows_all == (piece.ancestors.tolist() == list(range(piece.start)))
        columns = [*piece.ancestors.tolist(), *range(piece.start, piece.end)]
        for row, node in enumerate(range(piece.start, piece.end)):
            seen[node] = [column for column, open_ in zip(columns, mask[row].tolist(), strict=True) if open_ == 0]
    assert sorted(seen) == list(range(len(tree.token_ids)))
    for nodes in tree.nodes:
        for place, node in enumerate(nodes):
            assert seen[node] == nodes[: place + 1]
