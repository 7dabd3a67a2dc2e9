"""Amounts in an answer: their currencies, units and bounds."""

import pytest
from rollouts_for_verifiers import rollout

from mcp_bridge.records import ToolResult
from sdk.verifiers import answer_match, answer_number, answer_set, as_expected, calls_match, grounded, run_verifier
from sdk.verifiers.text_tokens import currencies, tokenize


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


BOUNDED = [
    "5+",
    "5+ nurses",
    "5 plus",
    "a minimum of 5",
    "It exceeds 5.",
    "max 5",
    "min. 5",
    "minimum 5",
    "5 minimum",
    "over 5",
]
BOUNDED += ["upwards of 5", "in excess of 5", "as many as 5", "within 5", "5 and above", "5 and counting", "at least 5"]
MULTIPLIED = ["5 hundred", "5 and a half", "5k", "5 k", "5½", "5²", "5^2", "5x2", "5 x 2", "5 1/2", "5 pairs"]
MULTIPLIED += ["5 too many"]
PLAIN = ["5", "There are 5 nurses.", "The minimum is 5.", "Minimum: 5", "5 nurses and a doctor", "five nurses"]


@pytest.mark.parametrize("verifier", [answer_match(), answer_number()])
async def test_a_number_that_is_a_limit_or_a_part_of_another_amount_is_wrong(verifier):
    asked = {"prompt": "How many nurses are there?", "verifier": verifier}
    answers = (*BOUNDED, *MULTIPLIED, *PLAIN)
    assert [one for one in answers if await score(answer=one, gold=5, **asked)] == PLAIN


OTHER_NUMBERS = ["minus 5", "minus five", "negative 5", "-5", "5 %", "5%", "5 percent"]
ESTIMATES = ["about 5", "It is around 5.", "roughly five", "approximately 5", "approx. 5", "circa 5", "~5", "\u2248 5"]
ESTIMATES += ["5 or so", "5ish", "5 approximately"]


@pytest.mark.parametrize("verifier", [answer_match(), answer_number()])
async def test_an_estimate_a_negative_number_and_a_percentage_are_no_number_of_things(verifier):
    asked = {"prompt": "How many nurses are there?", "verifier": verifier}
    answers = (*OTHER_NUMBERS, *ESTIMATES, *PLAIN)
    assert [one for one in answers if await score(answer=one, gold=5, **asked)] == PLAIN


@pytest.mark.parametrize("verifier", [answer_match(), answer_number()])
async def test_a_number_may_have_a_sign_in_words_and_an_estimate_or_a_percentage_that_is_asked_for(verifier):
    for prompt, answer, gold in (
        ("How cold is it?", "minus five", -5),
        ("How cold is it?", "It is negative 5.", -5),
        ("How much is ten minus five, and minus two?", "10 minus 5, minus 2, is 3.", 3),
        ("About how many nurses are there?", "about 5", 5),
        ("How many percent are late?", "5 %", 5),
        ("How many orders are late, in percent?", "5 %", 5),
        ("How many of them are late?", "5 %", 5),
        ("What is the discount?", "5 %", 5),
    ):
        assert await score(verifier, answer, gold, prompt=prompt) == 1, answer


async def test_a_share_of_a_temperature_is_one_of_its_number():
    for answer, right in (("20.1 °C", 1), ("19.8 °C", 1), ("22 °C", 0), ("0 °C", 0), ("293.25 K", 1)):
        assert await score(answer_number(relative=0.01), answer, "20 °C") == right, answer


async def test_a_tolerance_takes_estimates():
    assert await score(answer_number(relative=0.1), "about 12.5 kg", "12 kg") == 1
    assert await score(answer_number(within=1), "~12.5 kg", "12 kg") == 1
    assert await score(answer_number(), "about 12 kg", "12 kg") == 0


