"""Any Python class as a sandbox: its public methods are the tools, and every rollout gets a fork of the object."""

from .object_twin import ObjectTwin

__all__ = ["ObjectTwin"]
