"""Several tries at each task: solved by any of k (pass@k), and by all of k (pass^k)."""

from __future__ import annotations

import math
from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict

from .clusters import clustered_mean_interval
from .statistics import Interval


class PassRate(BaseModel):
    """A rate over the `tasks` that were scored at least k times; the others are counted in `left_out`."""

    model_config = ConfigDict(frozen=True)

    k: int
    tasks: int
    left_out: int
    interval: Interval


def pass_at_k(n: int, c: int, k: int) -> float:
    """The chance that at least one of `k` tries succeeds, from `c` successes in `n` tries: 1 - C(n-c, k) / C(n, k).

    Unbiased: it is the share of the choices of k of the n tries that hold a success.
    Source: Chen et al. (2021), "Evaluating Large Language Models Trained on Code", arXiv 2107.03374, equation 1.
    Raises `ValueError` unless 0 <= c <= n and 1 <= k <= n.
    """
    _check(n, c, k)
    return 1 - math.comb(n - c, k) / math.comb(n, k)


def pass_hat_k(n: int, c: int, k: int) -> float:
    """The chance that all of `k` tries succeed (pass^k), from `c` successes in `n` tries: C(c, k) / C(n, k).

    Source: Yao et al. (2024), "tau-bench", arXiv 2406.12045, section 3. Raises `ValueError` as `pass_at_k` does.
    """
    _check(n, c, k)
    return math.comb(c, k) / math.comb(n, k)


def _check(n: int, c: int, k: int) -> None:
    if not 0 <= c <= n or not 1 <= k <= n:
        raise ValueError(f"n={n}, c={c}, k={k}; it takes 0 <= c <= n tries and 1 <= k <= n")


def pass_rates(
    successes: Mapping[str, tuple[int, int]], families: Mapping[str, str]
) -> tuple[list[PassRate], list[PassRate]]:
    """pass@k and pass^k for k = 1, 2, 4, ... and the largest number of tries; empty where no task was tried twice.

    `successes`: task id -> (successes, scored tries). `families`: task id -> family. Means over tasks with intervals
    that count families, see `clustered_mean_interval`.
    """
    most = max((n for _, n in successes.values()), default=0)
    if most < 2:
        return [], []
    ks = sorted({*(2**power for power in range(most.bit_length())), most})
    at: list[PassRate] = []
    hat: list[PassRate] = []
    for k in ks:
        enough = [task for task, (_, n) in successes.items() if n >= k]
        clusters = [families[task] for task in enough]
        for rates, formula in ((at, pass_at_k), (hat, pass_hat_k)):
            values = [formula(successes[task][1], successes[task][0], k) for task in enough]
            interval = clustered_mean_interval(values, clusters, (0.0, 1.0))
            rates.append(PassRate(k=k, tasks=len(enough), left_out=len(successes) - len(enough), interval=interval))
    return at, hat
