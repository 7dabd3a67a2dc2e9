"""Sessions with MCP servers: how one is opened, owned, called and ended, and which world gets which."""
