"""The options that the quickstart trains with."""

from __future__ import annotations

from math import gcd
from typing import Any

from ..rollouts.limits import Limits
from ..trainer.config import (
    BatchingOptions,
    CurriculumOptions,
    EvaluationOptions,
    GrpoOptions,
    TrainConfig,
    WarmStartOptions,
)

WARM_START_STEPS = 10
"""80 demonstrations, each once: enough for the form of a call and for most kinds of requests. What is left is for the
reinforcement to win."""
GRPO_STEPS = 26
"""About as many as fit into a quarter of an hour on two cores. Half as many at a rate half as large again ended below
the warm start on one seed of three."""
PROMPTS_PER_STEP = 8
"""With fewer, a step rests on one or two groups with a signal, and unlearns what the others could do."""
GROUP_SIZE = 6
"""With 8 a step takes a third more time, and wins a little more."""

TIERS = ("1", "2")
"""One call, or two of which the second needs what the first found: what the embedded model can reach."""
INTENTS = (
    *("order_status", "policy_days", "customer_city", "stock_count"),
    *("order_city", "order_stock", "refund_full"),
)
"""Seven of the 25 intents of these tiers, reads and an act: four take one call, three take two. In a quarter of an hour
on two cores 135 million parameters learn these; the whole tiers need more steps or a larger model. Beside refunds,
cancellations get worse while refunds get better, and the other way round."""
SELDOM_SHOWN = ("customer_city", "stock_count")
"""Intents of which every second task has no demonstration: after the warm start the model gets few of them right, and
finds the way by trying."""

KEPT_ASIDE = (4, 11, 16, 23)
"""Places among an intent's training tasks of those on which the checkpoint is chosen, and which are not trained on. Of
intents of which every second task has no demonstration, two of them have one."""

LIMITS = Limits(
    max_turns=5,  # two calls and an answer, with room for two mistakes
    max_turn_tokens=80,  # the longest right turn takes about half of it
    max_tokens=240,  # a rollout that rambles ends here, rather than holding up its step
)


def quickstart_tasks(*, kept_aside: bool = False) -> list[dict[str, Any]]:
    """The helpdesk's tasks of these tiers and intents, both sides of the split.

    `kept_aside`: some of those for training are tagged as those to choose the checkpoint on.
    """
    import sandboxes.helpdesk

    tasks = [task for task in sandboxes.helpdesk.tasks(tiers=TIERS) if task["tags"]["intent"] in INTENTS]
    for intent in SELDOM_SHOWN:
        for task in [task for task in tasks if task["tags"]["intent"] == intent][::2]:
            del task["demonstration"]
    for intent in INTENTS if kept_aside else ():
        trained = [task for task in tasks if (task["tags"]["intent"], task["tags"]["split"]) == (intent, "train")]
        for place in KEPT_ASIDE:
            trained[place]["tags"]["split"] = "validation"
    return tasks


def quickstart_verifier() -> Any:
    """The right change, the right calls and the right answer."""
    from ..verifiers import all_of, answer_match, calls_match, final_state

    return all_of(final_state(), calls_match(), answer_match())


def quickstart_options(
    *, steps: int | None = None, heldout: int | None = None, prompts: int | None = None, seed: int | None = None
) -> TrainConfig:
    """The quickstart's options.

    `steps`: at most so many steps of the warm start and of GRPO each; `heldout`: measure on at most so many
    held-out tasks; `prompts`: at most so many tasks in a step of either. All are for a shorter try, which ends with its
    last weights. `seed`: another order of tasks and other draws; 0 where None.
    """
    whole = steps is None and heldout is None and prompts is None
    prompts_per_step, max_steps = _at_most(PROMPTS_PER_STEP, prompts), _at_most(GRPO_STEPS, steps)
    return TrainConfig(
        warm_start=WarmStartOptions(
            max_steps=_at_most(WARM_START_STEPS, steps), batch_size=prompts_per_step, learning_rate=2e-4
        ),
        grpo=GrpoOptions(
            max_steps=max_steps,
            prompts_per_step=prompts_per_step,
            num_generations=GROUP_SIZE,
            # With three times the rate, or at the full rate from the first step, kinds of tasks that resemble others
            # are unlearned within four steps on most seeds: Adam's first steps are its largest.
            learning_rate=1e-5,
            save_steps=5,
        ),
        # Four groups at a time and moments on disk: a step takes 3 GB.
        batching=BatchingOptions(micro_batches=gcd(2, prompts_per_step), offload_optimizer=True),
        curriculum=CurriculumOptions(by="intent"),
        evaluation=EvaluationOptions(validation=len(KEPT_ASIDE) * len(INTENTS) if whole else 0, max_heldout=heldout),
        seed=0 if seed is None else seed,
        limits=LIMITS,
    )


def _at_most(wanted: int, bound: int | None) -> int:
    return wanted if bound is None else min(wanted, bound)
