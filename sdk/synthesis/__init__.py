"""Tasks made from tools: walks through simulated worlds, whose calls are the gold solution."""
