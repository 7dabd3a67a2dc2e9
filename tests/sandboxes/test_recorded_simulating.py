"""A model that answers for calls that were never recorded, behind this project's own OpenAI-compatible endpoint."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from noting import record_notes

from mcp_bridge import SourceError, ToolFailure, connect
from sandboxes.recorded import Cassette, RecordedTwin, SimulatedAnswers, record
from sdk.policies.models import DEFAULT_SAMPLING
from sdk.policies.protocol import Completion
from sdk.policies.scripted import END_TOKEN, ByteRenderer
from sdk.serving import Server, serve
from sdk.serving.backend import Backend
from sdk.serving.generation import Generator
from sdk.serving.openai_api import Endpoint
from sdk.serving.replies import KEEP_ALIVE_S
from sdk.serving.requests import MOST_WAITING, RequestQueue
from sdk.serving.server import bind

EXAMPLE = Path(__file__).parents[2] / "examples" / "recorded"
ADD = ("add_note", {"text": "milk"})


class Saying:
    """A policy that says what it is told to; one token is one byte."""

    context_tokens = 1_000_000

    def __init__(self, say: Callable[[str], str]) -> None:
        self.say = say
        self.prompts: list[str] = []
        self.seeds: list[int] = []

    async def sample(self, prompt_ids: Any, *, sampling: Any, seed: int, **_: Any) -> Completion:
        await anyio.lowlevel.checkpoint()
        self.prompts.append(ByteRenderer().decode(prompt_ids))
        self.seeds.append(seed)
        ids = [*self.say(self.prompts[-1]).encode(), END_TOKEN]
        return Completion(ids, [0.0] * len(ids), "stop")


@contextmanager
def endpoint(say: Callable[[str], str], api_key: str | None = None) -> Iterator[tuple[str, Saying]]:
    policy = Saying(say)
    queue = RequestQueue(MOST_WAITING)
    generator = Generator(policy, ByteRenderer(), None, queue, defaults=DEFAULT_SAMPLING)  # type: ignore[arg-type]
    app = Endpoint(Backend(generator, DEFAULT_SAMPLING, "full", None), "desk", api_key, KEEP_ALIVE_S)
    with Server(app, bind("127.0.0.1", 0, api_key), model_name="desk") as server:
        yield f"{server.url}/v1", policy


def answers(*said: Any) -> Callable[[str], str]:
    left = [one if isinstance(one, str) else json.dumps(one) for one in said]
    return lambda prompt: left.pop(0)


@pytest.fixture
async def cassette(tmp_path: Path) -> Path:
    calls = [("list_notes", {}), ADD, ("get_note", {"note_id": "$0"}), ("get_note", {"note_id": "n-1"})]
    await record_notes(tmp_path / "notes.jsonl", calls)
    return tmp_path / "notes.jsonl"


@pytest.mark.timeout(400)
async def test_a_real_model_answers_in_the_form_of_the_recording() -> None:
    with serve(None, port=0, model_name="small") as server:
        model = SimulatedAnswers(f"{server.url}/v1", "small", examples=2, extra_body={"max_tokens": 16})
        twin = RecordedTwin(EXAMPLE / "everything.jsonl", unseen=model)
        echoed = await twin.call("echo", {"message": "good morning"})
        assert echoed.text == "Echo: good morning"
        assert echoed.notes == ("recorded twin: simulated (by small)",)
        recorded = await twin.call("get-sum", {"a": 2, "b": 3})
        assert recorded.notes == ()
    assert twin.report()["answers"] == {"recorded": 1, "simulated": 1}


async def test_the_model_is_shown_the_tool_the_recording_and_the_session(cassette: Path) -> None:
    with endpoint(answers({"structured": {"note_id": "n-7"}}, {"text": "bread, from n-7"})) as (url, policy):
        twin = RecordedTwin(cassette, unseen=SimulatedAnswers(url, "desk"))
        added = await twin.call("add_note", {"text": "bread"})
        assert (added.structured, json.loads(added.text)) == ({"note_id": "n-7"}, {"note_id": "n-7"})
        read = await twin.call("get_note", {"note_id": "n-7"})
        assert (read.text, read.is_error) == ("bread, from n-7", False)
    first, second = policy.prompts
    assert "The tool add_note" in first
    assert '"required": ["note_id"]' in first
    assert 'recorded: add_note({"text": "milk"})' in first
    assert '{"structured": {"note_id": "n-100"}}' in first
    assert "this session: add_note" in second
    assert '{"structured": {"note_id": "n-7"}}' in second
    assert '{"error": "There is no note n-1."}' in second
    assert second.index('get_note({"note_id": "n-100"})') < second.rindex('get_note({"note_id": "n-7"})')
    assert twin.state()["changes"]["000001"]["answer"] == "simulated"


async def test_an_answer_against_the_output_schema_is_asked_for_again_and_then_the_rollout_is_unscored(
    cassette: Path,
) -> None:
    wrong = ["no JSON at all", {"structured": {"note": 1}}]
    with endpoint(answers(*wrong, {"structured": {"note_id": "n-7"}})) as (url, policy):
        model = SimulatedAnswers(url, "desk")
        assert (await RecordedTwin(cassette, unseen=model).call("add_note", {"text": "x"})).structured
        assert model.asked == 3
        assert "there is no JSON object in it" in policy.prompts[1]
        assert "'note_id' is a required property" in policy.prompts[2]
    with endpoint(answers(*wrong, {"text": "n-7"})) as (url, _):
        with pytest.raises(ToolFailure, match=r"in the place of 'add_note' in 3 tries: .* give \"structured\""):
            await RecordedTwin(cassette, unseen=SimulatedAnswers(url, "desk")).call("add_note", {"text": "x"})


@pytest.mark.parametrize("opens", ["<think>", ""])
async def test_what_the_model_thinks_before_its_answer_is_left_out(cassette: Path, opens: str) -> None:
    with endpoint(answers(opens + 'Rather {"text": "no"}?</think>{"structured": {"note_id": "n-9"}}')) as (url, _):
        twin = RecordedTwin(cassette, unseen=SimulatedAnswers(url, "desk"))
        assert (await twin.call("add_note", {"text": "tea"})).structured == {"note_id": "n-9"}


async def test_an_error_can_be_simulated_and_changes_nothing(cassette: Path) -> None:
    with endpoint(answers({"error": "The desk is closed."})) as (url, _):
        twin = RecordedTwin(cassette, unseen=SimulatedAnswers(url, "desk"))
        result = await twin.call("add_note", {"text": "x"})
        assert (result.is_error, result.error_kind, result.text) == (True, "tool_error", "The desk is closed.")
        assert twin.state()["changes"] == {}


async def test_the_same_call_at_the_same_place_is_answered_once_and_alike_in_all_worlds(cassette: Path) -> None:
    with endpoint(lambda prompt: json.dumps({"text": f"answer {len(policy.prompts)}"})) as (url, policy):
        model = SimulatedAnswers(url, "desk")
        twin = RecordedTwin(cassette, unseen=model)
        found: list[str] = []

        async def play(number: int) -> None:
            async with twin.open_world(f"w{number}") as world:
                found.append((await world.call("get_note", {"note_id": "n-9"})).text)
                # Of a model with a session behind it, the second answer may be another one.
                await world.call("get_note", {"note_id": "n-9"})

        await play(0)
        async with anyio.create_task_group() as group:
            for number in range(1, 20):
                group.start_soon(play, number)
        assert set(found) == {"answer 1"}
        assert model.asked == 2
        assert twin.report()["answers"] == {"kept": 38, "simulated": 2}
        seeds = [*policy.seeds]
        again = RecordedTwin(cassette, unseen=SimulatedAnswers(url, "desk"))
        await again.call("get_note", {"note_id": "n-9"})
        other = RecordedTwin(cassette, unseen=SimulatedAnswers(url, "desk", seed=1))
        await other.call("get_note", {"note_id": "n-9"})
        assert policy.seeds[2] == seeds[0]
        assert policy.seeds[3] != seeds[0]


async def test_answers_are_kept_in_the_cassette_where_that_is_asked_for(cassette: Path) -> None:
    before = len(Cassette.read(cassette).calls)
    with endpoint(answers({"text": "made up"}, {"text": "of another seed"})) as (url, _):
        kept = RecordedTwin(cassette, unseen=SimulatedAnswers(url, "desk", keep=True))
        await kept.call("get_note", {"note_id": "n-9"})
        (added,) = Cassette.read(cassette).simulated
        assert (added.simulated, added.tool, added.arguments) == (True, "get_note", {"note_id": "n-9"})
        later = RecordedTwin(cassette, unseen=SimulatedAnswers(url, "desk"))
        result = await later.call("get_note", {"note_id": "n-9"})
        assert (result.text, later.report()["answers"]) == ("made up", {"kept": 1})
        other = RecordedTwin(cassette, unseen=SimulatedAnswers(url, "desk", seed=5))
        assert (await other.call("get_note", {"note_id": "n-9"})).text == "of another seed"
    found = Cassette.read(cassette)
    assert (len(found.calls), len(found.simulated)) == (before, 1), "what is simulated counts as no recording"
    with pytest.raises(ToolFailure):
        await RecordedTwin(cassette).call("get_note", {"note_id": "n-9"})


async def test_kept_answers_hold_no_secret_and_are_found_again_for_a_call_that_had_one(tmp_path: Path) -> None:
    await record_login(tmp_path / "desk.jsonl")
    login = ("login", {"name": "ann", "password": "hunter2-4417"})
    said = {"text": "Welcome, ann. token=f00dcafe4418"}
    with endpoint(answers(said, {"text": "It is open."})) as (url, _):
        twin = RecordedTwin(tmp_path / "desk.jsonl", unseen=SimulatedAnswers(url, "desk", keep=True))
        first = [(await twin.call(*call)).text for call in (login, ("status", {}))]
        written = (tmp_path / "desk.jsonl").read_text()
        assert not {"4417", "4418"} & {written[at : at + 4] for at in range(len(written))}
        later = RecordedTwin(tmp_path / "desk.jsonl", unseen=SimulatedAnswers(url, "desk"))
        assert [(await later.call(*call)).text for call in (login, ("status", {}))] == first
    assert later.report()["answers"] == {"kept": 2}


async def record_login(path: Path) -> None:
    async def login(name: str, password: str) -> str:
        return f"Welcome, {name}."

    async def status() -> str:
        return "It is closed."

    async with connect([login, status]) as tools:
        async with record(tools, path).open_world("w") as world:
            await world.call("login", {"name": "bob", "password": "another-4419"})


async def test_calls_that_no_model_may_answer_or_did_answer_are_counted(cassette: Path) -> None:
    with endpoint(answers(*["no JSON"] * 3)) as (url, policy):
        twin = RecordedTwin(cassette, unseen=SimulatedAnswers(url, "desk"))
        with pytest.raises(ToolFailure, match="no usable answer"):
            await twin.call("get_note", {"note_id": "n-9"})
        wrong = await twin.call("get_note", {"note": "n-9"})
        assert wrong.error_kind == "invalid_arguments"
        assert len(policy.prompts) == 3, "a call that its schema does not allow is not shown to the model"
    assert twin.report()["answers"] == {"mistake": 1, "not_recorded": 1}


async def test_an_endpoint_that_refuses_or_is_not_there_leaves_the_rollout_unscored(cassette: Path) -> None:
    with endpoint(answers({"text": "x"}), api_key="the-right-key-4417") as (url, _):
        right = SimulatedAnswers(url, "desk", "the-right-key-4417")
        assert (await RecordedTwin(cassette, unseen=right).call("get_note", {"note_id": "n-9"})).text == "x"
        assert "4417" not in repr(right)
        wrong = SimulatedAnswers(url, "desk", "the-wrong-key-4418")
        with pytest.raises(ToolFailure, match="answered HTTP 401") as caught:
            await RecordedTwin(cassette, unseen=wrong).call("get_note", {"note_id": "n-9"})
        assert "4418" not in str(caught.value)
    with pytest.raises(ToolFailure, match="could not be asked"):
        await RecordedTwin(cassette, unseen=SimulatedAnswers(url, "desk")).call("get_note", {"note_id": "n-9"})


async def test_without_an_event_loop_a_model_is_not_asked(cassette: Path) -> None:
    twin = RecordedTwin(cassette, unseen=SimulatedAnswers("http://127.0.0.1:9/v1", "desk"))
    assert twin.call_now(*ADD).structured == {"note_id": "n-100"}
    with pytest.raises(ToolFailure, match=r"await twin\.call"):
        twin.call_now("get_note", {"note_id": "n-9"})


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"base_url": "host:8000"}, "is not an http"),
        ({"base_url": "http://ann:pw@host/v1"}, "holds credentials"),
        ({"examples": -1}, "examples is -1; it must be 0 or more"),
    ],
)
def test_settings_that_cannot_work_are_refused(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(SourceError, match=complaint) as caught:
        SimulatedAnswers(**{"base_url": "http://127.0.0.1:9/v1", "model": "desk", **options})
    assert "pw@" not in str(caught.value)
