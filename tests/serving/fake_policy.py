"""A policy that says what a function of the prompt's text and the seed tells it to, byte by byte."""

import threading
from contextlib import contextmanager

import anyio
import llguidance

from sdk.errors import PolicyFailure
from sdk.policies.grammar import GrammarTokenizer, ReplyGrammars
from sdk.policies.models import DEFAULT_SAMPLING
from sdk.policies.protocol import Completion
from sdk.policies.scripted import END_TOKEN, ByteRenderer
from sdk.serving import Server
from sdk.serving.backend import Backend
from sdk.serving.generation import Generator
from sdk.serving.openai_api import Endpoint
from sdk.serving.replies import KEEP_ALIVE_S
from sdk.serving.requests import MOST_WAITING, RequestQueue
from sdk.serving.server import bind

RENDERER = ByteRenderer()


class _Bytes:
    """The renderer's tokens as llguidance has them described."""

    def __init__(self):
        self.eos_token_id, self.bos_token_id = END_TOKEN, None
        self.tokens = [*(bytes([byte]) for byte in range(256)), *(f"<{name}>".encode() for name in range(6))]
        self.special_token_ids = list(range(256, 262))

    def __call__(self, text):
        return list(text)


TOKENIZER = GrammarTokenizer(llguidance.LLTokenizer(llguidance.TokenizerWrapper(_Bytes())), stop_token_ids=[END_TOKEN])
GRAMMARS = ReplyGrammars(RENDERER, TOKENIZER)


def endpoint_over(
    policy,
    renderer=RENDERER,
    api_key=None,
    *,
    grammars=None,
    defaults=DEFAULT_SAMPLING,
    tool_prompt="full",
    fingerprint=None,
    max_waiting=MOST_WAITING,
    keep_alive_s=KEEP_ALIVE_S,
):
    """The application over a policy, as the model "desk"."""
    generator = Generator(policy, renderer, grammars, RequestQueue(max_waiting), defaults=defaults)
    return Endpoint(Backend(generator, defaults, tool_prompt, fingerprint), "desk", api_key, keep_alive_s)


@contextmanager
def running(policy, api_key=None, renderer=RENDERER, **options):
    """The endpoint over a policy, as the model "desk"."""
    drain = {"drain_seconds": options.pop("drain_seconds")} if "drain_seconds" in options else {}
    app = endpoint_over(policy, renderer, api_key, **{"grammars": GRAMMARS, **options})
    with Server(app, bind("127.0.0.1", 0, api_key), model_name="desk", queue=app.queue, **drain) as server:
        yield server


class FakePolicy:
    context_tokens = 4096
    vocabulary = 262

    def __init__(self, say):
        self.say = say
        self.samplings = []
        self.prompts = []

    async def sample(self, prompt_ids, *, sampling, seed, stop_token_ids=(), on_token=None, grammar=None):
        await anyio.lowlevel.checkpoint()
        self.samplings.append(sampling)
        self.prompts.append(RENDERER.decode(prompt_ids))
        text = self.say(self.prompts[-1], seed)
        ids = [*text.encode(), END_TOKEN]
        cut = len(ids) > sampling.max_tokens
        ids = ids[: sampling.max_tokens]
        if grammar is not None:
            derivation = grammar.begin()
            for place, token in enumerate(ids):
                assert derivation.allowed()[token], (
                    f"the grammar does not allow {text[place:]!r} after {text[:place]!r}"
                )
                assert derivation.take(token, ends=token == END_TOKEN) is None
        if on_token is not None:
            for place, token in enumerate(ids):
                if on_token(token):
                    return Completion(ids[: place + 1], [0.0] * (place + 1), "stop")
                await anyio.lowlevel.checkpoint()
        return Completion(ids, [0.0] * len(ids), "length" if cut else "stop")


class BrokenPolicy(FakePolicy):
    async def sample(self, prompt_ids, *, sampling, seed, stop_token_ids=(), on_token=None, grammar=None):
        raise PolicyFailure("out of memory")


class HangingPolicy(FakePolicy):
    """Never answers; says when it was asked, how often, and when it was cancelled."""

    def __init__(self):
        super().__init__(None)
        self.asked = threading.Event()
        self.cancelled = threading.Event()
        self.times_asked = threading.Semaphore(0)

    async def sample(self, prompt_ids, *, sampling, seed, stop_token_ids=(), on_token=None, grammar=None):
        self.asked.set()
        self.times_asked.release()
        try:
            await anyio.sleep_forever()
        finally:
            self.cancelled.set()
