"""Attention over a tree: every node sees exactly its own path, gradients included."""

import math
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sdk.errors import ModelError
from sdk.trainer import tree_attention as ways
from sdk.trainer.tree_attention import PiecePlan, PrefixTree, attend_by_pieces, build_prefix_tree

pytestmark = pytest.mark.timeout(120)

WINDOWS = st.one_of(st.none(), st.integers(1, 10))
ROWS = st.lists(st.lists(st.integers(0, 2), max_size=9), min_size=1, max_size=6).filter(any)
Heads = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def paths(tree: PrefixTree) -> dict[int, list[int]]:
    """Node -> its ancestors from the root down, and itself."""
    return {node: nodes[: place + 1] for nodes in tree.nodes for place, node in enumerate(nodes)}


def heads(tree: PrefixTree, groups: int, dtype: torch.dtype, size: int = 4) -> Heads:
    """Queries, keys and values of two key heads, as a model makes them: a token's heads beside each other."""
    torch.manual_seed(0)
    nodes = len(tree.token_ids)
    made = [torch.randn(nodes, count, size, dtype=dtype).transpose(0, 1) for count in (2 * groups, 2, 2)]
    q, k, v = (one.requires_grad_() for one in made)
    return q, k, v


def by_definition(
    tree: PrefixTree, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, window: int | None = None
) -> torch.Tensor:
    """softmax(q k / sqrt(D)) v over each node's path, or the last `window` nodes of it."""
    open_ = torch.zeros(len(tree.token_ids), len(tree.token_ids), dtype=torch.bool)
    for node, path in paths(tree).items():
        open_[node, path[-window:] if window else path] = True
    groups = q.shape[0] // k.shape[0]
    scores = q @ k.repeat_interleave(groups, 0).transpose(1, 2) / math.sqrt(q.shape[-1])
    return scores.masked_fill(~open_, -math.inf).softmax(-1) @ v.repeat_interleave(groups, 0)


def assert_equal_with_gradients(
    tree: PrefixTree, given_: Heads, found: torch.Tensor, atol: float, window: int | None = None
) -> None:
    expected = by_definition(tree, *given_, window=window)
    weights = torch.randn(expected.shape, dtype=expected.dtype)
    torch.testing.assert_close(found, expected, rtol=0, atol=atol)
    ours, theirs = torch.autograd.grad(found, given_, weights), torch.autograd.grad(expected, given_, weights)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=atol)


@settings(deadline=None)
@given(ROWS, st.integers(1, 3), WINDOWS, st.integers(1, 9))
def test_by_pieces_it_is_the_attention_over_each_path(
    rows: list[list[int]], groups: int, window: int | None, most: int
) -> None:
    tree = build_prefix_tree(rows)
    q, k, v = heads(tree, groups, torch.float64)
    with patch.dict(ways.MOST_QUERIES, {"cpu": most}):
        plan = PiecePlan(tree, queries_per_key=groups, device="cpu", window=window)
    assert max(plan.lengths) <= most
    assert_equal_with_gradients(tree, (q, k, v), attend_by_pieces(q, k, v, plan, None), 1e-12, window)


@settings(deadline=None)
@given(ROWS, st.integers(1, 3), WINDOWS)
def test_at_once_as_on_a_gpu_it_is_the_attention_over_each_path(
    rows: list[list[int]], groups: int, window: int | None
) -> None:
    tree = build_prefix_tree(rows)
    q, k, v = heads(tree, groups, torch.float64)
    with patch.dict(ways.WHOLE_NODES, {"cpu": 100}):
        plan = PiecePlan(tree, queries_per_key=groups, device="cpu", window=window)
    assert len(plan.pieces) == 1
    assert_equal_with_gradients(tree, (q, k, v), attend_by_pieces(q, k, v, plan, None), 1e-12, window)


def test_a_tree_that_is_too_large_to_be_attended_over_at_once_is_in_pieces() -> None:
    tree = long_tree()
    nodes = len(tree.token_ids)
    for room, pieces in ((nodes, 1), (nodes - 1, 5)):
        with patch.dict(ways.WHOLE_NODES, {"cpu": room}):
            assert len(PiecePlan(tree, queries_per_key=1, device="cpu").pieces) == pieces


