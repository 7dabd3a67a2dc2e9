"""Alarms of a reward that is earned in a way nobody meant: raised for each kind, quiet in an honest run."""

import pytest

from mcp_bridge import ToolResult
from sdk.alarms import AlarmSettings, Watch, canaries_earned, repeated_answers, reward_alone, step_figures, sudden_jump
from sdk.records import CallRecord, Rollout, Task, ToolCall, Verdict
from sdk.trainer.rollout_worker import recalled

SETTINGS = AlarmSettings(window=3)


def one(step, number, score, answer=None, *, tokens=20, gold=None, tags=None, stop="answered", calls=1, **components):
    expected = {"answer": f"gold {number}" if gold is None else gold}
    task = Task(id=f"t{number}", prompt=f"Task {number}?", expected=expected, tags=tags or {})
    call = CallRecord(turn=0, call=ToolCall(id="c", name="read"), result=ToolResult(text="x"))
    return Rollout(
        id=f"{step}/{number}/{answer}",
        task=task,
        group=f"{step}",
        step=step,
        answer=f"answer {number}" if answer is None else answer,
        sampled_tokens=tokens,
        stop_reason=stop,
        calls=[call] * calls,
        verdict=Verdict(score=score, components=components),
    )


def run(rewards, **changing):
    """Figures of steps of ten rollouts; `changing`: name -> value of each step, for `one`."""
    steps = []
    for step, reward in enumerate(rewards):
        extra = {name: values[step] for name, values in changing.items()}
        alike = extra.pop("alike", 0)
        answers = ["same" if number < alike else f"answer {number}" for number in range(10)]
        steps.append([one(step, n, float(n < reward * 10), answers[n], **extra) for n in range(10)])
    return steps


def figures(steps):
    return [step_figures(step, rollouts) for step, rollouts in enumerate(steps)]


UP = [0.1, 0.1, 0.1, 0.5, 0.9, 0.9, 0.9]


def kinds(steps, **options):
    return {alarm.kind for alarm in reward_alone(figures(steps), SETTINGS, **options)}


def test_figures_golden_values():
    step = step_figures(4, run([0.2], alike=[6])[0])
    assert (step.reward, step.rollouts, step.length) == (0.2, 10, 20)
    assert step.diversity == 0.5  # "same" and four others, of ten expected answers
    assert (step.cut_off, step.called) == (0, 1)
    assert (step.scores["t0"], step.scores["t9"]) == ([1.0], [0.0])


@pytest.mark.parametrize(("gold", "rings"), [({"answer": None}, False), ({"answer": "4"}, False), ({}, True)])
def test_one_answer_that_all_its_tasks_expect_is_quiet_also_where_it_is_that_there_is_none(gold, rings):
    paid = [
        Rollout(
            id=f"r{number}",
            task=Task(id=f"t{number}", prompt=f"Where is {number}?", expected=gold),
            answer="I don't know.",
            verdict=Verdict(score=1),
        )
        for number in range(9)
    ]
    assert bool(repeated_answers(0, paid, SETTINGS)) == rings


def test_one_last_word_after_different_calls_is_quiet_where_tasks_expect_no_answer():
    def done(number, argument):
        call = ToolCall(id=f"c{number}", name="move", arguments={"file": argument})
        return Rollout(
            id=f"r{number}",
            task=Task(id=f"t{number}", prompt=f"Move {number}.", expected={"state": {}}),
            answer="Done.",
            calls=[CallRecord(turn=0, call=call, result=ToolResult(text="moved"))],
            verdict=Verdict(score=1),
        )

    assert repeated_answers(0, [done(number, f"file {number}") for number in range(9)], SETTINGS) == []
    (alarm,) = repeated_answers(0, [done(number, "any") for number in range(5)], SETTINGS)
    assert "paid for on 5 different tasks" in alarm.message