@pytest.mark.parametrize(
    ("prompt", "answer", "gold"),
    [
        ("How many pairs are left?", "5 pairs", 5),
        ("Within how many days must I return it?", "Within 5 days.", "5 days"),
        ("What is the minimum weight?", "minimum 5 kg", "5 kg"),
        ("How much is it per day?", "12 kg per day", "12 kg"),
        ("How much does a chair cost?", "12 EUR per chair", "12 EUR"),
        ("How much was it?", "12 EUR a week ago", "12 EUR"),
    ],
)
@pytest.mark.parametrize("verifier", [answer_match(), answer_number()])
async def test_an_amount_may_have_the_limit_and_the_rate_that_are_asked_for(verifier, prompt, answer, gold):
    assert await score(verifier, answer, gold, prompt=prompt) == 1


@pytest.mark.parametrize("joint", [" ", " and ", ", ", ", and "])
async def test_hours_and_minutes_are_one_amount_whatever_joins_them(joint):
    assert await score(answer_number(), f"It takes 1 hour{joint}30 minutes.", "90 min") == 1
    assert await score(answer_number(), f"It takes 1 hour{joint}30 minutes.", "1 hour") == 0


@pytest.mark.parametrize("verifier", [answer_match(), answer_number()])
@pytest.mark.parametrize(
    ("answer", "gold"), [("12 kg per day", "12 kg"), ("12 kg a day", "12 kg"), ("€12 per unit", "12 EUR")]
)
async def test_an_amount_per_something_is_another_where_the_whole_is_asked_for(verifier, answer, gold):
    assert await score(verifier, answer, gold) == 0


@pytest.mark.parametrize(
    ("gold", "right", "wrong"),
    [
        ("5 mW", ["5 mW", "0.005 W"], ["5 MW", "5,000,000 W"]),
        ("5 MW", ["5000 kW", "5 MW"], ["5 mW"]),
        ("12 mg", ["12 mg", "12 MG"], ["12 Mg"]),
        ("12 GB", ["12 gb", "12000 MB"], ["12 Gb", "12000 Mb"]),
        ("5 K", ["5 K", "5 kelvin"], ["5 k"]),
        ("12 kg", ["12 KG", "12 Kg"], []),
    ],
)
async def test_a_unit_whose_case_makes_it_another_unit_is_another(gold, right, wrong):
    scores = {one: await score(answer_number(), one, gold) for one in (*right, *wrong)}
    assert scores == dict.fromkeys(right, 1) | dict.fromkeys(wrong, 0)


@pytest.mark.parametrize(
    ("gold", "right", "wrong"),
    [
        ("-5 °C", ["It is -5 degrees Celsius.", "-5 C", "-5C", "-5 deg C", "23 °F"], ["5 C", "-5 F", "-5"]),
        ("12 kg", ["12 kgs", "12kgs"], ["12 kgx"]),
        ("3 h", ["3 hrs"], ["3 hrx"]),
        ("12.5 USD", ["US$ 12.50", "US$12.50", "USD12.50"], ["EUR12.50", "CA$ 12.50"]),
        ("10 %", ["10 per cent", "10 percent"], ["10 per day"]),
        ("150 min", ["2h30m", "2h 30min", "2 h 30 min"], ["2h31m", "2h"]),
        (0.5, [".5", "It is .5."], ["5", ".55"]),
    ],
)
async def test_an_amount_may_be_written_as_people_do(gold, right, wrong):
    scores = {one: await score(answer_number(), one, gold) for one in (*right, *wrong)}
    assert scores == dict.fromkeys(right, 1) | dict.fromkeys(wrong, 0)


async def test_a_minus_in_words_and_a_power_of_ten_are_read_where_one_is_expected():
    assert await score(answer_match(), "minus 5 °C", "-5 °C") == 1
    assert await score(answer_match(), "minus 6 °C", "-5 °C") == 0
    assert await score(answer_match(), "1e-07", 1e-07) == 1
    assert await score(answer_match(), "1e-08", 1e-07) == 0


