"""Strict forms of answers: what is right passes in every way of writing it, and nothing else does."""

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rollouts_for_verifiers import rollout

from sdk.errors import ConfigError, VerifierError
from sdk.verifiers import answer_exact, answer_json, answer_number, answer_pattern, answer_set, run_verifier


async def judge(verifier, answer, expected, **fields):
    return (await run_verifier(verifier, rollout(answer, expected=expected, **fields))).score


@pytest.mark.parametrize(
    ("verifier", "answer", "expected"),
    [
        (answer_exact(), " TX-9 \n", {"answer": "TX-9"}),
        (answer_exact(), "b", {"answer": ["a", "b"]}),
        (answer_number(), "It weighs 12,500 g.", {"answer": "12.5 kg"}),
        (answer_number(), "It weighs 12.5 kg. Ask me if you have questions or need more!", {"answer": "12.5 kg"}),
        (answer_number(), "12.5 kg, weighed on December 1, 2026 at 2:30 PM", {"answer": "12.5 kg"}),
        (answer_number(), "12.5kg", {"answer": {"value": 12.5, "unit": "kg"}}),
        (answer_number(), "That makes 1 h 30 min.", {"answer": "90 min"}),
        (answer_number(), "$1,234.50", {"answer": "1234.5 USD"}),
        (answer_number(), "77 °F", {"answer": "25 °C"}),
        (answer_number(), "There are 12 in stock", {"answer": 12}),
        (answer_number(), "minus 3", {"answer": -3}),
        (answer_number(), "Order 4417 weighs 2 kg", {"answer": "2 kg"}),
        (answer_number(), "7 of them", {"answer": "7"}),
        (answer_number(), "It has not left yet, but it weighs 1.5 kg.", {"answer": "1.5 kg"}),
        (answer_number(), "12.5 kg, packaging not included", {"answer": "12.5 kg"}),
        (answer_number(within=0.1), "3.2 kg", {"answer": "3.3 kg"}),
        (answer_number(within=10), "1.009 km", {"answer": "1000 m"}),
        (answer_number(relative=0.01), "101", {"answer": 100}),
        (answer_number(), "The waiting times are 12 minutes", {"answer": 12}),
        (answer_number(), "The second half is 12", {"answer": 12}),
        (answer_number(), "There are now 12", {"answer": 12}),
        (answer_number(), "In total 12 kg", {"answer": "12 kg"}),
        (answer_number(), "That comes to 12 kg", {"answer": "12 kg"}),
        (answer_number(), "The quantity is set to 12.", {"answer": 12}),
        (answer_number(), "It was sent to 12 customers.", {"answer": 12}),
        (answer_number(), "I changed the amount of order 4417 to 12.", {"answer": 12}),
        (answer_number(), "The distance between Rome and Paris is 12 km", {"answer": "12 km"}),
        (answer_set(), "A-1, B-2 and C-3", {"answer": ["C-3", "A-1", "B-2"]}),
        (answer_set(), "The orders are: 1, 2", {"answer": [2, 1]}),
        (answer_set(), "1,000, 2,000 and 3", {"answer": [1000, 2000, 3]}),
        (answer_set(), "17,204", {"answer": [17, 204]}),
        (answer_set(), "1,000,2,000", {"answer": [1000, 2000]}),
        (answer_set(), "The totals are: 2,000,1,000.50,3", {"answer": [1000.5, 3, 2000]}),
        (answer_set(), "1,234,567,89", {"answer": [1234567, 89]}),
        (answer_set(), "417,418,419", {"answer": [417, 418, 419]}),
        (answer_set(), "417,418,419", {"answer": [417418419]}),
        (answer_set(), "100, 200, 100200", {"answer": [100, 200, 100200]}),
        (answer_set(), "1,000 USD, EUR 2,000 and 3,000 dollars", {"answer": [3000, 2000, 1000]}),
        (answer_set(), "5 USD,1,234 USD,tea,-2,000", {"answer": [-2000, "tea", 1234, 5]}),
        (answer_set(), "-1,000, -2", {"answer": [-2, -1000]}),
        (answer_set(), "−1,000,-2,000,3", {"answer": [-2000, -1000, 3]}),
        (answer_set(), "- tea\n- Bread and butter", {"answer": ["bread and butter", "Tea"]}),
        (answer_set(), '["Paris, France", "Rome"]', {"answer": ["Rome", "Paris, France"]}),
        (answer_set(), "Paris, France; Rome", {"answer": ["Rome", "Paris, France"]}),
        (answer_pattern(r"[A-Z]{2}-\d+"), "TX-9", {}),
        (answer_pattern(), "tx 9", {"answer_pattern": r"tx \d"}),
        (answer_pattern("tx", whole=False, ignore_case=True), "the TX", {}),
        (answer_json(), '{"a": 1.0, "b": [true]}', {"answer_json": {"b": [True], "a": 1}}),
        (answer_json(), '```json\n{"a": 1}\n```', {"answer_json": {"a": 1}}),
        (answer_json(), '```JSON\r\n{"a": 1}\r\n```', {"answer_json": {"a": 1}}),
        (answer_json(compare="contains"), '{"a": 1, "b": 2}', {"answer_json": {"a": 1}}),
        (answer_json(schema={"type": "object", "required": ["a"]}), '{"a": null}', {}),
        (answer_json(), "5", {"answer_schema": {"minimum": 5}}),
    ],
)
async def test_a_right_answer_counts_in_each_of_its_forms(verifier, answer, expected):
    assert await judge(verifier, answer, expected) == 1


