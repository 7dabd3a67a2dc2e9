"""The helpdesk as an MCP server over stdio: `python examples/helpdesk/server.py` (`--help` for HTTP)."""

from sandboxes.helpdesk.__main__ import main

if __name__ == "__main__":
    main()
