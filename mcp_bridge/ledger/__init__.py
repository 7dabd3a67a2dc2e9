"""Each call happens once: what was called and how it ended, and when a call may be sent again."""
