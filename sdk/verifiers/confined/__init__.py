"""A program that nobody trusts, in a process that can do little; `docs/verifiers.md` says how far that goes."""

from .running import ConfinedLimits, Confinement, Outcome, call_confined, confinement, run_confined

__all__ = ["ConfinedLimits", "Confinement", "Outcome", "call_confined", "confinement", "run_confined"]