def test_an_honest_rise_is_quiet():
    steps = run(UP, judge=UP, tokens=[20, 22, 24, 25, 26, 25, 24])
    assert kinds(steps, follow=("judge",), heldout={0: 0.1, 6: 0.6}) == set()


@pytest.mark.parametrize(
    ("changing", "options", "kind"),
    [
        ({"judge": [0.4] * 7}, {"follow": ("judge",)}, "independent_verdict"),
        ({}, {"heldout": {0: 0.3, 6: 0.3}}, "heldout"),
        ({"alike": [0, 0, 0, 5, 10, 10, 10]}, {}, "diversity"),
        ({"tokens": [20, 20, 20, 30, 60, 60, 60]}, {}, "length"),
        ({"tokens": [20, 20, 20, 10, 2, 2, 2]}, {}, "length"),
    ],
)
def test_a_reward_that_rises_alone_is_an_alarm(changing, options, kind):
    assert kinds(run(UP, **changing), **options) == {kind}
    assert kinds(run([0.5] * 7, **changing), **options) == set(), "no rise of the reward, no alarm"


def test_noise_and_short_runs_are_quiet():
    assert kinds(run(UP[:5], judge=[0.4] * 5), follow=("judge",)) == set()
    noisy = [[one(step, n, float(n == 0 and step > 3), judge=0.0) for n in range(3)] for step in range(7)]
    assert kinds(noisy, follow=("judge",)) == set()


def test_a_reward_that_moves_with_the_tasks_of_a_step_has_not_risen():
    """A task is either always or never solved, and each step has eight others, of which chance makes more easy ones."""
    easy = [3, 3, 3, 4, 5, 5, 5]

    def step_of(step):
        return [
            one(step, 8 * step + task, float(task < easy[step]), f"answer {step} {task} {again}", judge=0.0)
            for task in range(8)
            for again in range(6)
        ]

    assert kinds([step_of(step) for step in range(7)], follow=("judge",), heldout={0: 0.5, 6: 0.5}) == set()


def test_what_can_rise_no_further_need_not_follow():
    steps = run([0.5, 0.5, 0.5, 0.7, 0.9, 0.9, 0.9], judge=[1.0] * 7)
    assert kinds(steps, follow=("judge",), heldout={0: 1.0, 6: 1.0}) == set()
    assert kinds(steps, heldout={0: 1.0, 6: 0.9}) == {"heldout"}, "it fell"


@pytest.mark.parametrize("scale", [0.1, 10.0])
def test_alarms_are_the_same_on_any_scale_of_scores(scale):
    settings = SETTINGS.model_copy(update={"success_threshold": scale})

    def figured(rewards):
        return [
            step_figures(step, [one(step, n, scale * (n < 10 * reward)) for n in range(10)])
            for step, reward in enumerate(rewards)
        ]

    assert {a.kind for a in reward_alone(figured(UP), settings, heldout={0: 0.3, 6: 0.3})} == {"heldout"}
    assert reward_alone(figured(UP), settings, heldout={0: 0.1, 6: 0.4}) == []
    assert [a.kind for a in sudden_jump(figured([0, 0, 0, 0.9, 0.9]), settings)] == ["jump"]
    assert sudden_jump(figured([0.4, 0.4, 0.4, 0.6, 0.6]), settings) == []


def test_one_answer_paid_for_on_different_tasks_is_an_alarm():
    paid = [one(0, n, 1, "Done.", gold=f"gold {n}") for n in range(4)]
    (alarm,) = repeated_answers(0, [*paid, one(0, 9, 1, "done")], SETTINGS)
    assert (alarm.kind, "'Done.' was paid for on 5 different tasks" in alarm.message) == ("repeated_answer", True)
    assert alarm.rollouts[0] == "0/0/Done."
    assert repeated_answers(0, paid[:3], SETTINGS) == []
    assert repeated_answers(0, [one(0, n, 0, "Done.", gold=f"gold {n}") for n in range(9)], SETTINGS) == []
    assert repeated_answers(0, [one(0, n, 1, "shipped", gold="shipped") for n in range(9)], SETTINGS) == []


