"""What happens when servers refuse, break, hang or come back: noticed, shown, sent again or given up, never mixed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch
from llguidance import LLTokenizer
from token_policies import EIGHT, opened, state, tokens_of
from token_server import TokenServer

from sdk.errors import ConfigError, PolicyFailure
from sdk.policies.grammar import GrammarTokenizer
from sdk.policies.protocol import Sampling
from sdk.policies.vllm import VllmOptions, VllmPolicy, open_vllm
from sdk.trainer import sampler


async def test_tokens_log_probabilities_and_the_version_come_back(server: TokenServer) -> None:
    async with opened(server) as policy:
        completion = await policy.sample([5, 6], sampling=EIGHT, seed=3)
    assert completion.token_ids == tokens_of("as started", 3, 8)
    assert (completion.logprobs, completion.stop_reason, completion.version) == ([0.0] * 8, "length", 0)


async def test_a_request_names_everything_that_changes_the_distribution(server: TokenServer) -> None:
    async with opened(server) as policy:
        await policy.sample([5, 6], sampling=Sampling(temperature=0.5, top_p=0.9, max_tokens=3), seed=9)
    (body,) = server.bodies
    assert body["prompt"] == [5, 6]
    assert (body["temperature"], body["top_p"], body["max_tokens"], body["seed"]) == (0.5, 0.9, 3, 9)
    neutral = {"top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
    assert {name: body[name] for name in neutral} == neutral


async def test_a_stop_token_ends_the_answer_and_is_its_last_token(server: TokenServer) -> None:
    expected = tokens_of("as started", 3, 8)
    async with opened(server) as policy:
        completion = await policy.sample([5], sampling=EIGHT, seed=3, stop_token_ids=[expected[2]])
    assert (completion.token_ids, completion.stop_reason) == (expected[:3], "stop")


async def test_the_context_bounds_the_answer_and_refuses_a_prompt_that_fills_it(server: TokenServer) -> None:
    async with opened(server) as policy:
        assert policy.context_tokens == 512
        completion = await policy.sample([5] * 509, sampling=EIGHT, seed=0)
        assert len(completion.token_ids) == 3
        for prompt in ([], [5] * 512):
            with pytest.raises(ValueError, match=r"prompt (is empty|has 512 tokens)"):
                await policy.sample(prompt, sampling=EIGHT, seed=0)


@pytest.mark.parametrize("status", [500, 502, 503, 504])
async def test_a_request_that_a_server_lost_is_sent_again_and_counted(server: TokenServer, status: int) -> None:
    server.statuses = [status]
    async with opened(server) as policy:
        completion = await policy.sample([5], sampling=EIGHT, seed=3)
        assert policy.counts()["retries"] == 1
    assert completion.token_ids == tokens_of("as started", 3, 8)
    assert server.bodies[0] == server.bodies[1]


async def test_a_server_that_goes_on_failing_is_a_policy_failure(server: TokenServer) -> None:
    server.statuses = [503] * 10
    async with opened(server, max_retries=1) as policy:
        with pytest.raises(PolicyFailure, match=r"failed 2 times.*503.*injected fault"):
            await policy.sample([5], sampling=EIGHT, seed=3)
    assert len(server.bodies) == 2


async def test_a_request_that_is_refused_is_not_sent_again(server: TokenServer) -> None:
    server.statuses = [400]
    async with opened(server) as policy:
        with pytest.raises(PolicyFailure, match="HTTP 400: injected fault"):
            await policy.sample([5], sampling=EIGHT, seed=3)
    assert len(server.bodies) == 1


async def test_a_server_that_gives_no_answer_in_time_is_a_policy_failure(server: TokenServer) -> None:
    server.hold.clear()
    async with opened(server, request_timeout_s=0.2) as policy:
        with pytest.raises(PolicyFailure, match=r"no answer within 0.2 s \(request_timeout_s\)"):
            await policy.sample([5], sampling=EIGHT, seed=3)
        server.release()


async def test_a_server_that_died_is_noticed_within_seconds_by_those_who_wait(server: TokenServer) -> None:
    server.hold.clear()
    async with opened(server, max_retries=0) as policy:
        flying = asyncio.create_task(policy.sample([5], sampling=EIGHT, seed=3))
        await asyncio.to_thread(server.waiting.acquire)
        server.healthy = False  # the process answers, but its engine is dead: the request would wait for ever
        with pytest.raises(PolicyFailure, match="answers HTTP 503 when asked for its health"):
            await flying
        server.release()


async def test_nothing_answers_and_nothing_comes_back(server: TokenServer) -> None:
    async with opened(server, recover_timeout_s=0.5) as policy:
        server.stop()
        with pytest.raises(PolicyFailure, match=r"no vLLM server could be asked for 0.5 s: .*cannot be reached"):
            await policy.sample([5], sampling=EIGHT, seed=3)


async def test_another_replica_takes_over_what_a_broken_one_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    # The request is the first to notice, not the watcher that looks each second.
    monkeypatch.setattr("sdk.policies.vllm.fleet._EVERY_S", 60.0)
    with TokenServer() as one, TokenServer() as two:
        async with opened(one, two) as policy:
            first = await policy.sample([5, 6, 7], sampling=EIGHT, seed=3)
            holder, other = (one, two) if one.bodies else (two, one)
            holder.stop()
            again = await policy.sample([5, 6, 7], sampling=EIGHT, seed=3)
            assert policy.counts()["retries"] == 1
    assert again.token_ids == first.token_ids
    assert len(other.bodies) == 1


async def test_a_server_that_was_started_again_gets_the_weights_before_it_gets_requests(tmp_path: Path) -> None:
    with TokenServer() as old:
        async with opened(old, folder=tmp_path) as policy:
            await asyncio.to_thread(policy.publish, state(1.0), version=4)
            old.stop()
            waiting = asyncio.create_task(policy.sample([5], sampling=EIGHT, seed=3))
            while not policy.counts()["retries"]:  # noqa: ASYNC110 - nothing tells of it
                await asyncio.sleep(0)
            with TokenServer(port=old.port) as new:
                completion = await waiting
    assert new.calls["/collective_rpc"] == 1
    assert completion.version == 4
    assert completion.token_ids == tokens_of(new.weights, 3, 8)
    assert new.weights != "as started"


async def test_a_server_that_was_started_again_unseen_is_given_the_weights_within_seconds(
    server: TokenServer, tmp_path: Path
) -> None:
    async with opened(server, folder=tmp_path) as policy:
        await asyncio.to_thread(policy.publish, state(1.0), version=4)
        while server.loaded.acquire(blocking=False):  # twice, to see whether they are all of its weights
            pass
        published, server.weights, server.mark = server.weights, "as started", "default"
        assert await asyncio.to_thread(server.loaded.acquire, timeout=10)
        assert server.weights == published


async def test_an_adapter_that_a_server_forgot_is_given_to_it_again(server: TokenServer, tmp_path: Path) -> None:
    async with opened(server, folder=tmp_path, publish="adapter") as policy:
        await asyncio.to_thread(policy.publish_adapter, AdapterFiles(), version=1)
        server.adapters.clear()
        completion = await policy.sample([5], sampling=EIGHT, seed=3)
        assert policy.counts()["retries"] == 1
        (folder,) = server.adapters.values()
    assert (completion.token_ids, completion.version) == (tokens_of(folder, 3, 8), 1)


class AdapterFiles:
    """Stands where a PEFT model does: something that can be saved."""

    def save_pretrained(self, folder: Path, **_: Any) -> None:
        folder.mkdir(parents=True)
        (folder / "adapter_config.json").write_text("{}")


async def test_adapters_are_exchanged_beside_requests_under_way(server: TokenServer, tmp_path: Path) -> None:
    async with opened(server, folder=tmp_path, publish="adapter") as policy:
        await asyncio.to_thread(policy.publish_adapter, AdapterFiles(), version=1)
        (first,) = server.adapters.values()
        server.hold.clear()
        flying = asyncio.create_task(policy.sample([5], sampling=EIGHT, seed=3))
        await asyncio.to_thread(server.waiting.acquire)
        await asyncio.to_thread(policy.publish_adapter, AdapterFiles(), version=2)
        assert first in server.adapters.values()
        server.release()
        before, after = await flying, await policy.sample([5], sampling=EIGHT, seed=3)
        await asyncio.to_thread(policy.publish_adapter, AdapterFiles(), version=3)
        assert len(server.adapters) == 1
        assert first not in map(str, tmp_path.glob("weights/*"))  # noqa: ASYNC240
    assert (before.version, before.token_ids) == (1, tokens_of(first, 3, 8))
    assert after.version == 2
    assert after.token_ids != before.token_ids
    assert server.adapters == {}


async def test_full_weights_wait_for_requests_under_way(server: TokenServer, tmp_path: Path) -> None:
    async with opened(server, folder=tmp_path) as policy:
        server.hold.clear()
        flying = asyncio.create_task(policy.sample([5], sampling=EIGHT, seed=3))
        await asyncio.to_thread(server.waiting.acquire)
        publishing = asyncio.create_task(asyncio.to_thread(policy.publish, state(1.0), version=1))
        await exchanging(policy)
        late = asyncio.create_task(policy.sample([5], sampling=EIGHT, seed=3))
        assert server.weights == "as started"
        server.release()
        await publishing
        before, after = await flying, await late
    assert (before.version, before.token_ids) == (0, tokens_of("as started", 3, 8))
    assert (after.version, after.token_ids) == (1, tokens_of(server.weights, 3, 8))
    assert server.calls["/reset_prefix_cache"] == 1


async def test_weights_in_flight_interrupt_and_each_token_knows_its_version(
    server: TokenServer, tmp_path: Path
) -> None:
    async with opened(server, folder=tmp_path, in_flight=True) as policy:
        server.hold.clear()
        flying = asyncio.create_task(policy.sample([5], sampling=EIGHT, seed=3))
        await asyncio.to_thread(server.waiting.acquire)
        await asyncio.to_thread(policy.publish, state(1.0), version=1)
        server.release()
        completion = await flying
        assert policy.counts()["interrupted"] == 1
    # One token was there when it was interrupted; the rest is asked for with it in the prompt.
    assert completion.versions == [0] + [1] * 7
    assert completion.token_ids == [*tokens_of("as started", 3, 1), *tokens_of(server.weights, 4, 7)]
    assert server.bodies[1]["prompt"] == [5, completion.token_ids[0]]
    assert server.bodies[1]["max_tokens"] == 7
    assert not server.paused


async def test_weights_in_flight_do_not_cut_a_grammar_in_two(server: TokenServer, tmp_path: Path) -> None:
    grammar = GrammarTokenizer(LLTokenizer("byte"), stop_token_ids=[256]).compile('start: "ab" | "cd"')
    async with opened(server, folder=tmp_path, in_flight=True) as policy:
        server.hold.clear()
        flying = asyncio.create_task(policy.sample([5], sampling=EIGHT, seed=3, grammar=grammar))
        await asyncio.to_thread(server.waiting.acquire)
        await asyncio.to_thread(policy.publish, state(1.0), version=1)
        server.release()
        with pytest.raises(
            PolicyFailure, match=r"interrupted a reply that follows a grammar; set vllm\.in_flight to false"
        ):
            await flying
    assert server.bodies[0]["structured_outputs"] == {"grammar": grammar.text}


async def test_a_request_that_a_paused_server_turns_away_waits_for_the_new_weights_and_is_no_failure(
    server: TokenServer, tmp_path: Path
) -> None:
    async with opened(server, folder=tmp_path, in_flight=True, max_retries=0) as policy:
        server.late = 1
        flying = asyncio.create_task(policy.sample([5], sampling=EIGHT, seed=3))
        await asyncio.to_thread(server.waiting.acquire)
        await asyncio.to_thread(policy.publish, state(1.0), version=1)
        completion = await flying
        assert policy.counts()["retries"] == 0
    assert (completion.version, completion.token_ids) == (1, tokens_of(server.weights, 3, 8))
    assert server.weights != "as started"


async def test_a_server_that_somebody_else_keeps_paused_is_a_policy_failure(server: TokenServer) -> None:
    async with opened(server, recover_timeout_s=0.3) as policy:
        server.late, server.paused = 1000, True
        with pytest.raises(PolicyFailure, match=r"is paused for 0\.3 s \(recover_timeout_s\), and not by us"):
            await policy.sample([5], sampling=EIGHT, seed=3)


async def test_a_checkpoint_that_lacks_weights_of_the_server_is_refused_and_nothing_is_sampled_any_more(
    server: TokenServer, tmp_path: Path
) -> None:
    server.keeps = ["model.norm.weight"]
    async with opened(server, folder=tmp_path, recover_timeout_s=0.5) as policy:
        with pytest.raises(PolicyFailure, match=r"1 weights of .* do not come from the trainer's: model\.norm\.weight"):
            await asyncio.to_thread(policy.publish, state(1.0), version=1)
        with pytest.raises(PolicyFailure, match="could be asked for"):
            await policy.sample([5], sampling=EIGHT, seed=3)
    assert server.bodies == []


async def test_weights_are_compared_with_the_first_publication_only(server: TokenServer, tmp_path: Path) -> None:
    async with opened(server, folder=tmp_path) as policy:
        for version in (1, 2):
            await asyncio.to_thread(policy.publish, state(1.0), version=version)
    assert (server.calls["/collective_rpc"], server.calls["/weight_checker"]) == (3, 3)


@pytest.mark.parametrize("way", ["checkpoint", "adapter"])
async def test_weights_that_have_not_changed_get_their_new_number_and_are_not_sent(
    server: TokenServer, tmp_path: Path, way: str
) -> None:
    async with opened(server, folder=tmp_path, publish=way) as policy:
        if way == "adapter":
            await asyncio.to_thread(policy.publish_adapter, AdapterFiles(), version=1)
        else:
            await asyncio.to_thread(policy.publish, state(1.0), version=1)
        before, calls = await policy.sample([5], sampling=EIGHT, seed=3), server.calls.copy()
        await asyncio.to_thread(policy.renumber, 2)
        after = await policy.sample([5], sampling=EIGHT, seed=3)
        assert server.calls - calls == {"/v1/completions": 1}
        assert policy.counts()["publications"] == 1
    assert (before.version, after.version) == (1, 2)
    assert after.token_ids == before.token_ids


async def test_a_server_that_was_started_again_has_the_number_that_its_weights_were_given(tmp_path: Path) -> None:
    with TokenServer() as old:
        async with opened(old, folder=tmp_path) as policy:
            await asyncio.to_thread(policy.publish, state(1.0), version=1)
            await asyncio.to_thread(policy.renumber, 2)
            old.stop()
            waiting = asyncio.create_task(policy.sample([5], sampling=EIGHT, seed=3))
            with TokenServer(port=old.port) as new:
                completion = await waiting
    assert (completion.version, completion.token_ids) == (2, tokens_of(new.weights, 3, 8))


@pytest.mark.parametrize("changed", [True, False])
async def test_a_server_on_the_trainers_gpu_sleeps_in_updates_and_wakes_for_the_next_weights(
    server: TokenServer, tmp_path: Path, changed: bool
) -> None:
    async with opened(server, folder=tmp_path) as policy:
        policy.sleeps = True  # of servers that we start, which this one is not
        await asyncio.to_thread(policy.publish, state(1.0), version=1)
        await asyncio.to_thread(policy.rest)
        assert server.asleep
        waiting = asyncio.create_task(policy.sample([5], sampling=EIGHT, seed=3))
        await asyncio.sleep(0)
        if changed:
            await asyncio.to_thread(policy.publish, state(2.0), version=2)
        else:
            await asyncio.to_thread(policy.renumber, 2)
        assert (await waiting).version == 2
        assert not server.asleep


async def test_the_trainers_gpu_memory_is_given_back_before_the_server_beside_it_wakes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []

    class Noting(TokenServer):
        def answer(self, path: str, body: Any) -> Any:
            if path in ("/sleep?level=1", "/wake_up"):
                order.append(path)
            return super().answer(path, body)

    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.is_initialized", lambda: True)
    monkeypatch.setattr("torch.cuda.empty_cache", lambda: order.append("empty_cache"))
    model = torch.nn.Linear(2, 2)
    with Noting() as server:
        async with opened(server, folder=tmp_path) as policy:
            policy.sleeps = True
            await asyncio.to_thread(sampler.publish, policy, model, version=0)
            await asyncio.to_thread(sampler.rest, policy)
            await asyncio.to_thread(sampler.publish, policy, model, version=1)
    assert order == ["empty_cache", "/sleep?level=1", "empty_cache", "/wake_up"]


async def exchanging(policy: VllmPolicy) -> None:
    """Returns when no request is admitted any more."""

    def wait() -> bool:
        with policy._fleet.state.changed:
            return policy._fleet.state.changed.wait_for(lambda: policy._fleet._exchanging, timeout=20)

    assert await asyncio.to_thread(wait)


async def test_a_request_waits_for_weights_longer_than_for_a_server(server: TokenServer, tmp_path: Path) -> None:
    """A publication waits for the longest request under way; nothing is broken meanwhile."""
    async with opened(server, folder=tmp_path, recover_timeout_s=0.05) as policy:
        server.hold.clear()
        longest = asyncio.create_task(policy.sample([5], sampling=EIGHT, seed=3))
        await asyncio.to_thread(server.waiting.acquire)
        publication = asyncio.create_task(asyncio.to_thread(policy.publish, state(2.0), version=1))
        await exchanging(policy)
        waiting = asyncio.create_task(policy.sample([6], sampling=EIGHT, seed=3))
        assert await asyncio.wait({waiting}, timeout=0.3) == (set(), {waiting})
        server.release()
        assert ((await longest).version, (await waiting).version) == (0, 1)
        await publication


async def test_a_server_is_not_started_again_because_it_does_not_have_the_weights_that_are_about_to_come(
    server: TokenServer, tmp_path: Path
) -> None:
    """A request failed while the first publication waits for another one."""
    async with opened(server, folder=tmp_path) as policy:
        server.hold.clear()
        other = asyncio.create_task(policy.sample([5], sampling=EIGHT, seed=3))
        await asyncio.to_thread(server.waiting.acquire)
        publication = asyncio.create_task(asyncio.to_thread(policy.publish, state(2.0), version=1))
        await exchanging(policy)
        (replica,) = policy._fleet.replicas
        while server.looked_at.acquire(blocking=False):
            pass
        policy._fleet.suspect(replica, "HTTP 500")
        await asyncio.to_thread(server.looked_at.acquire)
        server.release()
        assert (await other).version == 0
        await publication
        assert policy.counts()["retries"] == 0


async def test_requests_that_wait_for_a_server_that_cannot_sleep_hear_of_it(
    server: TokenServer, tmp_path: Path
) -> None:
    async with opened(server, folder=tmp_path) as policy:
        policy.sleeps = True
        server.failing = {"/sleep?level=1": 400}
        with pytest.raises(PolicyFailure, match="injected fault"):
            await asyncio.to_thread(policy.rest)
        assert (await policy.sample([5], sampling=EIGHT, seed=3)).version == 0


async def test_a_server_that_was_started_again_has_the_weights_below_the_adapter_too(tmp_path: Path) -> None:
    """Those that it was started with are others where the run's base was published to it."""
    with TokenServer() as old:
        options = VllmOptions(urls=(old.url,), recover_timeout_s=20.0)
        async with open_vllm("unused", options, lora_rank=8, folder=tmp_path) as policy:
            await asyncio.to_thread(policy.publish, state(5.0), version=0)
            await asyncio.to_thread(policy.publish_adapter, AdapterFiles(), version=1)
            base = old.weights
            await asyncio.to_thread(policy.publish_adapter, AdapterFiles(), version=2)
            old.stop()
            waiting = asyncio.create_task(policy.sample([5], sampling=EIGHT, seed=3))
            with TokenServer(port=old.port) as new:
                assert (await waiting).version == 2
                assert new.weights == base