def attended(
    tree: PrefixTree, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, window: int | None = None
) -> torch.Tensor:
    plan = PiecePlan(tree, queries_per_key=q.shape[0] // k.shape[0], device="cpu", window=window)
    return attend_by_pieces(q, k, v, plan, None)


def long_tree() -> PrefixTree:
    """A prompt of 300 tokens, which two rows leave in the middle and two at its end."""
    prompt = [token % 7 for token in range(300)]
    return build_prefix_tree([[*prompt, 8, *prompt], [*prompt, 9, 8], [*prompt[:150], 8, 8], [*prompt[:150], 9]])


@pytest.mark.parametrize("most", [None, 128])
@pytest.mark.parametrize("window", [None, 1, 100, 200, 301])
@pytest.mark.parametrize(("dtype", "atol"), [(torch.float64, 1e-12), (torch.float32, 2e-6)])
def test_long_prompts_and_scores_that_differ_widely_are_exact(
    dtype: torch.dtype, atol: float, window: int | None, most: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ways.MOST_QUERIES, "cpu", most)
    tree = long_tree()
    q, k, v = heads(tree, 3, dtype)
    with torch.no_grad():
        q *= 3  # some keys take nearly all of the weight, others none
    found = attended(tree, q, k, v, window=window)
    assert_equal_with_gradients(tree, (q, k, v), found, 20 * atol, window)


def test_scores_far_from_zero_give_no_infinity() -> None:
    tree = long_tree()
    q, k, v = heads(tree, 1, torch.float32)
    with torch.no_grad():
        q *= 100
        k[:, :150] *= -5  # the shared part counts for nothing, or for everything
    found = attended(tree, q, k, v)
    torch.testing.assert_close(found, by_definition(tree, q, k, v), rtol=0, atol=1e-3)
    assert all(torch.isfinite(one).all() for one in torch.autograd.grad(found.sum(), (q, k, v)))


def test_under_autocast_it_computes_in_the_type_that_was_asked_for() -> None:
    tree = long_tree()
    q, k, v = heads(tree, 3, torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = attended(tree, q, k, v)
    assert found.dtype == torch.bfloat16
    (grad,) = torch.autograd.grad(found.sum(), (q,))
    assert grad.dtype == torch.float32


def test_heads_whose_numbers_are_not_neighbours_are_read_rightly() -> None:
    tree = long_tree()
    nodes = len(tree.token_ids)
    torch.manual_seed(0)
    made = (torch.randn(count, 4, nodes, dtype=torch.float64).transpose(1, 2) for count in (4, 2, 2))
    q, k, v = (one.requires_grad_() for one in made)
    assert_equal_with_gradients(tree, (q, k, v), attended(tree, q, k, v), 1e-12)


@pytest.mark.parametrize("name", ["s_aux", "softcap"])
def test_what_would_change_the_scores_is_refused(name: str) -> None:
    tree = build_prefix_tree([[5, 6]])
    q, k, v = heads(tree, 1, torch.float32)
    plan = ways.TreePlan(tree, queries_per_key=1, device="cpu")
    with pytest.raises(ModelError, match=f"attends with {name}, which .* Pass config"):
        ways.tree_attention(None, q[None], k[None], v[None], None, tree_plan=plan, **{name: 1.0})


def test_pieces_are_runs_with_the_path_above_them() -> None:
    plan = PiecePlan(build_prefix_tree([[5, 6, 7, 7], [5, 6, 8], [5, 6, 7, 9]]), queries_per_key=2, device="cpu")
    found = [(piece.start, piece.end, piece.ancestors.tolist()) for piece in plan.pieces]
    assert found == [(0, 4, []), (4, 5, [0, 1, 2]), (5, 6, [0, 1])]
    first, second, _ = plan.masks(torch.float64)
    assert first is not None
    assert second is not None
    assert second.tolist() == [[0.0] * 4] * 2  # once for each query head of a key head
    assert [piece.follows_all for piece in plan.pieces] == [True, False, False]
    assert first.tolist()[:2] == [[0.0, *[-math.inf] * 3], [0.0, 0.0, *[-math.inf] * 2]]


@given(ROWS)
def test_the_pieces_give_every_node_its_own_path(rows: list[list[int]]) -> None:
    tree = build_prefix_tree(rows)
    seen: dict[int, list[int]] = {}
    plan = PiecePlan(tree, queries_per_key=2, device="cpu")
    for piece, mask in zip(plan.pieces, plan.masks(torch.float32), strict=True):
        assert mask is not None
        assert piece.follows_all == (piece.ancestors.tolist() == list(range(piece.start)))
        columns = [*piece.ancestors.tolist(), *range(piece.start, piece.end)]
        for row, node in enumerate(range(piece.start, piece.end)):
            seen[node] = [column for column, open_ in zip(columns, mask[row].tolist(), strict=True) if open_ == 0]
    assert seen == paths(tree)
