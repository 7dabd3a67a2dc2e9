"""Verifiers give rewards: functions of the rollout, ready-made checks of its evidence, and ways to combine them."""

from .answer_forms import answer_exact, answer_json, answer_pattern, answer_set
from .answers import answer_match, answer_number
from .calls import calls_match, required_calls
from .code_tests import code_passes
from .combining import all_of, any_of, extra_credit, gated, lexicographic, thrift, watched, weighted
from .expectations import as_expected
from .grounding import grounded, minicheck
from .states import final_state, state_where
from .verifier import Verifier, VerifierLike, check_verifier, run_verifier, verifier_identity, verifier_name

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
    "as_expected",
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
