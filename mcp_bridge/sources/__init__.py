"""What users give, and what becomes of it: `mcp.json`, commands, URLs, server objects, functions."""
