"""`python -m sandboxes.helpdesk`: the helpdesk as an MCP server."""

from .server import main

if __name__ == "__main__":
    main()
