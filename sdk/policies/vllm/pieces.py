"""Whether a server that runs already would end on a long prompt: vLLM on a CPU, prompts in pieces, seeds."""

from __future__ import annotations

import logging

import httpx

log = logging.getLogger(__name__)

_ANSWER_S = 60.0
"""vLLM looks at its machine, once, before it tells of itself."""


def warn_of_pieces(url: str, client: httpx.Client) -> None:
    """A warning in the log where the server says that it is on a CPU and computes long prompts in pieces.

    vLLM 0.32 ends there once a piece of a prompt was computed for a request with a seed, as all of ours have. It tells
    of itself in its development mode (`VLLM_SERVER_DEV_MODE=1`), and of one that does not nothing is known.
    """
    try:
        answer = client.get(f"{url}/server_info", params={"config_format": "json"}, timeout=_ANSWER_S)
        answer.raise_for_status()
        config = answer.json()["vllm_config"]
        device, in_pieces = config["device_config"]["device"], config["scheduler_config"]["enable_chunked_prefill"]
    except (httpx.HTTPError, ValueError, KeyError, TypeError):
        return
    if device == "cpu" and in_pieces is True:
        log.warning(
            "vLLM at %s is on a CPU and computes long prompts in pieces: it ends where such a prompt has a seed, as "
            "all of ours have. Start it again with --no-enable-chunked-prefill",
            url,
        )
