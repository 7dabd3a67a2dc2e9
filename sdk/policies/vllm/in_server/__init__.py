"""What runs inside vLLM's own processes, in the environment that those have."""
