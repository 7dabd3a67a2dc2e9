"""What earns a reward: functions of the rollout, ready-made checks of evidence, and ways to combine them."""

from .answer_forms import answer_exact, answer_json, answer_pattern, answer_set
from .answer_numbers import answer_number
from .answers import answer_match
from .call_patterns import calls_match
from .calls import required_calls
from .code_tests import code_passes
from .combining import all_of, any_of, gated, watched, weighted
from .economy import thrift
from .grounding import grounded, minicheck
from .protocol import Verifier, VerifierLike
from .running import check_verifier, run_verifier, verifier_identity, verifier_name
from .state_predicates import state_where
from .states import final_state
from .tiers import extra_credit, lexicographic

__all__ = [
    "Verifier",
    "VerifierLike",
    "all_of",
    "answer_exact",
    "answer_json",
    "answer_match",
    "answer_number",
    "answer_pattern",
    "answer_set",
    "any_of",
    "calls_match",
    "check_verifier",
    "code_passes",
    "extra_credit",
    "final_state",
    "gated",
    "grounded",
    "lexicographic",
    "minicheck",
    "required_calls",
    "run_verifier",
    "state_where",
    "thrift",
    "verifier_identity",
    "verifier_name",
    "watched",
    "weighted",
]
