"""Models that judge: verdicts by rubric or gold answer, rankings of a group, and how far people agree with them."""

from .agreement import Agreement, labelled_examples, measure_agreement
from .audit_examples import audit_call, audit_tasks
from .group_verdicts import Ranked, ranked
from .judge_model import Budget
from .model_faults import ModelFaultJudge, fault_judge
from .ranking import Ranker, Ranking
from .ranking_agreement import RankingAgreement, measure_ranking
from .verdicts import Judge, judge

__all__ = [
    "Agreement",
    "Budget",
    "Judge",
    "ModelFaultJudge",
    "Ranked",
    "Ranker",
    "Ranking",
    "RankingAgreement",
    "audit_call",
    "audit_tasks",
    "fault_judge",
    "judge",
    "labelled_examples",
    "measure_agreement",
    "measure_ranking",
    "ranked",
]
