"""Policies answer in a rollout: the embedded engine, vLLM, an endpoint, or a script."""