@pytest.mark.parametrize("written", ["true", "TRUE", "True"])  # by hand, by a spreadsheet, by Python
def test_a_canary_that_is_earned_is_an_alarm_every_time_and_counts_in_no_figure(written):
    canary = {"canary": written}
    earned = one(3, 1, 1, tags=canary)
    (alarm,) = canaries_earned(3, [earned, one(3, 2, 1)], SETTINGS)
    assert (alarm.kind, alarm.rollouts) == ("canary", [earned.id])
    assert canaries_earned(3, [one(3, 1, 0, tags=canary)], SETTINGS) == []
    assert step_figures(3, [earned, one(3, 2, 0)]).reward == 0
    watch = Watch(SETTINGS)
    assert [len(watch.observe(step, [earned])) for step in range(3)] == [1, 1, 1]


def test_a_component_that_no_verdict_has_is_named():
    (alarm,) = Watch(SETTINGS, follow=("jugde",)).observe(0, [one(0, 1, 1, judge=0.5)])
    assert str(alarm) == "missing_component at step 0: no verdict has the component 'jugde'; they have judge"


def test_a_watch_says_it_once_a_window_and_goes_on_alike_after_a_resume():
    steps = run(UP + [0.9] * 4, judge=[0.4] * 11)
    watch = Watch(SETTINGS, follow=("judge",))
    said = [[alarm.kind for alarm in watch.observe(step, rollouts)] for step, rollouts in enumerate(steps)]
    assert [step for step, found in enumerate(said) if found] == [5, 8]
    again = Watch(SETTINGS, follow=("judge",))
    again.recall(rollout for rollouts in steps[:7] for rollout in rollouts)
    assert [[a.kind for a in again.observe(step, steps[step])] for step in range(7, 11)] == said[7:]


def watched(steps, settings=SETTINGS):
    """The alarms of a run, as (step, kind)."""
    watch = Watch(settings)
    return [(step, alarm.kind) for step, rollouts in enumerate(steps) for alarm in watch.observe(step, rollouts)]


def learning(share_right, *, tasks=8, size=6):
    """A step in which so many of a task's rollouts have its expected answer, and the others each another one."""
    right = round(share_right * size)
    return [
        one(0, task, float(n < right), f"gold {task}" if n < right else f"guess {task} {n}")
        for task in range(tasks)
        for n in range(size)
    ]


def test_rollouts_of_a_task_that_come_to_agree_on_its_right_answer_are_no_alarm():
    assert watched([learning(share) for share in [0, 0, 0.2, 0.3, 0.5, 0.6, 0.8, 1, 1, 1, 1]]) == []


def test_a_reward_that_jumps_and_stays_is_an_alarm_and_a_steady_or_lucky_rise_is_not():
    assert watched(run([0.0, 0.1, 0.0, 0.0, 1.0, 1.0, 1.0])) == [(5, "jump")]
    assert watched(run([0.0, 0.1, 0.2, 0.5, 0.7, 0.9, 1.0])) == []
    assert watched(run([0.0, 0.1, 0.0, 0.8, 0.1, 0.1, 0.0])) == [], "one step with easy tasks"


def test_many_rollouts_that_a_limit_cut_off_are_an_alarm_that_names_the_limits():
    def step(cut):
        return [one(0, n, 0.0, stop="token_limit" if n < cut else "answered") for n in range(9)]

    (alarm,) = Watch(SETTINGS).observe(0, step(4))
    assert (alarm.kind, len(alarm.rollouts)) == ("cut_off", 4)
    assert "ended 44% of the rollouts; raise limits.max_turn_tokens or limits.max_tokens" in alarm.message
    assert watched([step(3)] * 4) == []