@pytest.mark.parametrize(
    ("verifier", "prompt", "answer", "expected"),
    [
        (answer_number(), "How many orders have not shipped?", "12 orders have not shipped.", 12),
        (
            answer_set(),
            "Which customers have no open tickets?",
            "Customers with no open tickets: Ann, Bo",
            ["Ann", "Bo"],
        ),
    ],
)
async def test_an_answer_may_repeat_what_the_question_denies(verifier, prompt, answer, expected):
    assert await judge(verifier, answer, {"answer": expected}, prompt=prompt) == 1
    assert await judge(verifier, answer, {"answer": expected}, prompt="How many are there, and which?") == 0


WARDS = ["ICU", "Oncology", "Surgery"]


@pytest.mark.parametrize(
    "lead", ["", "The wards are: ", "Open wards: ", "The ward list: ", "Here are all open wards: "]
)
async def test_a_list_may_have_a_lead_in_the_words_of_the_prompt(lead):
    assert await judge(answer_set(), f"{lead}ICU, Oncology, Surgery", {"answer": WARDS}, prompt="Which wards are open?")


@pytest.mark.parametrize("tool", ["list_wards", "listWards", "wards.list"])
async def test_a_list_may_begin_with_a_noun_in_the_name_of_a_called_tool(tool):
    for lead, calls, earns in (("Wards", [tool], 1), ("Wards", [], 0), ("Departments", [tool], 0)):
        asked = {"prompt": "Which are open?", "calls": [(name, {}) for name in calls]}
        assert await judge(answer_set(), f"{lead}: ICU, Oncology, Surgery", {"answer": WARDS}, **asked) == earns


@pytest.mark.parametrize(
    "answer",
    [
        "ER, Dialysis and also: ICU, Oncology, Surgery",
        "ER, Dialysis: ICU, Oncology, Surgery",
        "Maybe: ICU, Oncology, Surgery",
        "Apart from: ICU, Oncology, Surgery",
        "Other than: ICU, Oncology, Surgery",
        "Any of: ICU, Oncology, Surgery",
        "One of: ICU, Oncology, Surgery",
        "These are closed: ICU, Oncology, Surgery",
        "Are they: ICU, Oncology, Surgery?",
        "ICU, Oncology, Surgery?",
    ],
)
async def test_a_lead_that_lists_doubts_or_says_something_else_and_a_question_are_no_list(answer):
    for partial in (False, True):
        verifier = answer_set(partial=partial)
        assert await judge(verifier, answer, {"answer": WARDS}, prompt="Which wards are open?") == 0


