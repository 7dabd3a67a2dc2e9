"""The project that `toolbake init` writes where it is given no tools: a small server, and requests to it."""
