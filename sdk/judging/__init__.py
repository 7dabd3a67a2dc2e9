"""Models as judges: verdicts by rubric or gold answer, rankings of a group, and their agreement with people."""

from .agreement import RankingAgreement, labelled_examples, measure_agreement, measure_ranking
from .judge_model import Budget
from .kappa import Agreement
from .ranking import Ranked, Ranker, Ranking, ranked
from .row_labels import LabelledRows, label_rows
from .verdicts import Judge, ModelFaultJudge, ModelUserJudge, audit_call, audit_tasks, fault_judge, judge, user_judge

__all__ = [
    "Agreement",
    "Budget",
    "Judge",
    "LabelledRows",
    "ModelFaultJudge",
    "ModelUserJudge",
    "Ranked",
    "Ranker",
    "Ranking",
    "RankingAgreement",
    "audit_call",
    "audit_tasks",
    "fault_judge",
    "judge",
    "label_rows",
    "labelled_examples",
    "measure_agreement",
    "measure_ranking",
    "ranked",
    "user_judge",
]
