"""The helpdesk as an MCP server over stdio: `python examples/helpdesk/server.py` (`--help` for HTTP)."""

from sandboxes.helpdesk.server import main

if __name__ == "__main__":
    main()
