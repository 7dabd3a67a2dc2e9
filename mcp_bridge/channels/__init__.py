"""Light channels to MCP servers: what the SDK's client does for a call, in fewer steps, with the same results.

`LightClient` is the SDK's `Client`; only the way of a call through it is shorter. Where the short way could give
something else than the long one, the long one is taken: `tests/bridge/test_bridge_channels.py` holds both to be equal.
The short ways lean on the inside of the SDK, so they are taken with the release of it that they were written for and
tested with; with another the SDK's own client is used, and a log line says so.
"""
