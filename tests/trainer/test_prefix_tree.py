"""Rows as a tree: nothing lost, nothing twice."""

from hypothesis import given
from hypothesis import strategies as st

from sdk.trainer.tree_attention import build_prefix_tree

ROWS = st.lists(st.lists(st.integers(0, 3), max_size=8), max_size=6)


def test_the_worked_example_of_the_docstring() -> None:
    tree = build_prefix_tree([[5, 6, 7], [5, 6, 8]])
    assert tree.token_ids == [5, 6, 7, 8]
    assert tree.depths == [0, 1, 2, 2]
    assert tree.nodes == [[0, 1, 2], [0, 1, 3]]


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
