"""Answers that give several candidates instead of one: those of the prompt, and those of a policy's own."""

import pytest
from rollouts_for_verifiers import rollout

from sdk.verifiers import answer_match, answer_number, as_expected, run_verifier


async def score(verifier, answer, gold, prompt):
    return (await run_verifier(verifier, rollout(answer, expected={"answer": gold}, prompt=prompt))).score


LATE = "Which of the orders A-17, A-19 and A-23 is late?"
NUMBERS = "Which of the orders 17, 19 and 23 is late?"


@pytest.mark.parametrize(
    ("prompt", "candidates", "answers"),
    [
        (
            LATE,
            ["A-17", "A-19", "A-23"],
            [
                "A-17, A-19, A-23",
                "A-17, A-19 and A-23",
                "A-17 A-19 A-23",
                "A-17\nA-19\nA-23",
                "Orders A-17, A-19 and A-23 are late.",
                "Order A-17, order A-19 and order A-23 are late.",
                "A-17: late\nA-19: late\nA-23: late",
                "A-17 is late, A-19 is late, A-23 is late",
                "It is A-17. It is A-19. It is A-23.",
                "A-17 as well as A-19, together with A-23",
            ],
        ),
        (
            "Which of Anna, Ben and Carla has paid?",
            ["Anna", "Ben", "Carla"],
            ["Anna, Ben and Carla", "Anna, Ben, Carla have paid.", "Anna has paid. Ben has paid. Carla has paid."],
        ),
        ("Who has paid: Anna, Ben or Carla?", ["Anna", "Ben", "Carla"], ["Anna and Ben and Carla", "Anna Ben Carla"]),
        ("Is the cheapest one A, B, C or D?", ["A", "B", "C", "D"], ["A, B, C, D", "A, B, C and D"]),
        ("Is it red, green or blue?", ["red", "green", "blue"], ["red, green, blue", "It is red and green and blue."]),
        ("Is it Alba or Brava?", ["Alba", "Brava"], ["Alba and Brava", "Alba Brava", "Alba; it is also Brava"]),
        ("Which is open?\n- Alba\n- Brava\n- Corso", ["Alba", "Brava", "Corso"], ["- Alba\n- Brava\n- Corso"]),
        ("Is it at 10:00 or 11:00?", ["10:00", "11:00"], ["10:00 and 11:00", "It is at 10:00. It is at 11:00."]),
    ],
)
@pytest.mark.parametrize("verifier", [answer_match(), as_expected()])
async def test_one_answer_with_all_candidates_of_the_prompt_is_right_for_none(verifier, prompt, candidates, answers):
    for gold in candidates:
        assert await score(verifier, f"It is {gold}.", gold, prompt) == 1
        assert [one for one in answers if await score(verifier, one, gold, prompt)] == [], gold


@pytest.mark.parametrize(
    ("prompt", "candidates", "answers"),
    [
        (
            NUMBERS,
            [17, 19, 23],
            ["17, 19, 23", "17 19 23", "17, 19 and 23", "Order 17, order 19 and order 23 are late."],
        ),
        (
            "Which order is late, 17 or 19?",
            [17, 19],
            ["17 and 19", "Both 17 and 19.", "17 19", "17 and 19 are late", "17. 19."],
        ),
        (
            "Is it 12 kg or 13 kg?",
            ["12 kg", "13 kg"],
            ["12 kg and 13 kg", "It is 12 kg, it is 13 kg", "12 kg 13 kg", "12 kg / 13 kg", "12 kg (13 kg)"],
        ),
        ("Is the bay of order 4417 number 3, 5 or 8?", [3, 5, 8], ["3, 5, 8", "3 5 8", "3, 5 and 8"]),
    ],
)
@pytest.mark.parametrize("verifier", [answer_match(), answer_number()])
async def test_one_answer_with_all_numbers_of_the_prompt_is_right_for_none(verifier, prompt, candidates, answers):
    for gold in candidates:
        assert await score(verifier, f"It is {gold}.", gold, prompt) == 1
        assert [one for one in answers if await score(verifier, one, gold, prompt)] == [], gold


@pytest.mark.parametrize(
    ("prompt", "gold", "answers"),
    [
        (
            LATE,
            "A-19",
            [
                "A-19 is late, A-17 and A-23 are not",
                "A-19 is late; A-17 and A-23 are on time.",
                "A-17: on time\nA-19: late\nA-23: on time",
                "It isn't A-17 or A-23, it's A-19.",
                "A-19 (not A-17 or A-23)",
                "Of A-17, A-19 and A-23, only A-19 is late.",
                "The answer is A-19. A-17 was delivered on time.",
            ],
        ),
        (NUMBERS, 19, ["Order 19 (not 17 or 23) is late.", "Of 17, 19 and 23 only 19 is late", "19 is later than 17"]),
        ("Which of Anna, Ben and Carla has paid?", "Ben", ["Between Anna, Ben and Carla, Ben has paid"]),
        ("Who lives with Ben and Carla, Anna or Dora?", "Anna", ["Anna lives with Ben and Carla."]),
        ("Order 17 has 12 parcels; is 12 right?", 12, ["Order 17 has 12 parcels.", "Order 17: 12 parcels"]),
        ("In 2024, were 17 or 19 sent?", 19, ["In 2024, 19 were sent."]),
        ("Which is larger, alpha or beta?", "alpha", ["alpha is larger", "alpha, larger than beta"]),
        ("Was it moved from 2026-01-05 or 2026-01-06?", "2026-01-06", ["From 2026-01-06."]),
        ("Which of A-1, A-2 and A-3 are late?", {"all": ["A-1", "A-2"]}, ["A-1 and A-2", "A-1 and A-2, not A-3"]),
    ],
)
async def test_an_answer_that_chooses_among_the_candidates_of_the_prompt_is_right(prompt, gold, answers):
    assert [one for one in answers if not await score(answer_match(), one, gold, prompt)] == []