async def test_an_item_that_is_listed_twice_costs_precision():
    assert await judge(answer_set(), "A-1, B-2, B-2", {"answer": ["A-1", "B-2"]}) == 0
    assert await judge(answer_set(partial=True), "A-1, A-1, A-1", {"answer": ["A-1"]}) == 0.5
    assert await judge(answer_set(), "5, 5", {"answer": [5, 5]}) == 1


async def test_an_item_of_a_set_may_have_several_acceptable_forms():
    for expected in ({"all": [["ICU", "Intensive care"], "Oncology"]}, [["ICU", "Intensive care"], "Oncology"]):
        assert await judge(answer_set(), "Oncology, intensive care", {"answer": expected}) == 1
        assert await judge(answer_set(), "ICU and Oncology", {"answer": expected}) == 1
        assert await judge(answer_set(), "ICU, Intensive care, Oncology", {"answer": expected}) == 0
        assert await judge(answer_set(), "ICU", {"answer": expected}) == 0


@pytest.mark.parametrize(
    ("verifier", "answer", "expected"),
    [
        (answer_exact(), "tx-9", {"answer": "TX-9"}),
        (answer_exact(), "It is TX-9", {"answer": "TX-9"}),
        (answer_exact(), "", {"answer": "TX-9"}),
        (answer_number(), "12.5", {"answer": "12.5 kg"}),
        (answer_number(), "12.5 g", {"answer": "12.5 kg"}),
        (answer_number(), "12.5 EUR", {"answer": "12.5 USD"}),
        (answer_number(), "12 or 13", {"answer": 12}),
        (answer_number(), "12, 13, 14", {"answer": 13}),
        (answer_number(), "10-12 kg", {"answer": "12 kg"}),
        (answer_number(), "between 12 kg and 13 kg", {"answer": "12 kg"}),
        (answer_number(), "at least 12 kg", {"answer": "12 kg"}),
        (answer_number(), "not 12 kg", {"answer": "12 kg"}),
        (answer_number(), "It is not true that it weighs 12 kg.", {"answer": "12 kg"}),
        (answer_number(), "I doubt that it is 12", {"answer": 12}),
        (answer_number(), "12 kg is wrong", {"answer": "12 kg"}),
        (answer_number(), "12 kg is a lie", {"answer": "12 kg"}),
        (answer_number(), "No way is it 12 kg.", {"answer": "12 kg"}),
        (answer_number(), "Anything but 12 kg.", {"answer": "12 kg"}),
        (answer_number(), "I cannot confirm that it is 12 kg.", {"answer": "12 kg"}),
        (answer_number(), "Is it 12 kg?", {"answer": "12 kg"}),
        (answer_number(), "Less than something like 12 kg.", {"answer": "12 kg"}),
        (answer_number(), "more than 12", {"answer": 12}),
        (answer_number(), "half of 12 kg", {"answer": "12 kg"}),
        (answer_number(), "twice the 12 kg", {"answer": "12 kg"}),
        (answer_number(), "double: 12 kg", {"answer": "12 kg"}),
        (answer_number(), "12 kg/2", {"answer": "12 kg"}),
        (answer_number(), "$59.90k", {"answer": "$59.90"}),
        (answer_number(), "the 2nd", {"answer": 2}),
        (answer_number(), "almost 12 kg", {"answer": "12 kg"}),
        (answer_number(), "probably 12 kg", {"answer": "12 kg"}),
        (answer_number(), "It might be 12 kg", {"answer": "12 kg"}),
        (answer_number(), "If it is 12 kg, it is too heavy.", {"answer": "12 kg"}),
        (answer_number(), "It used to be 12 kg", {"answer": "12 kg"}),
        (answer_number(), "It isnt 12 kg", {"answer": "12 kg"}),
        (answer_number(), "12 kg or more", {"answer": "12 kg"}),
        (answer_number(), "12 kg at most", {"answer": "12 kg"}),
        (answer_number(), "\u2265 12 kg", {"answer": "12 kg"}),
        (answer_number(), "half of those 12 kg", {"answer": "12 kg"}),
        (answer_number(), "close to 12 kg", {"answer": "12 kg"}),
        (answer_number(), "4417 to 12", {"answer": 12}),
        (answer_number(), "It is 4417 kg to 12 kg", {"answer": "12 kg"}),
        (answer_number(), "between 4417 and 12", {"answer": 12}),
        (answer_number(), "between ten and 12", {"answer": 12}),
        (answer_number(), "ten to 12", {"answer": 12}),
        (answer_number(), "A-12", {"answer": 12}),
        (answer_number(), "2026-11-12", {"answer": 12}),
        (answer_number(), "-12", {"answer": 12}),
        (answer_number(), "12.1", {"answer": 12}),
        (answer_number(within=0.1), "3.5 kg", {"answer": "3.3 kg"}),
        (answer_number(relative=0.01), "102", {"answer": 100}),
        (answer_number(), "1 h 30 min", {"answer": "30 min"}),
        (answer_number(), "Where is order 4417?", {"answer": 12}),
        (answer_number(max_words=3), "well it is surely 12", {"answer": 12}),
        (answer_set(), "A-1, B-2", {"answer": ["A-1", "B-2", "C-3"]}),
        (answer_set(), "A-1, B-2, C-3", {"answer": ["A-1", "B-2"]}),
        (answer_set(), "A-1 or B-2", {"answer": ["A-1", "B-2"]}),
        (answer_set(), "The ones to exclude are: A-1 and B-2", {"answer": ["A-1", "B-2"]}),
        (answer_set(), "not A-1, B-2", {"answer": ["A-1", "B-2"]}),
        (answer_set(), "None of these: A-1, B-2", {"answer": ["A-1", "B-2"]}),
        (answer_set(), "It isn't true that they are: A-1, B-2", {"answer": ["A-1", "B-2"]}),
        (answer_set(), "I found A-1 and B-2", {"answer": ["A-1", "B-2"]}),
        (answer_set(), "[]", {"answer": ["A-1"]}),
        (answer_set(), "1,000 and 2,000, 3", {"answer": [1000, 2000]}),
        (answer_set(), "17,204", {"answer": [17, 20]}),
        (answer_set(), "1,000,2,000", {"answer": [1000, 2000, 3]}),
        (answer_set(), "1,000,2,000,3", {"answer": [1000, 2000]}),
        (answer_set(), "-1,000,2,000", {"answer": [1000, 2000]}),
        (answer_set(), "100,200, 100200", {"answer": [100, 200, 100200]}),  # 100 and 200 or 100200
        (answer_set(), "1,2," * 5_000 + "1", {"answer": [1000, 2]}),
        (answer_pattern(r"[A-Z]{2}-\d+"), "It is TX-9", {}),
        (answer_pattern("yes"), "yes, or no", {}),
        (answer_json(), '{"a": 1} {"a": 1}', {"answer_json": {"a": 1}}),
        (answer_json(), 'Sure: {"a": 1}', {"answer_json": {"a": 1}}),
        (answer_json(), '{"a": 2, "a": 1}', {"answer_json": {"a": 1}}),
        (answer_json(), '{"a": true}', {"answer_json": {"a": 1}}),
        (answer_json(), '{"a": 1, "b": 2}', {"answer_json": {"a": 1}}),
        (answer_json(), '{"a": NaN}', {"answer_schema": {}}),
        (answer_json(), "1e999", {"answer_schema": {"type": "number"}}),
        (answer_json(), '["\\ud83d"]', {"answer_schema": {"type": "array"}}),
        (answer_json(), "[" * 100_000, {"answer_schema": {}}),
        (answer_json(), "4", {"answer_schema": {"minimum": 5}}),
        (answer_json(schema={"type": "object"}), '{"a": 2}', {"answer_json": {"a": 1}}),
    ],
)
async def test_another_a_hedged_or_an_ill_formed_answer_does_not(verifier, answer, expected):
    assert await judge(verifier, answer, expected) == 0


