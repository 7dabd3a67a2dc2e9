"""The guard: which tools a policy may see and call, their names, and the rate of calls."""
