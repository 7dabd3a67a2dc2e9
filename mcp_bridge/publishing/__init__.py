"""Tools of any kind served to other MCP clients."""