@pytest.mark.parametrize("verifier", [answer_exact(), answer_number(), answer_set(), answer_pattern(), answer_json()])
async def test_a_rollout_that_was_cut_off_has_no_answer(verifier):
    expected = {"answer": "1", "answer_pattern": "1", "answer_json": 1}
    expected["answer"] = ["1"] if isinstance(verifier, answer_set) else "1"
    assert await judge(verifier, "1", expected) == 1
    assert await judge(verifier, "1", expected, stop_reason="token_limit") == 0


@pytest.mark.parametrize(
    ("verifier", "answer", "expected", "message"),
    [
        (answer_pattern("(a|aa)+b"), "a" * 60, {}, r"took more than 0.5 s on .* write a pattern that backtracks less"),
        (answer_pattern("a*"), "a", {}, "matches an empty text"),
        (answer_pattern("("), "a", {}, "is not a regular expression"),
        (answer_pattern(), "a", {}, r"give expected\['answer_pattern'\], a regular expression"),
        (
            answer_json(schema={"pattern": r"^(?=a)(a|aa)+(?!b)\1?$"}),
            f'"{"a" * 60}!"',
            {},
            "takes too long to check",
        ),
        (answer_json(schema={"$ref": "http://localhost:1/x"}), "{}", {}, "not a JSON Schema that can be used"),
        (answer_json(), "{}", {}, r"give expected\['answer_json'\]"),
        (answer_number(), "12", {"answer": "a dozen"}, "which is not one number"),
        (answer_number(), "12", {"answer": True}, "which is not one number"),
        (answer_number(), "12", {"answer": {"value": 12, "unit": "parsec"}}, "with a unit among"),
        (answer_exact(), "12", {"answer": [""]}, "must be a text or a list of acceptable texts"),
        (answer_set(), "12", {"answer": []}, "must be a list of texts and numbers"),
        (answer_set(), "12", {"answer": [12, []]}, "or of lists of acceptable ones"),
    ],
)
async def test_a_task_that_cannot_be_judged_leaves_the_rollout_unscored(verifier, answer, expected, message):
    with pytest.raises(VerifierError, match=message):
        await judge(verifier, answer, expected)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: answer_number(within=-1), "within is -1"),
        (lambda: answer_number(relative=1.0), "relative is 1.0; it is a share"),
        (lambda: answer_json(compare="like"), "compare is 'like'"),
    ],
)
def test_options_that_cannot_work_are_refused(build, message):
    with pytest.raises(ConfigError, match=message):
        build()


@pytest.mark.parametrize(
    ("answer", "score"),
    [
        ("C, B and A", 1),
        ("A, B", 4 / 5),  # precision 1, recall 2/3
        ("A, B, C, D", 6 / 7),
        ("A, A, A", 2 / 6),
        ("D, E", 0),
        ("None of A, B, C", 0),
        ("", 0),
    ],
)
async def test_a_part_of_the_set_earns_its_f1_where_parts_count(answer, score):
    assert await judge(answer_set(partial=True), answer, {"answer": ["A", "B", "C"]}) == pytest.approx(score)
    assert await judge(answer_set(), answer, {"answer": ["A", "B", "C"]}) == float(score == 1)


@given(wanted=st.sets(st.integers(1, 30), min_size=1), found=st.lists(st.integers(1, 30), min_size=1, unique=True))
def test_the_f1_of_a_set_is_the_harmonic_mean_of_precision_and_recall(wanted, found):
    hits = len(wanted & set(found))
    precision, recall = hits / len(found), hits / len(wanted)
    f1 = 2 * precision * recall / (precision + recall) if hits else 0
    said = "; ".join(map(str, found))
    score = anyio.run(judge, answer_set(partial=True), said, {"answer": sorted(wanted)})
    assert score == pytest.approx(f1)
