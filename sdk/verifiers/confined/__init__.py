"""A program that nobody trusts, in a process that can do little; `docs/verifiers.md` says how far that goes."""

from .confined_process import ConfinedLimits, Confinement, Outcome, call_confined, confinement, run_confined

__all__ = ["ConfinedLimits", "Confinement", "Outcome", "call_confined", "confinement", "run_confined"]
