"""Code that runs inside vLLM's own processes, in their environment."""

from pathlib import Path

IN_SERVER = Path(__file__).parent
"""What goes on the `PYTHONPATH` of a server that loads one of these files."""
