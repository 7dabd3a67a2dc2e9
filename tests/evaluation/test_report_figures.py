"""The figures of a report: who counts, who does not, and what is compared with what."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from rollout_making import make_condition, make_rollout

from mcp_bridge.records import ToolResult
from sdk.errors import ConfigError, RunFolderError
from sdk.evaluation import Report, TrainingSummary, build_report, compare_paired, wilson
from sdk.records import Failure, Message, ToolCall


def test_success_counts_scored_rollouts_only() -> None:
    summary = build_report({"untrained": make_condition("110x0x")}).conditions["untrained"]
    assert (summary.rollouts, summary.scored, summary.unscored) == (6, 4, 2)
    assert summary.success is not None
    assert summary.success.interval == wilson(2, 4)
    assert summary.failures["tools/ServerDied"].rollouts == 2
    assert summary.failures["tools/ServerDied"].example == "the helpdesk exited with 137"
    assert summary.stop_reasons == {"answered": 4, "failed": 2}
    assert summary.score is not None
    assert summary.score.estimate == 0.5


def test_a_verdict_beside_a_failure_does_not_count() -> None:
    broken = make_rollout("t1", 1.0, failure=Failure(boundary="world", kind="Lost", message="state is gone"))
    summary = build_report({"only": [broken, make_rollout("t2", 0.0)]}).conditions["only"]
    assert summary.success is not None
    assert summary.success.interval.estimate == 0.0
    assert list(summary.failures) == ["world/Lost"]
    compared = compare_paired([broken], [make_rollout("t1", 0.0)], names=("before", "after"))
    assert (compared.tasks, compared.left_out) == (0, ["t1"])


def test_a_rollout_without_verdict_and_failure_is_unscored_and_said() -> None:
    summary = build_report({"only": [make_rollout("t1", 1.0, verdict=None)]}).conditions["only"]
    assert summary.success is None
    assert summary.failures["no verdict"].rollouts == 1


def test_the_threshold_decides_what_is_a_success_and_forgives_rounding() -> None:
    scores = [0.5, 0.1 + 0.2 + 0.7 - 1e-12, 1.0]
    rollouts = [make_rollout(f"t{i}", score) for i, score in enumerate(scores)]
    strict = build_report({"only": rollouts}).conditions["only"].success
    lenient = build_report({"only": rollouts}, success_threshold=0.5).conditions["only"].success
    assert strict is not None
    assert lenient is not None
    assert strict.interval.estimate == pytest.approx(2 / 3)
    assert lenient.interval.estimate == 1.0


def test_a_threshold_that_is_no_number_is_refused() -> None:
    only = [make_rollout("t1", 1.0)]
    with pytest.raises(ConfigError, match="success_threshold is nan; give a finite number"):
        build_report({"only": only}, success_threshold=math.nan)
    with pytest.raises(ConfigError, match="threshold is nan; give a finite number"):
        compare_paired(only, only, names=("before", "after"), threshold=math.nan)


def test_several_tries_at_a_task_count_as_one_task() -> None:
    tries = [make_rollout("t1", score, rollout_id=f"t1-{i}") for i, score in enumerate([1.0, 1.0, 0.0, 0.0])]
    success = build_report({"only": [*tries, make_rollout("t2", 1.0)]}).conditions["only"].success
    assert success is not None
    assert (success.tasks, success.rollouts) == (2, 5)
    assert success.interval == wilson(1.5, 2)  # half of t1 and all of t2


def test_success_by_tag_sorts_numbers_as_numbers() -> None:
    rollouts = [make_rollout(f"t{tier}", float(tier == "2"), tags={"tier": tier}) for tier in ("10", "2", "1")]
    by_tier = build_report({"only": rollouts}).conditions["only"].by_tag["tier"]
    assert list(by_tier) == ["1", "2", "10"]
    assert by_tier["2"].interval.estimate == 1.0
    long = build_report({"only": [make_rollout(n[:3], 1.0, tags={"n": n}) for n in ("9" * 5000, "10")]})
    assert list(long.conditions["only"].by_tag["n"]) == ["10", "9" * 5000]


def test_the_policys_mistakes_are_counted_by_kind_also_calls_that_did_not_parse() -> None:
    wrong = ToolResult(text="order_id is missing", is_error=True, error_kind="invalid_arguments")
    unreadable = ToolCall(id="c9", name="refund", error="no JSON")
    rollouts = [
        make_rollout("t1", 0.0, result=wrong),
        make_rollout("t2", 0.0, messages=[Message(role="assistant", tool_calls=[unreadable, unreadable])]),
        make_rollout("t3", None, result=wrong),  # unscored: counts nowhere
    ]
    errors = build_report({"only": rollouts}).conditions["only"].errors
    assert {kind: (e.times, e.rollouts) for kind, e in errors.items()} == {
        "invalid_arguments": (1, 1),
        "unreadable_call": (2, 1),
    }


def test_components_are_averaged_over_the_verdicts_that_have_them() -> None:
    part = build_report({"only": make_condition("10x")}).conditions["only"].components["answer"]
    assert (part.mean, part.rollouts) == (0.5, 2)


def test_costs_are_means_medians_and_maxima() -> None:
    rollouts = [make_rollout(f"t{i}", 1.0, sampled_tokens=tokens) for i, tokens in enumerate([10, 20, 90])]
    tokens = build_report({"only": rollouts}).conditions["only"].sampled_tokens
    assert tokens is not None
    assert (tokens.mean, tokens.median, tokens.max) == (40, 20, 90)


def test_only_tasks_scored_in_both_are_compared_and_the_others_are_named() -> None:
    before, after = make_condition("0011x0."), make_condition("1101110")
    compared = compare_paired(before, after, names=("before", "after"))
    # Scored in both: t00 gained, t01 gained, t02 lost, t03 same, t05 gained.
    assert (compared.tasks, compared.gained, compared.lost) == (5, 3, 1)
    assert compared.left_out == ["t04", "t06"]
    assert compared.success is not None
    assert compared.success.estimate == pytest.approx(0.4)
    assert compared.p_value == pytest.approx(2 * (1 + 4) / 16)
    assert compared.method == "tango"


def test_a_comparison_swapped_is_its_mirror_image() -> None:
    before, after = make_condition("00110x01"), make_condition("1110110x")
    there = compare_paired(before, after, names=("a", "b"))
    back = compare_paired(after, before, names=("b", "a"))
    assert there.success is not None
    assert back.success is not None
    assert there.success.low == pytest.approx(-back.success.high)
    assert there.success.high == pytest.approx(-back.success.low)
    assert (there.gained, there.lost, there.p_value) == (back.lost, back.gained, back.p_value)


def test_several_tries_are_compared_by_task() -> None:
    before = [make_rollout(f"t{t}", 0.0, rollout_id=f"{t}-{i}") for t in range(4) for i in range(2)]
    after = [make_rollout(f"t{t}", float(i <= t % 2), rollout_id=f"{t}-{i}") for t in range(4) for i in range(2)]
    compared = compare_paired(before, after, names=("before", "after"))
    assert compared.method == "student_t"
    assert compared.p_value == 2 / 16  # all four tasks up: two of the sixteen ways to flip their signs
    assert compared.success is not None
    assert compared.success.estimate == pytest.approx(0.75)  # differences 0.5, 1, 0.5, 1
    assert compared.success.low == pytest.approx(0.75 - 3.1824 * math.sqrt(0.25 / 3 / 4), rel=1e-2)


def test_a_condition_whose_rollouts_nearly_all_broke_is_not_the_best() -> None:
    solid = [make_rollout(f"t{n}", float(n < 16)) for n in range(20)]
    broken = [make_rollout("t0", 1.0), *(make_rollout(f"t{n}", None) for n in range(1, 20))]
    assert build_report({"broken": broken, "solid": solid}).best == "solid"


def test_a_mean_score_is_cut_where_scales_end_and_not_where_scores_were_seen() -> None:
    seldom = build_report({"a": [make_rollout(f"t{n}", 10.0 if n == 0 else 3.0) for n in range(20)]})
    score = seldom.conditions["a"].score
    assert score is not None
    assert score.low < 3.0 < score.estimate < score.high
    costly = build_report(
        {
            "abstains": [make_rollout(f"t{n}", 0.0) for n in range(5)],
            "guesses": [make_rollout(f"t{n}", -1.0 if n else 1.0) for n in range(5)],
        }
    )
    never = costly.conditions["abstains"].score
    assert never is not None
    assert never.low < 0 < never.high <= 1


def test_the_best_condition_has_the_most_success_then_the_higher_score_then_came_first() -> None:
    half = [make_rollout("t00", 1.0), make_rollout("t01", 0.5)]
    report = build_report({"a": make_condition("10"), "b": half, "c": half, "d": make_condition("00")})
    assert report.best == "b"
    with pytest.raises(ValueError, match="none is the best"):
        _ = build_report({"a": make_condition("xx")}).best


def test_conditions_without_a_common_task_are_not_compared() -> None:
    report = build_report({"a": make_condition("1."), "b": make_condition(".1")})
    assert report.comparisons[0].success is None
    assert report.comparisons[0].left_out == ["t00", "t01"]
    assert "no task was scored in both" in str(report)


def test_each_condition_is_compared_with_the_next_and_the_first_with_the_last() -> None:
    conditions = {"untrained": make_condition("000"), "warm": make_condition("010"), "grpo": make_condition("110")}
    report = build_report(conditions)
    assert [(c.first, c.second) for c in report.comparisons] == [
        ("untrained", "warm"),
        ("warm", "grpo"),
        ("untrained", "grpo"),
    ]


def test_weights_that_were_measured_under_another_name_are_one_comparison() -> None:
    untrained, warm, grpo = (make_condition(one) for one in ("0000000000", "1111111100", "1011110000"))
    apart = build_report({"untrained": untrained, "warm": warm, "grpo": grpo})
    again = build_report({"untrained": untrained, "warm": warm, "grpo": grpo, "handed over": warm})
    known = {(c.first, c.second): c.p_holm for c in apart.comparisons}
    found = {(c.first, c.second): c.p_holm for c in again.comparisons}
    assert found["untrained", "warm"] == found["untrained", "handed over"] != known["untrained", "warm"] is not None
    # Two comparisons are asked there, and three in the report without the repeated name.
    assert found["untrained", "warm"] == 2 * apart.comparisons[0].p_value
    assert known["untrained", "warm"] == 3 * apart.comparisons[0].p_value
    assert found["warm", "grpo"] == found["grpo", "handed over"]


def test_a_rollout_given_twice_and_no_conditions_are_refused() -> None:
    with pytest.raises(ConfigError, match="'t1-0' is given twice"):
        build_report({"only": [make_rollout("t1"), make_rollout("t1")]})
    with pytest.raises(ValueError, match="no conditions"):
        build_report({})


def test_a_mistyped_pair_and_a_tag_that_no_task_has_are_refused() -> None:
    conditions = {"before": make_condition("10"), "after": make_condition("11")}
    with pytest.raises(ConfigError, match="pairs names 'afer', which is not a condition; there are before, after"):
        build_report(conditions, pairs=[("before", "afer")])
    with pytest.raises(ConfigError, match="cluster_by is 'customer', which no task has as a tag; give 'family' or one"):
        build_report(conditions, cluster_by="customer")


def test_examples_follow_the_rule() -> None:
    conditions = {"before": make_condition("01010x1"), "after": make_condition("0010110")}
    examples = build_report(conditions).examples
    assert [(e.kind, e.rollout.task.id) for e in examples] == [
        ("newly solved", "t02"),
        ("still failing", "t00"),
        ("newly failing", "t01"),
    ]
    assert [e.earlier_score for e in examples] == [0.0, 0.0, 1.0]
    assert all(e.condition == "after" for e in examples)


def test_examples_fill_up_where_a_kind_has_none() -> None:
    examples = build_report({"before": make_condition("000"), "after": make_condition("110")}).examples
    assert [(e.kind, e.rollout.task.id) for e in examples] == [
        ("newly solved", "t00"),
        ("still failing", "t02"),
        ("newly solved", "t01"),
    ]
    single = build_report({"only": make_condition("1x0")}).examples
    assert [(e.kind, e.rollout.task.id) for e in single] == [("solved", "t00"), ("failed", "t02")]


def test_a_report_comes_back_from_its_file(tmp_path: Path) -> None:
    metrics = [{"step": 0, "reward": 0.5}]
    strange = make_rollout("t9", 0.0, answer="half \ud83d", result=ToolResult(text="\x1b[31m", structured={"a": [1]}))
    conditions = {"before": [*make_condition("01x"), strange], "after": make_condition("110")}
    report = build_report(conditions, run={"model": "m"}, training=TrainingSummary.from_metrics(metrics))
    markdown, data = report.write(tmp_path / "new folder")
    assert Report.read(data) == report
    assert markdown.read_text() == report.markdown()
    assert list(Report.read(data).conditions) == ["before", "after"]


def test_a_file_that_is_no_report_is_refused(tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text("{}")
    with pytest.raises(RunFolderError, match="not a report"):
        Report.read(tmp_path / "report.json")


def test_training_is_added_up_from_the_metrics() -> None:
    metrics = [{"note": "no step"}, {"step": 0, "stage": "warm_start", "loss": 2.0}]
    for step in range(4):
        metrics.append(
            {
                "step": step,
                "stage": "grpo",
                "reward": step / 4,
                "groups_with_signal": 3,
                "groups_without_signal": 1,
                "rollouts": 16,
                "skipped_rollouts": step % 2,
                "sampler_gap/mean": 0.25,
                "sampler_gap/max": 0.01 * step,
                "sampled_tokens": 100,
                "trained_tokens": 90,
                "seconds/rollout": 2.0,
                "seconds/update": 3.0,
            }
        )
    summary = TrainingSummary.from_metrics(metrics, stage="grpo")
    assert summary == TrainingSummary(
        steps=4,
        first_reward=0.0,
        last_reward=0.75,
        groups_with_signal=12,
        groups_without_signal=4,
        rollouts=64,
        skipped_rollouts=2,
        sampler_gap_mean=0.25,
        sampler_gap_max=0.03,
        sampled_tokens=400,
        trained_tokens=360,
        seconds={"rollout": 8.0, "update": 12.0},
        tokens_per_second={"rollout": 50.0, "update": 30.0},
    )


def test_no_rate_of_sampling_is_told_where_the_trainer_did_not_wait_for_it() -> None:
    line = {"step": 0, "stage": "grpo", "sampled_tokens": 100, "seconds/rollout": 0.01}
    for staleness, told in ((1, {}), (0, {"rollout": 10_000})):
        of_the_worker = {"step": 0, "stage": "rollouts", "staleness/max": staleness}
        summary = TrainingSummary.from_metrics([of_the_worker, line], stage="grpo")
        assert summary.tokens_per_second == told


def test_what_the_metrics_do_not_tell_is_none_and_not_zero() -> None:
    summary = TrainingSummary.from_metrics([{"step": 0}])
    assert summary.steps == 1
    assert summary.skipped_rollouts is None
    assert summary.first_reward is None
    assert summary.tokens_per_second == {}
