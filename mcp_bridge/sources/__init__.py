"""Sources of tools that users give: `mcp.json`, commands, URLs, server objects, functions."""
