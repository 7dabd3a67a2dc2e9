"""A policy that says what a function of the prompt's text and the seed tells it to, byte by byte."""

import anyio

from sdk.errors import PolicyFailure
from sdk.policies.protocol import Completion
from sdk.policies.scripted import END_TOKEN, ByteRenderer

RENDERER = ByteRenderer()


class FakePolicy:
    context_tokens = 4096

    def __init__(self, say):
        self.say = say
        self.samplings = []
        self.prompts = []

    async def sample(self, prompt_ids, *, sampling, seed, stop_token_ids=()):
        await anyio.lowlevel.checkpoint()
        self.samplings.append(sampling)
        self.prompts.append(RENDERER.decode(prompt_ids))
        text = self.say(self.prompts[-1], seed)
        ids = [*text.encode(), END_TOKEN]
        cut = len(ids) > sampling.max_tokens
        ids = ids[: sampling.max_tokens]
        return Completion(ids, [0.0] * len(ids), "length" if cut else "stop")


class BrokenPolicy(FakePolicy):
    async def sample(self, prompt_ids, *, sampling, seed, stop_token_ids=()):
        raise PolicyFailure("out of memory")


class HangingPolicy(FakePolicy):
    """Never answers; says when it was asked and when it was cancelled."""

    def __init__(self):
        import threading

        super().__init__(None)
        self.asked = threading.Event()
        self.cancelled = threading.Event()

    async def sample(self, prompt_ids, *, sampling, seed, stop_token_ids=()):
        self.asked.set()
        try:
            await anyio.sleep_forever()
        finally:
            self.cancelled.set()
