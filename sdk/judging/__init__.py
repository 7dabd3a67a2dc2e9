"""Models as judges: verdicts by rubric or gold answer, rankings of a group, and their agreement with people."""

from .agreement import Agreement, RankingAgreement, labelled_examples, measure_agreement, measure_ranking
from .audit_examples import audit_call, audit_tasks
from .judge_model import Budget
from .ranking import Ranked, Ranker, Ranking, ranked
from .verdicts import Judge, ModelFaultJudge, fault_judge, judge

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
