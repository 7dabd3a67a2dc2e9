"""A ranking is measured against labels before it earns anything: right above wrong, pair by pair."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sdk.cli.app import app
from sdk.errors import ConfigError
from sdk.judging import Ranker, labelled_examples, measure_ranking, ranked


def examples(file: Path, *tasks: tuple[Sequence[str], Sequence[str]]) -> Path:
    """`tasks`: the answers that are right and those that are wrong."""
    rows = [
        {"label": label, "prompt": f"Question {number}?", "answer": answer}
        for number, answers in enumerate(tasks)
        for label, said in zip((True, False), answers, strict=True)
        for answer in said
    ]
    file.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return file


async def test_agreement_golden_values(endpoint: str, tmp_path: Path) -> None:
    # The endpoint ranks shorter answers first: of six pairs one is the wrong way round, and one is a tie.
    labelled = labelled_examples(
        examples(tmp_path / "l.jsonl", (["a", "aaa"], ["aa", "aaaa"]), (["b"], ["b", "bb"]), (["c"], []))
    )
    found = await measure_ranking(Ranker((endpoint, "honest"), by="Shorter is better."), labelled)
    assert (found.tasks, found.above, found.below, found.ties) == (2, 4, 1, 1)
    assert found.kappa == pytest.approx(0.5)
    assert found.consistency == pytest.approx(2 / 3)  # equal answers stand as they were shown: tau is 1/3 there
    assert found.disagreements == ["example 3, labelled wrong, is above example 2, labelled right: aa | aaa"]


async def test_a_taste_for_places_is_no_agreement_and_a_judge_that_fails_gives_none(
    endpoint: str, tmp_path: Path
) -> None:
    labelled = labelled_examples(examples(tmp_path / "l.jsonl", (["a"], ["aa"]), (["b"], ["bb"])))
    by_place = await measure_ranking(Ranker((endpoint, "place"), by="Shorter is better."), labelled)
    assert (by_place.kappa, by_place.ties, by_place.consistency) == (0, 2, -1)
    down = await measure_ranking(Ranker((endpoint, "down"), by="Shorter is better."), labelled)
    assert (down.kappa, down.tasks, len(down.unscored)) == (None, 0, 2)
    assert "not defined" in str(down)


async def test_labels_that_compare_nothing_are_refused(endpoint: str, tmp_path: Path) -> None:
    labelled = labelled_examples(examples(tmp_path / "l.jsonl", (["a"], []), ([], ["b"])))
    with pytest.raises(ConfigError, match="no right and no wrong one are of the same task"):
        await measure_ranking(
            ranked(lambda rollout: True, by=Ranker((endpoint, "honest"), by="Shorter is better.")), labelled
        )


def test_the_command_measures_the_gates_and_the_ranking(endpoint: str, tmp_path: Path) -> None:
    four = examples(tmp_path / "four.jsonl", *(([right], [3 * right]) for right in "abcd"))
    two = examples(tmp_path / "two.jsonl", (["a"], ["aaa", "aaaa"]), (["b"], ["bbb", "bbbb"]))
    for by, labelled, code, said in (
        ("honest", four, 0, "kappa       1.00 [0.02, 1.00]"),
        ("place", four, 1, "kappa 0.00) is below --min-kappa"),
        ("honest", two, 1, "kappa 1.00 on 2 tasks) may be chance"),
    ):
        file = tmp_path / f"ranks_by_{by}.py"
        file.write_text(
            "from sdk.judging import Ranker, ranked\n"
            f"verify = ranked(lambda r: len(r.answer) == 1, by=Ranker(({endpoint!r}, {by!r}), by='Shorter.'))\n"
        )
        done = CliRunner().invoke(app, ["judge", "check", str(labelled), "--verifier", f"{file}:verify"])
        assert (done.exit_code, said in done.output) == (code, True), done.output
        assert "kappa       1.00" in done.output  # of the gates