async def test_a_unit_that_is_not_known_is_named_with_the_one_that_is_expected():
    for answer, read in (
        ("It is 12 stone.", "'stone' after it is not a known unit"),
        ("12", "no unit is read after it"),
    ):
        verdict = await run_verifier(answer_number(), rollout(answer, expected={"answer": "12 kg"}))
        assert f"its number is 12, and {read}; '12 kg' needs a unit of mass" in verdict.explanation


BLANK = {"blanks": " " * 90_000, "lines": "\n" * 90_000, "blank lines": " \n\t" * 30_000, "unseen": " \u200b" * 40_000}


@pytest.mark.timeout(20)
@pytest.mark.parametrize("blank", BLANK)
async def test_an_answer_with_much_white_space_is_read_at_once(blank):
    blank = BLANK[blank]
    assert await score(answer_set(), f"A-1{blank}and B-2", ["A-1", "B-2"]) == 1
    assert await score(answer_number(), f"There are{blank}12 parcels.", 12) == 1
    assert await score(answer_match(), f"There are{blank}12 parcels.", 12) == 1
    assert await score(answer_match(), f"Yes,{blank}it is.", True, prompt="Is it paid?") == 1
    assert (
        await score(grounded(answer_match()), f"It is{blank}in the truck.", "in the truck", prompt="Where is it?") <= 0
    )


@pytest.mark.timeout(20)
@pytest.mark.parametrize("verifier", [answer_set(), answer_number(), answer_match(), grounded(answer_match())])
async def test_an_answer_that_is_too_long_to_be_read_is_wrong(verifier):
    gold = [12] if isinstance(verifier, answer_set) else 12
    verdict = await run_verifier(verifier, rollout("12" + " ." * 60_000, expected={"answer": gold}))
    assert verdict.score == (-1 if isinstance(verifier, grounded) else 0)
    assert "characters, more than 100000" in verdict.explanation


async def test_a_power_and_a_fraction_do_not_lengthen_a_number():
    assert await score(answer_match(), "5²", 52) == await score(answer_match(), "5½", 51) == 0
    assert await score(answer_match(), "5 km²", "5 km2") == 1


@pytest.mark.parametrize("space", ["\u00a0", "\u202f", "\u2009"])
async def test_thousands_with_a_narrow_space_and_a_decimal_comma_are_one_number(space):
    for verifier, gold in ((answer_match(), 3577.92), (answer_number(), "3577.92 EUR")):
        assert await score(verifier, f"3{space}577,92 €", gold) == 1
        assert await score(verifier, f"3{space}577 €", gold) == 0
    assert await score(answer_match(), f"3{space}577", 3577) == 1


async def test_pounds_are_money_where_money_is_expected_and_a_mass_where_a_mass_is():
    assert await score(answer_number(), "12 pounds", "12 GBP") == 1
    assert await score(answer_number(), "12 pounds", "12 lb") == 1
    assert await score(answer_number(), "12 lb", "12 GBP") == 0
    assert await score(answer_number(), "£12", "12 lb") == 0


@pytest.mark.parametrize(
    ("answer", "earns"),
    [
        ("2026-01-05T10:00:00", 1),
        ("2026-01-05 10:00:00", 1),
        ("2026-01-05 at 10:00", 1),
        ("It starts on January 5, 2026 at 10:00 AM.", 1),
        ("5 January 2026, 10 am", 1),
        ("2026-01-05 at 10:30", 0),
        ("2026-01-05T10:00:30", 0),
        ("2026-01-06 at 10:00", 0),
        ("2026-01-05", 0),
    ],
)
async def test_a_date_at_a_time_is_the_same_in_each_of_its_forms(answer, earns):
    assert await score(answer_match(), answer, "2026-01-05T10:00:00", prompt="When does it start?") == earns


@pytest.mark.timeout(20)
@pytest.mark.parametrize("text", ["1" + "\u202f111" * 30_000, "2026-01-05 " * 10_000, "12 Abc " * 20_000])
def test_numbers_dates_and_currencies_are_read_in_time_that_grows_with_the_text(text):
    assert tokenize(text)
    currencies(text)