async def test_a_server_that_does_not_wake_is_looked_after(server: TokenServer, tmp_path: Path) -> None:
    async with opened(server, folder=tmp_path, recover_timeout_s=20.0) as policy:
        policy.sleeps = True
        await asyncio.to_thread(policy.publish, state(1.0), version=1)
        await asyncio.to_thread(policy.rest)
        server.failing, server.asleep = {"/wake_up": 500}, False
        await asyncio.to_thread(policy.publish, state(2.0), version=2)
        completion = await policy.sample([5], sampling=EIGHT, seed=3)
    assert (completion.version, completion.token_ids) == (2, tokens_of(server.weights, 3, 8))


class Stumbling(TokenServer):
    """Answers the `number`-th call of one path with HTTP 500, as a server does whose engine has just died."""

    def __init__(self, path: str, number: int) -> None:
        super().__init__()
        self._stumbles = (path, number)

    def answer(self, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if (path, self.calls[path] + 1) == self._stumbles:
            self.failing = {path: 500}
        return super().answer(path, body)


@pytest.mark.parametrize(("path", "number"), [("/pause?mode=abort", 1), ("/resume", 2)])
async def test_a_server_that_breaks_where_it_is_interrupted_or_goes_on_ends_no_run(
    tmp_path: Path, path: str, number: int
) -> None:
    with Stumbling(path, number) as server:
        async with opened(server, folder=tmp_path, in_flight=True, recover_timeout_s=20.0) as policy:
            server.hold.clear()
            flying = asyncio.create_task(policy.sample([5], sampling=EIGHT, seed=3))
            await asyncio.to_thread(server.waiting.acquire)
            await asyncio.to_thread(policy.publish, state(1.0), version=1)
            server.release()
            completion, after = await flying, await policy.sample([6], sampling=EIGHT, seed=4)
        assert (after.version, after.token_ids) == (1, tokens_of(server.weights, 4, 8))
        assert completion.version == 1
        assert server.calls[path] >= number
        assert not server.paused


async def test_a_prefix_cache_that_cannot_be_reset_stops_the_publication(server: TokenServer, tmp_path: Path) -> None:
    server.cache_resets = False
    async with opened(server, folder=tmp_path) as policy:
        with pytest.raises(PolicyFailure, match="keeps keys and values of the weights before version 1"):
            await asyncio.to_thread(policy.publish, state(1.0), version=1)


async def test_log_probabilities_of_another_distribution_are_refused_at_the_start(server: TokenServer) -> None:
    server.logprob = -0.5
    with pytest.raises(ConfigError, match="--logprobs-mode processed_logprobs"):
        async with opened(server):
            pass


async def test_weights_that_a_training_left_are_not_measured_as_those_of_the_servers_model(
    server: TokenServer, tmp_path: Path
) -> None:
    async with opened(server, folder=tmp_path) as policy:
        await asyncio.to_thread(policy.publish, state(1.0), version=1)
    options = VllmOptions(urls=(server.url,))
    with pytest.raises(ConfigError, match=r"weights that a training run published \(toolbake-.*start it again"):
        async with open_vllm("unused", options, publishes=False):
            pass
    async with open_vllm("unused", options, folder=tmp_path) as policy:  # a training brings its own
        await asyncio.to_thread(policy.publish, state(2.0), version=1)


async def test_replicas_with_different_models_are_not_mixed() -> None:
    with TokenServer() as one, TokenServer() as two:
        two.name = "another"
        with pytest.raises(ConfigError, match=rf"'base' at {one.url}, 'another' at {two.url}.*served_model"):
            async with opened(one, two):
                pass


async def test_a_group_and_its_later_turns_stay_on_one_replica_and_groups_are_spread() -> None:
    with TokenServer() as one, TokenServer() as two:
        async with opened(one, two) as policy:
            tools = list(range(5, 60))
            for server in (one, two):
                server.hold.clear()
            groups = [[*tools, 60 + number] for number in range(4) for _ in range(3)]
            flying = [asyncio.create_task(policy.sample(p, sampling=EIGHT, seed=i)) for i, p in enumerate(groups)]
            for _ in range(50):
                await asyncio.sleep(0)
            for server in (one, two):
                server.release()
            done = await asyncio.gather(*flying)
            follow = [p + c.token_ids + [9] for p, c in zip(groups, done, strict=True)]
            await asyncio.gather(*(policy.sample(p, sampling=EIGHT, seed=0) for p in follow))
    places = [{tuple(body["prompt"][:56]) for body in server.bodies} for server in (one, two)]
    assert [len(place) for place in places] == [2, 2]
    assert places[0].isdisjoint(places[1])


@pytest.mark.parametrize(("patience_s", "lost"), [(330.0, False), (1.0, True)])
async def test_an_engine_that_computes_a_long_step_is_left_alone_and_one_that_never_answers_is_lost(
    server: TokenServer, monkeypatch: pytest.MonkeyPatch, patience_s: float, lost: bool
) -> None:
    for name, value in (("_EVERY_S", 0.01), ("_PROBE_S", 0.2), ("_BUSY_S", patience_s)):
        monkeypatch.setattr(f"sdk.policies.vllm.fleet.{name}", value)
    async with opened(server, max_retries=50) as policy:
        await asyncio.to_thread(policy.publish, state(1.0), version=1)
        server.hold.clear()
        flying = asyncio.create_task(policy.sample([5], sampling=EIGHT, seed=3))
        await asyncio.to_thread(server.waiting.acquire)
        server.between_steps.clear()
        while server.asked_for_weights.acquire(blocking=False):
            pass
        for _ in range(8):  # 1.6 s and more
            await asyncio.to_thread(server.asked_for_weights.acquire)
        server.release()
        completion = await flying
        assert completion.token_ids == tokens_of(server.weights, 3, 8)
        assert completion.version == 1
        assert bool(policy.counts()["retries"]) is lost
