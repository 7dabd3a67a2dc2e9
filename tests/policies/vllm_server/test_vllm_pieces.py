"""A server that would end on a long prompt is told of before it gets one."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from token_server import TokenServer

from sdk.policies.vllm import VllmOptions, open_vllm

WARNED = "on a CPU with chunked prefill"


class Telling(TokenServer):
    """Says of itself what vLLM 0.32 does in its development mode."""

    told: Any = None

    def read(self, path: str) -> Any:
        if path == "/server_info?config_format=json" and self.told is not None:
            return 200, self.told
        return super().read(path)


def server_info(device: str, in_pieces: bool) -> dict[str, Any]:
    scheduler = {"max_num_batched_tokens": 2048, "enable_chunked_prefill": in_pieces}
    return {"vllm_config": {"device_config": {"device": device}, "scheduler_config": scheduler}, "vllm_env": {}}


@pytest.mark.parametrize(
    ("told", "warned"),
    [
        (server_info("cpu", True), True),
        (server_info("cpu", False), False),
        (server_info("cuda", True), False),
        ({"vllm_config": "VllmConfig(...)"}, False),
        (json.dumps(server_info("cpu", True))[:-9], False),
        (None, False),
    ],
)
async def test_a_server_on_a_cpu_that_computes_prompts_in_pieces_is_warned_of(
    told: Any, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with Telling() as server, caplog.at_level(logging.WARNING):
        server.told = told
        async with open_vllm("unused", VllmOptions(urls=(server.url,))):
            pass
    assert (WARNED in caplog.text) is warned
