"""The canonical form and the chain, against values that were computed by hand."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdk.evidence.canonical import START, canonical, digest, link, parse, rollout_links
from sdk.evidence.expected_run import out_of_order

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def sha(text: str) -> str:
    return hashlib.sha256(text.encode("ascii")).hexdigest()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"b": 1, "a": [1.0, 1e-7, 1e16, True, None]}, '{"a":[1.0,1e-07,1e+16,true,null],"b":1}'),
        ({"é": "\n\x7f😀/", "": "\ud83d"}, '{"":"\\ud83d","\\u00e9":"\\n\\u007f\\ud83d\\ude00/"}'),
        (10**20, "100000000000000000000"),
    ],
)
def test_the_canonical_form_is_the_one_in_the_docs(value: Any, text: str) -> None:
    assert canonical(value).decode("ascii") == text


@given(JSON)
def test_the_canonical_form_reads_back_as_the_same_value_and_has_no_other(value: Any) -> None:
    text = canonical({"value": value})
    again = parse(text)
    assert canonical(again) == text
    assert canonical(json.loads(json.dumps({"value": value}, indent=3, ensure_ascii=False))) == text


@pytest.mark.parametrize("text", [b"[1]", b"{", b'{"a": NaN}', b"[" * 100_000, b'{"a": Infinity}'])
def test_what_is_no_object_in_json_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse(text)


def test_a_link_is_the_hash_of_what_came_before_the_kind_and_the_data() -> None:
    data = sha('{"x":1}')
    first = sha(f'["{"0" * 64}","note","{data}"]')
    assert link(START, "note", digest({"x": 1})) == first
    assert first == "e2bb4e12059411d162b62022f5afecf71eaa2ef6925a80d3507b9e6678fb92ee"
    assert link(first, "note", digest({"x": 1})) == sha(f'["{first}","note","{data}"]')


def test_the_chain_of_a_rollout_is_the_one_computed_by_hand() -> None:
    line = {
        "id": "r1",
        "task": {"prompt": "Where?"},
        "seed": 3,
        "messages": [{"role": "user"}],
        "calls": [{"turn": 1}],
        "rows": [{"versions": [2, -1, 0]}],
        "answer": "here",
        "verdict": {"score": 1.0},
    }
    pieces = [
        ("task", '{"prompt":"Where?"}'),
        ("tools", '{"schemas":"","shown":null}'),
        (
            "start",
            '{"group":null,"id":"r1","initial_state":null,"policy":null,"seed":3,"stage":"grpo","step":null}',
        ),
        ("message", '{"role":"user"}'),
        ("call", '{"turn":1}'),
        ("row", '{"versions":[2,-1,0]}'),
        ("weights", "[0,2]"),
        ("end", '{"answer":"here"}'),
    ]
    head = "0" * 64
    for kind, data in pieces:
        head = sha(f'["{head}","{kind}","{sha(data)}"]')
    inputs = head
    verdict = sha(f'{{"verdict":{{"score":1.0}},"verifier":"{sha("null")}"}}')
    head = sha(f'["{inputs}","verdict","{verdict}"]')

    links = rollout_links(line, stage="grpo", tools="", verifier=sha("null"))
    assert (links.inputs, links.head) == (inputs, head)
    assert links.marks == (*(f"{kind}:{sha(data)[:16]}" for kind, data in pieces), f"verdict:{verdict[:16]}")


@given(st.permutations(range(9)))
def test_what_is_out_of_order_comes_after_a_higher_place_and_the_rest_ascends(places: list[int]) -> None:
    moved = out_of_order(places)
    kept = [place for index, place in enumerate(places) if index not in moved]
    assert kept == sorted(kept)
    assert all(places[index] < max(places[:index]) for index in moved)
