"""A local server that speaks as vLLM does, and breaks on request: for faults that the real one has no switch for.

Its tokens are a function of the weights, the seed and the place, so that a test can tell what was sampled from what.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

FIRST = 100


def token(weights: str, seed: int, place: int) -> int:
    return FIRST + sum(weights.encode()) * 31 % 997 + (seed * 7 + place * 13) % 89


class TokenServer:
    """Start it with `with`. The fields may be changed while it runs."""

    def __init__(self, *, context: int = 512, port: int = 0) -> None:
        self.context = context
        self.name = "base"
        """Of the model."""
        self.weights = "as started"
        self.mark = "default"
        self.adapters: dict[str, str] = {}
        self.bodies: list[dict[str, Any]] = []
        self.calls: Counter[str] = Counter()
        self.statuses: list[int] = []
        """What the next completions answer with instead of 200."""
        self.hold = threading.Event()
        """Set: completions answer at once. Clear: they wait after their first token, until an abort."""
        self.hold.set()
        self.healthy = True
        self.between_steps = threading.Event()
        """Clear: the engine computes, and says nothing of its weights meanwhile."""
        self.between_steps.set()
        self.asked_for_weights = threading.Semaphore(0)
        """Released by each question about its weights."""
        self.looked_at = threading.Semaphore(0)
        """Released by each question about its health."""
        self.takes_memory = True
        """Whether it can read the memory of this process."""
        self.failing: dict[str, int] = {}
        """Paths of calls that answer with a status instead, once each; 0 cuts the connection."""
        self.logprob = 0.0
        self.cache_resets = True
        self.keeps: list[str] = []
        """Weights that it says come from nowhere, where it is asked to compare."""
        self.asleep = False
        self.metrics: str | None = None
        """What `/metrics` says; it is unknown where None."""
        self.late = 0
        """So many completions reach it only when it is paused, and are turned away then, as by vLLM 0.33."""
        self.waiting = threading.Semaphore(0)
        """Released by each completion that begins to wait."""
        self.loaded = threading.Semaphore(0)
        """Released each time it was given full weights."""
        self._changed = threading.Condition()
        self._aborts = 0
        self.paused = False
        self._coming: str | None = None
        """Weights that were transferred, and not finished yet."""
        self._server = ThreadingHTTPServer(("127.0.0.1", port), _handler(self))
        self._server.daemon_threads = True
        self.connections: set[socket.socket] = set()
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def stop(self) -> None:
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()
        for connection in list(self.connections):  # those that are kept alive die with a real server, too
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self.release()

    def release(self) -> None:
        self.hold.set()
        self.between_steps.set()
        with self._changed:
            self._changed.notify_all()

    def answer(self, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        self.calls[path] += 1
        if path == "/v1/completions":
            return self._complete(body)
        if path in self.failing:
            return self.failing.pop(path), {"error": {"message": "injected fault"}}
        if path == "/collective_rpc":
            self.weights = body["kwargs"]["weights_path"]
            self.loaded.release()
        elif path == "/update_weight_version":
            self.mark = body["new_version"]
        elif path == "/reset_prefix_cache":
            return 200, {"success": self.cache_resets}
        elif path == "/v1/load_lora_adapter":
            self.adapters[body["lora_name"]] = body["lora_path"]
        elif path == "/v1/unload_lora_adapter":
            del self.adapters[body["lora_name"]]
        elif path.startswith("/pause"):
            with self._changed:
                self.paused, self._aborts = True, self._aborts + path.endswith("abort")
                self._changed.notify_all()
        elif path == "/weight_checker":
            return 200, {"checksums": {}, "match": not self.keeps, "mismatches": self.keeps}
        elif path in ("/sleep?level=1", "/wake_up"):
            self.asleep = path != "/wake_up"
        elif path == "/resume":
            with self._changed:
                self.paused = False
                self._changed.notify_all()
        else:
            return self._transfer(path, body)
        return 200, {}

    def _transfer(self, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """As vLLM's own weight transfer with the backend for shared memory."""
        if path == "/init_weight_transfer_engine":
            if not self.takes_memory:
                return 500, {"error": {"message": "the trainer's memory cannot be read"}}
        elif path == "/start_weight_update":
            self.weights = "taken apart"
        elif path == "/update_weights":
            update = body["update_info"]
            with open(update["path"], "rb") as memory:
                self._coming = memory.read(64).rstrip(b"\0").decode()
            if self._coming != update["mark"]:
                return 500, {"error": {"message": f"the memory holds {self._coming}"}}
        elif path == "/finish_weight_update" and self._coming is not None:
            self.weights, self._coming = self._coming, None
            self.loaded.release()
        else:
            return 404, {"error": {"message": "not found"}}
        return 200, {}

    def read(self, path: str) -> tuple[int, dict[str, Any] | str]:
        if path == "/health":
            self.looked_at.release()
            return (200 if self.healthy else 503), {}
        if path == "/metrics" and self.metrics is not None:
            return 200, self.metrics
        if path == "/weight_info":
            self.asked_for_weights.release()
            self.between_steps.wait()
            return 200, {"weight_version": self.mark}
        if path == "/get_world_size":
            return 200, {"world_size": 1}
        if path == "/v1/models":
            return 200, {"data": [{"id": self.name, "max_model_len": self.context}]}
        return 404, {}

    def _complete(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        asked_at_the_start = body["top_p"] == 1e-6
        assert not self.asleep
        if not asked_at_the_start:
            self.bodies.append(body)
            if self.statuses:
                return self.statuses.pop(0), {"error": {"message": "injected fault"}}
        if body["model"] != self.name and body["model"] not in self.adapters:
            return 404, {"error": {"message": f"The model `{body['model']}` does not exist."}}
        with self._changed:
            if self.late and not asked_at_the_start:
                self.late -= 1
                self.waiting.release()
                self._changed.wait_for(lambda: self.paused)
                return 503, {"error": {"message": "Generation is paused. Please retry after it resumes.", "code": 503}}
            self._changed.wait_for(lambda: not self.paused)
            seen, weights = self._aborts, self.adapters.get(body["model"], self.weights)
        wanted, ended = int(body["max_tokens"]), "length"
        if not self.hold.is_set() and not asked_at_the_start:
            self.waiting.release()
            with self._changed:
                self._changed.wait_for(lambda: self.hold.is_set() or self._aborts > seen)
                if self._aborts > seen:
                    wanted, ended = 1, "abort"
        tokens = [token(weights, body["seed"], place) for place in range(wanted)]
        stops = [place for place, one in enumerate(tokens) if one in body["stop_token_ids"]]
        if stops:
            tokens, ended = tokens[: stops[0] + 1], "stop"
        choice = {
            "finish_reason": ended,
            "token_ids": tokens,
            "prompt_token_ids": body["prompt"],
            "logprobs": {"token_logprobs": [self.logprob] * len(tokens)},
        }
        return 200, {"choices": [choice]}


def _handler(server: TokenServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def setup(self) -> None:
            super().setup()
            server.connections.add(self.connection)

        def finish(self) -> None:
            server.connections.discard(self.connection)
            with contextlib.suppress(OSError):
                super().finish()

        def handle(self) -> None:
            with contextlib.suppress(OSError):
                super().handle()

        def do_GET(self) -> None:
            self._send(*server.read(self.path))

        def do_POST(self) -> None:
            length = int(self.headers.get("content-length", 0))
            body = json.loads(self.rfile.read(length) or b"{}")
            self._send(*server.answer(self.path, body))

        def _send(self, status: int, body: dict[str, Any] | str) -> None:
            if not status:
                self.connection.shutdown(socket.SHUT_RDWR)
                return
            data = (body if isinstance(body, str) else json.dumps(body)).encode()
            try:
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)
            except OSError:
                return  # the client has gone

        def log_message(self, *args: object) -> None:
            pass

    return Handler
