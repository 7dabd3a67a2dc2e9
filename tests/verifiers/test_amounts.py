"""Amounts in an answer: their currencies, units and bounds."""

import pytest
from rollouts_for_verifiers import rollout

from mcp_bridge.records import ToolResult
from sdk.verifiers import answer_match, answer_set, as_expected, calls_match, grounded, run_verifier


async def score(verifier, answer, gold, *, prompt="How much is it?", **fields):
    judged = rollout(answer, expected={"answer": gold}, prompt=prompt, **fields)
    return (await run_verifier(verifier, judged)).score


@pytest.mark.parametrize("verifier", [answer_match(), as_expected()])
@pytest.mark.parametrize(
    ("gold", "right", "wrong"),
    [
        ("12 USD", ["12 USD", "$12.00", "12 dollars", "12 US dollars", "12"], ["12 EUR", "12 Canadian dollars"]),
        ("$12", ["$12", "USD 12"], ["€12", "€ 12", "EUR12", "12 CAD", "12 cents"]),
        ("12 dollars", ["12 Dollars", "12"], ["12 pounds", "£12", "$12 (€12)"]),
        ("1200.5 EUR", ["1,200.50 EUR", "1.200,50 €", "1200.5"], ["1,200.50 USD", "$1,200.50"]),
        (12, ["12 EUR", "$12", "12"], []),
        (["12 EUR", "13 USD"], ["€12", "$13"], ["$12", "13 euros"]),
    ],
)
async def test_an_amount_in_another_currency_is_wrong_and_one_without_a_currency_is_not(verifier, gold, right, wrong):
    scores = {one: await score(verifier, one, gold) for one in (*right, *wrong)}
    assert scores == dict.fromkeys(right, 1) | dict.fromkeys(wrong, 0)


async def test_a_whole_answer_in_another_currency_is_wrong():
    assert await score(answer_match(whole=True), "€12.00", "12 EUR") == 1
    assert await score(answer_match(whole=True), "$12.00", "12 EUR") == 0


async def test_a_list_of_amounts_in_another_currency_is_wrong():
    assert await score(answer_set(), "$7, 5 dollars", ["5 USD", "7 USD"]) == 1
    assert await score(answer_set(), "7 EUR, 5 USD", ["5 USD", "7 USD"]) == 0


@pytest.mark.parametrize("pattern", [{"$text": "refund 12 EUR"}, {"$says": "12 EUR"}])
async def test_an_argument_that_names_another_currency_does_not_fit(pattern):
    expected = {"calls": [{"name": "note", "arguments": {"text": pattern}}]}
    for text, earns in (("Refund €12", 1), ("refund 12", 1), ("refund 12 USD", 0)):
        one = rollout("done", expected=expected, calls=[("note", {"text": text})])
        assert (await run_verifier(calls_match(), one)).score == earns, text


@pytest.mark.parametrize("text", ["It costs 40 EUR.", '{"price": 40, "currency": "EUR"}', "€40.00"])
async def test_a_currency_that_no_result_names_comes_from_nowhere(text):
    one = rollout("", expected={"answer": 40}, prompt="How much is it?", calls=[("price", {})])
    one.calls[0].result = ToolResult(text=text)
    for answer, earns in (("It costs 40 EUR.", 1), ("It costs 40 euros.", 1), ("It costs $40.", -1)):
        one.answer = answer
        assert (await run_verifier(grounded(answer_match()), one)).score == earns, answer


async def test_an_amount_may_have_a_currency_where_no_result_names_one():
    one = rollout("It costs 40 EUR.", expected={"answer": 40}, prompt="How much is it?", calls=[("price", {})])
    one.calls[0].result = ToolResult(text="40")
    assert (await run_verifier(grounded(answer_match()), one)).score == 1
