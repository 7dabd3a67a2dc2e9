"""The page over HTTP: for this machine, or for others with a key."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

from ..serving.server import Server, bind
from .index import RunIndex, find_runs
from .viewer_app import build_app

_LOOK_EVERY_S = 1.0


def view(
    paths: Sequence[Path],
    host: str = "127.0.0.1",
    port: int = 8300,
    api_key: str | None = None,
    *,
    look_every_s: float = _LOOK_EVERY_S,
) -> Server:
    """Serve the page of one or several runs, also while they are being written, in a thread of its own.

    `paths`: run folders, or folders of runs. `host`: anything but this machine needs an `api_key`, for which the page
    asks. `port`: 0 takes any free one; see `Server.url`. `look_every_s`: how often new rollouts are looked for, in
    seconds. The rollouts are read in the background: the page shows those that have been read so far.

    Raises `RunFolderError` where there is no run, and `ConfigError` for an address that cannot be used.
    """
    index = RunIndex(find_runs(paths))
    listener = bind(host, port, api_key)
    reader = threading.Thread(target=index.follow, args=(look_every_s,), name="toolbake-view", daemon=True)

    def stop() -> None:
        index.stop()
        reader.join()

    reader.start()
    name = ", ".join(run.path.name for run in index.runs)
    return Server(build_app(index, api_key), listener, model_name=name, on_close=stop)
