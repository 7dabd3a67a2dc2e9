"""What earns a reward: functions of the rollout, ready-made checks of evidence, and ways to combine them."""

from .answers import answer_match
from .calls import required_calls
from .combining import all_of, any_of, gated, watched, weighted
from .economy import thrift
from .protocol import Verifier, VerifierLike
from .running import check_verifier, run_verifier, verifier_identity, verifier_name
from .states import final_state
from .tiers import extra_credit, lexicographic

__all__ = [
    "Verifier",
    "VerifierLike",
    "all_of",
    "answer_match",
    "any_of",
    "check_verifier",
    "extra_credit",
    "final_state",
    "gated",
    "lexicographic",
    "required_calls",
    "run_verifier",
    "thrift",
    "verifier_identity",
    "verifier_name",
    "watched",
    "weighted",
]
