"""Rollouts without a model: a scripted policy that takes its time and can break, slow tools, and a clock that jumps.

Everything between the two is the real engine. What takes an hour of waiting takes seconds of computing, and comes out
the same each time.
"""

from .clock import run_virtual
from .policy import EngineDown, Incident, SimulatedPolicy, simulated_agent
from .tools import SlowTools

__all__ = ["EngineDown", "Incident", "SimulatedPolicy", "SlowTools", "run_virtual", "simulated_agent"]