async def test_all_items_and_one_more_of_the_prompt_are_wrong():
    gold = {"all": ["A-1", "A-2"]}
    assert await score(answer_match(), "A-1, A-2 and A-3", gold, "Which of A-1, A-2 and A-3 are late?") == 0


TOWNS = ["Vienna", "Linz", "Wels", "Graz", "Enns", "Steyr", "Krems", "Baden"]
PLACES = ["at the depot", "in the truck", "at the door", "in the hall", "on the shelf"]


@pytest.mark.parametrize(
    "answer",
    [
        " ".join(f"It is in {town}." for town in TOWNS),
        " ".join(f"In {town}." for town in TOWNS),
        " ".join(f"Try {town}." for town in TOWNS),
        " ".join(f"{town} has it." for town in TOWNS),
        "It is " + " and it is ".join(f"in {town}" for town in TOWNS),
        "It is in Vienna. It is in Linz. It is in Graz.",
    ],
)
async def test_a_guess_in_each_of_many_short_sentences_is_no_answer(answer):
    assert await score(answer_match(), answer, "Graz", "Where is parcel 17?") == 0
    assert await score(answer_match(other_values=9), answer, "Graz", "Where is parcel 17?") == 1


@pytest.mark.parametrize("joint", [". It is ", "; it is ", " and it is "])
async def test_a_guess_at_each_of_many_places_is_no_answer(joint):
    assert await score(answer_match(), f"It is {joint.join(PLACES)}.", "in the truck", "Where is parcel 17?") == 0


@pytest.mark.parametrize(
    "answer",
    [
        "It is in Graz. It is in Austria.",
        "It is not in Wels. It is not in Linz. It is not in Enns. It is in Graz.",
        "Parcel 17 is in Graz, in Austria.",
        "It is in Graz and it is closed.",
    ],
)
async def test_sentences_that_say_more_of_the_right_value_are_no_guesses(answer):
    assert await score(answer_match(), answer, "Graz", "Where is parcel 17?") == 1


@pytest.mark.parametrize("verifier", [answer_match(), answer_number()])
async def test_several_numbers_in_words_are_no_answer(verifier):
    for gold, right, wrong in (
        (12, ["twelve", "There are 12, in two boxes"], ["twelve, thirteen or fourteen", "twelve thirteen fourteen"]),
        (12, ["There are twelve."], ["between twelve and thirteen", "eleven twelve", "twelve, twenty"]),
        (13, ["thirteen"], ["thirteen hundred", "thirteen, fourteen"]),
        (20, ["There are twenty."], ["twenty-one", "twenty one", "twenty five", "twenty thousand", "twenty thirty"]),
    ):
        scores = {one: await score(verifier, one, gold, "How many parcels are there?") for one in (*right, *wrong)}
        assert scores == dict.fromkeys(right, 1) | dict.fromkeys(wrong, 0)


@pytest.mark.parametrize(
    ("prompt", "gold", "answers"),
    [
        ("Is parcel 17 in Graz, Linz or Wels?", "Linz", ["Graz and Linz", "In Graz and in Linz."]),
        ("Do you ship with DHL, UPS or FedEx?", "UPS", ["DHL and UPS"]),
        (NUMBERS, "19", ["17 is late 19 is late 23 is late"]),
        (LATE, "A-19", ["try A-17 try A-19 try A-23"]),
    ],
)
async def test_a_list_with_one_preposition_or_without_commas_is_a_list(prompt, gold, answers):
    for answer in answers:
        assert await score(answer_match(), answer, gold, prompt) == 0, answer


@pytest.mark.parametrize(
    ("prompt", "gold", "answers"),
    [
        (
            "Is it cheaper to ship with DHL, UPS or FedEx?",
            "UPS",
            [
                "UPS is cheaper than DHL and FedEx.",
                "UPS. DHL and FedEx are more expensive.",
                "UPS, because DHL and FedEx charge more.",
            ],
        ),
        ("Did A-17 or A-19 arrive first?", "A-17", ["A-17 arrived first, then A-19.", "A-17, because A-19 was late."]),
        ("Which is larger, 12 or 15?", "15", ["15 > 12", "15 is larger than 12."]),
        (NUMBERS, "19", ["The late order is 19, while 17 and 23 were delivered."]),
        ("Where is parcel 17?", "Graz", ["It is in Graz. It is delayed. It is heavy."]),
        ("How many are there?", 3, ["There are three, in two bays.", "There are 3, in two bays."]),
        ("How many orders came?", 12, ["There are twelve, two of them open."]),
    ],
)
async def test_an_answer_that_says_more_of_its_choice_is_right(prompt, gold, answers):
    for answer in answers:
        assert await score(answer_match(), answer, gold, prompt) == 1, answer


async def test_long_prompts_with_many_amounts_are_judged_as_others():
    prompt = "How heavy is A-7? " + "".join(f"A-{n}, {12 if n % 2 else 7 + n} kg, 3 boxes\n" for n in range(300))
    assert await score(answer_number(), "12 kg", "12 kg", prompt) == 1
    spaces = " " * 10_000
    assert await score(answer_number(), "16", 16, f"Which{spaces}15 or 16?") == 1
