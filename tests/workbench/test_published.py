"""Our verdicts beside the benchmark's own, on all published calls."""

from __future__ import annotations

from pathlib import Path

import pytest
from clone import parse_calls, published, queries
from gold import Replay
from published import gold_lists, judge, results
from small_folder import write_table

WITHOUT_EFFECT = 2
"""Gold lists whose calls set what is set already."""


@pytest.mark.timeout(1800)
async def test_all_published_calls_get_the_benchmarks_own_verdict_and_side_effects(benchmark_folder: Path) -> None:
    judged = await judge(benchmark_folder)
    assert len(judged) == 5_520
    assert [one.of for one in judged if not one.as_the_benchmark] == []
    assert all(one.of.verdict is not None for one in judged)
    rows = {tuple(row[:2]): row[2:] for row in results(judged, benchmark_folder)}
    assert rows["gpt-4", "all"][:-1] == ["47.8 %", "64.5 %", "39.2 %", "38.8 %", "22.5 %", "40.0 %", "42.6 %"]


async def test_all_gold_lists_are_right_and_doing_nothing_is_where_they_change_nothing(benchmark_folder: Path) -> None:
    assert await gold_lists(benchmark_folder) == [True] * 690
    replay, tasks = Replay(benchmark_folder), queries(benchmark_folder)
    assert sum(not query.gold for query in tasks) == 122
    assert sum(not replay.changes(query.gold) for query in tasks) == 122 + WITHOUT_EFFECT


def test_a_call_is_read_as_the_benchmark_reads_it() -> None:
    texts = [
        'email.send_email.func(recipient="a@b.c", subject="s", body="one\ntwo")',
        'email.send_email.func(recipient="a@b.c", body="he said "no"")',
        "send_email.func()",
        '__import__("os").system("true")',
        'email.delete_email.func(email_id=__import__("os").getcwd())',
        'time.sleep.func(seconds="9")',
    ]
    assert parse_calls(repr(texts)) == (("send_email", {"recipient": "a@b.c", "subject": "s", "body": "one\ntwo"}),)


def test_the_results_of_a_clone_are_read_from_the_newest_file_of_each_model(tmp_path: Path) -> None:
    header, results = ["query", "function_calls", "full_response", "error"], tmp_path / "data" / "results" / "email"
    write_table(results / "gpt-4_all_2024-03-01_01-00-00.csv", [header, ["q", "[]", "x" * 200_000, ""]])
    newest = [header, ["q", "['email.delete_email.func(email_id=\"1\")']", "", "too long"]]
    write_table(results / "gpt-4_all_2024-03-02_01-00-00.csv", newest)
    (one,) = published(tmp_path)
    assert (one.model, one.tools, one.domain, one.error) == ("gpt-4", "all", "email", "too long")
    assert one.calls == (("delete_email", {"email_id": "1"}),)
    assert one.verdict is None