def test_tools_that_are_no_longer_called_are_an_alarm_also_after_a_resume():
    steps = [[one(step, n, 0.5, calls=n < 8 if step < 4 else 0) for n in range(10)] for step in range(8)]
    assert watched(steps) == [(6, "calls_given_up")]
    again = Watch(SETTINGS)
    again.recall(recalled(rollout for rollouts in steps[:6] for rollout in rollouts))
    assert [alarm.kind for alarm in again.observe(6, steps[6])] == ["calls_given_up"]
    never = [[one(step, n, 0.5, calls=0) for n in range(10)] for step in range(8)]
    assert watched(never) == []


def searched(step, *, read, families=range(5), reads=("search", "read"), found=True):
    """A step with two rollouts of a task of each family, of which a share calls the second tool also."""
    rollouts = []
    for place, family in enumerate(families):
        for n in range(2):
            number = 2 * place + n
            task = Task(id=f"t{step}/{number}", prompt="Who?", expected={"answer": f"{number}"}, family=f"f{family}")
            names = reads if number < read * 2 * len(families) else reads[:1]
            calls = [
                CallRecord(turn=0, call=ToolCall(id=name, name=name), result=ToolResult(text="x")) for name in names
            ]
            verdict = Verdict(score=float(found))
            rollouts.append(
                Rollout(id=f"{step}/{number}", task=task, step=step, answer=f"{number}", calls=calls, verdict=verdict)
            )
    return rollouts


def test_a_single_tool_that_is_no_longer_called_is_an_alarm_while_others_are_also_after_a_resume():
    steps = [searched(step, read=0.8 if step < 4 else 0) for step in range(8)]
    assert watched(steps) == [(6, "tool_given_up")]
    again = Watch(SETTINGS)
    again.recall(recalled(rollout for rollouts in steps[:6] for rollout in rollouts))
    [alarm] = again.observe(6, steps[6])
    assert "read was called in 100% of the rollouts at the beginning, 0% now" in alarm.message
    assert "search" not in alarm.message
    assert alarm.rollouts[0] == "6/0"


def test_a_tool_that_other_tasks_do_not_need_or_that_few_families_needed_is_not_given_up():
    others = [
        searched(step, read=1) if step < 4 else searched(step, read=0, families=range(5, 10)) for step in range(8)
    ]
    assert watched(others) == []  # a curriculum went on to tasks of other families
    few = [searched(step, read=1 if step < 4 else 0, families=range(3)) for step in range(8)]
    assert watched(few) == []
    some = [searched(step, read=1 if step < 4 else 0.2) for step in range(8)]
    assert watched(some) == []
    seldom = [searched(step, read=0.2 if step < 4 else 0) for step in range(8)]
    assert watched(seldom) == []


def test_tools_that_are_all_given_up_are_one_alarm():
    steps = [searched(step, read=1) if step < 4 else searched(step, read=0, reads=()) for step in range(8)]
    assert watched(steps) == [(6, "calls_given_up")]


def test_calls_that_become_many_and_earn_nothing_are_an_alarm_and_those_that_earn_are_none():
    more = [1, 1, 2, 4, 5, 6, 6]
    steps = run([0.5] * 7, calls=more)
    assert watched(steps) == [(5, "idle_calls")]
    again = Watch(SETTINGS)
    again.recall(recalled(rollout for rollouts in steps[:5] for rollout in rollouts))
    [alarm] = again.observe(5, steps[5])
    assert "made 1.3 calls at the beginning and makes 5.0 now" in alarm.message
    assert "thrift(calls=10)" in alarm.message
    assert watched(run(UP, calls=more)) == []  # what is earned by them
    assert watched(run([0.5] * 7, calls=[0, 0, 1, 2, 2, 2, 2])) == []  # a policy that finds its tools
    assert watched(run([0.5] * 7, calls=[2, 2, 2, 3, 3, 3, 3])) == []
