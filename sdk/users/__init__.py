"""Simulated users: who takes the user's turns of a task, and which of their errors leave a rollout unscored."""
