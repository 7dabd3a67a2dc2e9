"""What carries the bytes of new weights to a server: vLLM's own transfer, by way of one of its backends."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import httpx

from .control import call, exchanged, new_name
from .options import VllmOptions
from .shared_memory import SharedWeights

PLUGIN_FOLDER = Path(__file__).parent / "in_server"
"""On the `PYTHONPATH` of servers that take weights from shared memory."""


class DataPlane(Protocol):
    """One way for the bytes. Its calls block; `take` is never called while `send` is under way."""

    server_arguments: tuple[str, ...]
    """With which a server must be started."""
    server_environment: Mapping[str, str]

    def take(self, state: Mapping[str, Any], mark: str) -> None:
        """From now on these weights are sent, also after `state` has been changed. Until `let_go`, `state` is as it
        is."""
        ...

    def let_go(self) -> None:
        """`state` may be changed."""
        ...

    def connect(self, url: str, client: httpx.Client, mark: str) -> None:
        """Get ready to send the weights with this mark to a server, which may be another one than before at this URL.
        Raises `PolicyFailure` and `httpx.HTTPError`."""
        ...

    def send(self, url: str, client: httpx.Client, mark: str) -> None:
        """All weights to a server that is at rest. Raises `PolicyFailure` and `httpx.HTTPError`; the server has a part
        of them then."""
        ...

    def close(self) -> None:
        """Nothing is sent any more."""
        ...


@dataclass(frozen=True, eq=False)
class Transfer:
    """All weights, sent through vLLM's own transfer."""

    plane: DataPlane
    state: Mapping[str, Any] = field(repr=False)
    version: int
    mark: str = field(default_factory=new_name)
    """What the server says that it has, until it is started again."""

    @contextmanager
    def at_hand(self) -> Iterator[None]:
        """See `Weights.at_hand`."""
        self.plane.take(self.state, self.mark)
        try:
            yield
        finally:
            self.plane.let_go()

    def put(self, url: str, client: httpx.Client, base: str) -> str:
        """See `Weights.put`."""
        self.plane.connect(url, client, self.mark)  # what fails here has changed nothing
        with exchanged(url, client, mark=self.mark, version=self.version):
            self.plane.send(url, client, self.mark)
        return base

    def remove(self) -> None:
        """The next version takes the place of this one."""


class SharedMemoryPlane:
    """Memory of this process that servers on the same machine read: for CPUs, and for GPUs that are not named here.

    The servers need no vLLM in the trainer's environment, but the module in `in_server` in theirs.
    """

    def __init__(self) -> None:
        """Raises `ConfigError` where the system has no such memory."""
        self.server_arguments: tuple[str, ...] = (
            *("--worker-extension-cls", "toolbake_weights.Extension"),
            *("--weight-transfer-config", json.dumps({"backend": "toolbake"})),
        )
        self.server_environment: Mapping[str, str] = {"PYTHONPATH": str(PLUGIN_FOLDER)}
        self._weights = SharedWeights()

    def take(self, state: Mapping[str, Any], mark: str) -> None:
        """Copies `state`."""
        self._weights.write(state, mark)

    def let_go(self) -> None:
        """There is nothing of `state`."""

    def connect(self, url: str, client: httpx.Client, mark: str) -> None:
        """The server looks whether it can read the memory."""
        self._weights.require(mark)
        where = {"path": self._weights.path, "mark": self._weights.mark}
        call(client, f"{url}/init_weight_transfer_engine", {"init_info": where})

    def send(self, url: str, client: httpx.Client, mark: str) -> None:
        """The server takes what has this mark, or nothing."""
        layout = self._weights.layout
        update = {
            "path": self._weights.path,
            "mark": mark,
            "names": layout.names,
            "dtype_names": layout.dtype_names,
            "shapes": layout.shapes,
            "offsets": layout.offsets,
        }
        call(client, f"{url}/start_weight_update")
        call(client, f"{url}/update_weights", {"update_info": update})
        call(client, f"{url}/finish_weight_update")

    def close(self) -> None:
        """Gives the memory back."""
        self._weights.close()


def with_plugin(plane: DataPlane | None, environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of servers that we start: what the options name, and what the plane needs before it."""
    needed = dict(plane.server_environment) if plane is not None else {}
    paths = [value for one in (needed, environment or {}, os.environ) if (value := one.get("PYTHONPATH"))]
    together = {"PYTHONPATH": os.pathsep.join(paths[:2])} if "PYTHONPATH" in needed else {}
    return {**needed, **environment, **together}


def open_plane(options: VllmOptions) -> DataPlane:
    """What the options ask for. Raises `ConfigError` where this process cannot send weights that way. Blocks."""
    if options.transfer_backend == "shared_memory":
        return SharedMemoryPlane()
    from .gpu_plane import GpuPlane, check_trainer

    check_trainer(options.transfer_backend)
    return GpuPlane(options.transfer_backend, device=f"cuda:{os.environ.get('LOCAL_RANK', '0')}")
