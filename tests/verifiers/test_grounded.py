"""What comes from nowhere costs more than not knowing: arguments, claims, citations."""

import sys
import threading

import anyio
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcp_bridge.records import ToolResult
from sdk.errors import ConfigError, VerifierError
from sdk.records import CallRecord, Rollout, Task, ToolCall
from sdk.verifiers import answer_match, answer_number, grounded, minicheck, run_verifier
from sdk.verifiers.grounding import abstains, lexical_support, ungrounded_arguments

FIND = ("find_customer", {"name": "Lena Abbott"}, "C-17: Lena Abbott, gold, lives in Graz")
ORDER = ("get_order", {"customer": "C-17"}, "Order 4417 shipped on Monday")


def one(answer, *calls, prompt="Where is the order of Lena Abbott?", expected="shipped"):
    """`calls`: (name, arguments, result text), each in a turn of its own; a result "!" is an error."""
    records = [
        CallRecord(
            turn=turn,
            call=ToolCall(id=f"call_{turn}", name=name, arguments=arguments),
            result=ToolResult(text=text, is_error=text == "!"),
        )
        for turn, (name, arguments, text) in enumerate(calls, 1)
    ]
    return Rollout(
        id="r", task=Task(id="t", prompt=prompt, expected={"answer": expected}), answer=answer, calls=records
    )


@pytest.mark.parametrize(
    ("answer", "score"),
    [
        ("It weighs 12 kg [#1].", 1),
        ("It weighs 12 kg [call_1].", 1),
        ("It weighs 12 kg, and I'm happy to help further [#1].", 1),
        ("It weighs 12 kg [#2].", -1),  # cites what is no call
        ("It weighs 13 kg [#1].", -1),
        ("I don\u2019t know.", 0),
        ("I'm sorry, but I'm unable to find it.", 0),
        ("I have no idea.", 0),
        ("I don't have access to that information.", 0),
    ],
)
async def test_the_name_of_a_call_is_no_part_of_the_answer_and_whoever_does_not_know_may_say_so_in_many_ways(
    answer, score
):
    judged = one(answer, ("weigh", {"x": "parcel"}, "12 kg"), prompt="How heavy is the parcel?", expected="12 kg")
    assert (await run_verifier(grounded(answer_number(), citations="required"), judged)).score == score


@pytest.mark.parametrize("name", ["Zeta", "Österpost", "Łódź", "Δέλτα", "Волга"])
async def test_a_name_from_nowhere_counts_in_any_alphabet(name):
    judged = one(f"It shipped to {name}.", FIND, ORDER)
    assert (await run_verifier(grounded(answer_match()), judged)).score == -1
    told = one(f"It shipped to {name}.", FIND, ("get_order", {"customer": "C-17"}, f"Order 4417 shipped to {name}"))
    assert (await run_verifier(grounded(answer_match()), told)).score == 1


@pytest.mark.timeout(30)
async def test_an_answer_of_the_same_sentence_again_and_again_is_checked_once():
    text = " ".join(f"Order {number} shipped to Graz." for number in range(5000))
    judged = one("Order 4417 shipped to Graz.\n" * 2000, ("look", {"x": "order"}, text))
    assert (await run_verifier(grounded(always(1.0)), judged)).score == 1


def always(score):
    async def right(rollout):
        return score

    return right


async def score(answer, *calls, right=None, **options):
    return (await run_verifier(grounded(right or always(1), **options), one(answer, *calls))).score


async def test_what_is_traceable_scores_what_is_right():
    answer = "Order 4417 of Lena Abbott shipped on Monday."
    assert await score(answer, FIND, ORDER) == 1
    assert await score(answer, FIND, ORDER, right=always(0.3)) == 0.3
    assert await score("It shipped [call_2].", FIND, ORDER, right=answer_match(), citations="required") == 1
    assert await score("It shipped. [#2]", FIND, ORDER, citations="required") == 1


@pytest.mark.parametrize(
    ("answer", "calls", "options", "reason"),
    [
        ("Order 4418 shipped on Monday.", (FIND, ORDER), {}, "not supported"),
        ("Order 4417 shipped to Vienna.", (FIND, ORDER), {}, "not supported"),
        ("It shipped. It weighs 12 kg.", (FIND, ORDER), {}, "12 kg"),
        ("It shipped.", (FIND, ("get_order", {"customer": "C-18"}, "shipped")), {}, "get_order.customer='C-18'"),
        ("It shipped.", (ORDER,), {}, "get_order.customer='C-17'"),
        ("Order 4417 shipped [call_1].", (FIND, ORDER), {}, "not supported"),
        ("It shipped [call_9].", (FIND, ORDER), {}, "not a call that worked: call_9"),
        ("It shipped [#3].", (FIND, ORDER, ("get_order", {"customer": "C-17"}, "!")), {}, "not a call that worked: #3"),
        ("It shipped.", (FIND, ORDER), {"citations": "required"}, "cites nothing"),
        ("It shipped.", (), {}, "not supported"),
        ("It shipped.", (FIND, ("find", {"name": "%"}, "shipped")), {}, "find.name='%'"),
        ("It shipped.", (("find", {"name": " * "}, "shipped"),), {}, "find.name=' * '"),
        ("It shipped.", (("find", {"by": {"C-99": True}}, "shipped"),), {}, "find.by.C-99='C-99'"),
        ("It shipped.", (("find", {"by": [{"ORDER_9": 1}]}, "shipped"),), {}, "find.by.ORDER_9='ORDER_9'"),
    ],
)
async def test_what_comes_from_nowhere_costs_more_than_not_knowing(answer, calls, options, reason):
    verdict = await run_verifier(grounded(always(1), **options), one(answer, *calls))
    assert verdict.score == -1
    assert reason in verdict.explanation


async def test_signs_and_keys_that_were_read_or_are_fields_are_grounded():
    asked = "Find all customers (name: % ) and Lena Abbott of C-17"
    found = [
        ("find", {"name": "%", "by": {"C-17": True, "line_2": "", "addressLine2": "Lena Abbott"}, "note": " "}, "x"),
    ]
    assert ungrounded_arguments(one("", *found, prompt=asked)) == []


OTHER = ("get_order", {"customer": "C-17"}, "Order 4420 of Lena Abbott is delayed, due on Friday, 30 kg")
RIGHT, WRONG, NOWHERE = 1, -0.5, -1


@pytest.mark.parametrize(
    ("answer", "expected", "worth"),
    [
        ("Order 4417 shipped on Monday.", "Monday", RIGHT),
        ("It left us on Monday, at the very start of this week.", "Monday", RIGHT),
        ("The goods have gone out; Monday was the day.", "Monday", RIGHT),
        ("Both together weigh 42 kg.", 42, RIGHT),  # computed from the results
        ("I don't know.", "Monday", 0),
        ("I could not find the order of Lena Abbott.", "Monday", 0),
        ("I'm unable to find the order of Lena Abbott.", "Monday", 0),
        ("Sorry, I can't help with that.", "Monday", 0),
        ("", "Monday", 0),
        ("Order 4417 is delayed, due on Friday.", "Monday", WRONG),  # the right words, of another order
        ("Order 4417 of Lena Abbott.", "Monday", WRONG),
        ("It went out.", "Monday", WRONG),
        ("Order 4417 shipped on Tuesday.", "Monday", NOWHERE),
        ("Order 4417 shipped on Monday to Vienna.", "Monday", NOWHERE),
        ("I don't know, but order 9 shipped on Monday.", "Monday", NOWHERE),
        ("Both together weigh 43 kg.", 42, NOWHERE),
    ],
)
async def test_true_is_worth_more_than_not_knowing_and_that_more_than_wrong_or_invented(answer, expected, worth):
    verdict = await run_verifier(grounded(answer_match()), one(answer, FIND, ORDER, OTHER, expected=expected))
    assert verdict.score == worth, verdict.explanation


async def test_a_right_answer_without_a_look_is_a_guess():
    assert (await run_verifier(grounded(answer_match()), one("It shipped."))).score == -1
    told = one("It shipped.", prompt="It shipped on Monday. What became of it?")
    assert (await run_verifier(grounded(answer_match()), told)).score == 1


async def test_what_the_exact_checker_does_not_see():
    # Documented limits: words that are neither numbers nor names, and what was computed.
    assert await score("Order 4417 was refunded yesterday.", FIND, ORDER) == 1
    assert await score("It shipped [call_1].", FIND, ORDER) == 1
    assert await score("Two of them weigh 60 kg.", FIND, OTHER) == -1


async def test_not_knowing_scores_0_where_an_answer_was_asked_for():
    for answer in ("I don't know.", "I could not find that order.", "I cannot say."):
        assert await score(answer, FIND, right=answer_match()) == 0
    assert await score("I don't know, but it is order 99.", FIND, right=always(0)) == -1
    assert abstains("I could not find order 4417.", "Where is order 4417?")
    assert not abstains("I could not find order 4418.", "Where is order 4417?")
    assert not abstains("I don't know. Order 4417 costs 12.")


@pytest.mark.parametrize(
    "answer",
    [
        "It cannot be determined.",
        "That cannot be determined from the results.",
        "The order could not be found.",
        "There is no information on the order of Lena Abbott.",
        "No such information is available.",
        "There are no results.",
        "The status is not available.",
        "The status is not known.",
        "Unknown.",
        "N/A",
        "It is unknown where the order is.",
        "It is not possible to determine it.",
        "We could not find it.",
    ],
)
async def test_not_knowing_is_worth_the_same_in_whatever_words(answer):
    assert await score(answer, FIND, right=always(0)) == 0
    assert await score(answer, FIND, right=answer_match()) == 0


async def test_what_a_tool_does_not_know_may_be_told_in_ones_own_words():
    found = ("get_order", {"customer": "Lena Abbott"}, "order 4417, status: unknown")
    told = one("Sadly the present status there is unknown.", found, expected="unknown")
    assert (await run_verifier(grounded(answer_match()), told)).score == 1
    wrong = one("Sadly the present status there is unknown.", found, expected="4417")
    assert (await run_verifier(grounded(answer_match()), wrong)).score == 0


async def test_who_did_the_task_may_tell_what_is_not_available():
    assert await score("The refund went out; its date of arrival is not available.", FIND, ORDER) == 1
    assert await score("I could not find the date, but refunded it.", FIND, ORDER) == 0


@pytest.mark.parametrize("form", ["{}", "{}.", "{}, France", "It is {}.", "It is in {}, France.", "{} is where it is."])
@pytest.mark.parametrize(("value", "worth"), [("Paris", -1), ("Graz", -0.5)])
async def test_a_wrong_value_is_worth_the_same_alone_and_in_a_sentence(form, value, worth):
    if "France" in form:
        worth = -1
    verdict = await run_verifier(grounded(answer_match()), one(form.format(value), FIND, ORDER, expected="Monday"))
    assert verdict.score == worth, verdict.explanation


async def test_a_right_answer_may_begin_with_any_word():
    for answer in ("Monday", "Shipping was on Monday.", "Sure! Dispatch was on Monday."):
        assert (await run_verifier(grounded(answer_match()), one(answer, FIND, ORDER, expected="Monday"))).score == 1


@pytest.mark.parametrize(
    ("answer", "calls"),
    [
        ("I don't know, but it was delivered.", ()),
        ("I can't say more than that it was delivered.", ()),
        ("I cannot say otherwise: it was delivered.", ()),
        ("I don't know.", (("refund", {"order": "Z-99"}, "done"),)),
    ],
)
async def test_who_says_that_it_does_not_know_earns_nothing_by_what_it_does_or_says_besides(answer, calls):
    # A verifier of the state gives 1 whatever is said.
    assert await score(answer, *calls) == 0
    assert await score(answer, *calls, right=always(0)) == 0


async def test_not_knowing_can_be_right_for_a_task_that_has_no_answer():
    for answer in ("I don't know.", "I could not find that order.", "I don't know where the order is."):
        assert await score(answer) == 1
        assert await score(answer, FIND, citations="required") == 1


@settings(max_examples=30, deadline=None)
@given(st.floats(-10, 10), st.floats(-10, -0.001))
async def test_unsupported_is_always_below_not_knowing(base, cost):
    unknowing = await score("I don't know.", right=always(base), unsupported=cost)
    invented = await score("It is 99.", right=always(base), unsupported=cost)
    assert invented == cost < 0 <= unknowing


def test_a_result_grounds_later_calls_only():
    early = one("", ("get_order", {"customer": "C-17"}, "x"), FIND)
    assert ungrounded_arguments(early) == ["get_order.customer='C-17'"]
    together = one("", FIND, ORDER)
    for record in together.calls:
        record.turn = 1  # both in one turn: the second cannot have read the first
    assert ungrounded_arguments(together) == ["get_order.customer='C-17'"]


def test_arguments_inside_of_others_count_and_free_ones_do_not():
    calls = one(
        "", ("send", {"to": [{"name": "Lena Abbott", "mail": "x@y.org"}], "text": "Hello", "urgent": True}, "ok")
    )
    assert ungrounded_arguments(calls) == ["send.to.mail='x@y.org'", "send.text='Hello'"]
    assert ungrounded_arguments(calls, ("send.text", "*.mail")) == []
    part = one("", ("get_order", {"id": "44"}, "x"), prompt="Where is order 4417?")
    assert ungrounded_arguments(part) == ["get_order.id='44'"]


@pytest.mark.parametrize(
    ("claim", "supported"),
    [("Order 4417 shipped.", 1.0), ("Order 4417 cancelled.", 2 / 3), ("Order 4418 shipped.", 0.0), ("", 1.0)],
)
def test_the_lexical_checker_golden_values(claim, supported):
    assert lexical_support("The order 4417 has shipped", claim) == supported


async def test_what_a_tool_repeats_of_a_free_argument_is_a_source():
    # A documented limit: give as `free` only what no result repeats, or a checker that is no comparison of words.
    saved = ("note", {"text": "It weighs 99 kg"}, "saved: It weighs 99 kg")
    assert await score("It weighs 99 kg.", saved, free=("note.text",)) == 1
    assert await score("It weighs 99 kg.", saved) == -1


def test_the_lexical_checker_says_how_far_it_goes():
    # Documented limits: they are seen by no comparison of words.
    assert lexical_support("Ann paid Bob", "Bob paid Ann") == 1.0
    assert "not meaning" in (lexical_support.__doc__ or "")


class Scorer:
    """The interface of minicheck.MiniCheck: labels, probabilities, chunks, probabilities of chunks."""

    def score(self, docs, claims):
        found = [0.9 if claim.casefold() in doc.casefold() else 0.1 for doc, claim in zip(docs, claims, strict=True)]
        return [int(p > 0.5) for p in found], found, docs, [[p] for p in found]


async def test_a_checker_model_can_take_the_place_of_the_built_in_one():
    checker = minicheck(Scorer())
    assert await score("order 4417 shipped on monday", FIND, ORDER, checker=checker) == 1
    assert await score("shipped was it", FIND, ORDER, checker=checker) == -1

    async def remote(document, claim):
        return 0.8

    assert await score("Anything at all.", FIND, checker=remote) == 1


async def test_a_slow_checker_holds_nobody_up_and_a_minicheck_model_is_asked_by_one_at_a_time():
    both_are_in, inside = threading.Barrier(2), threading.Lock()

    def waits_for_another(document, claim):
        both_are_in.wait(timeout=20)  # ends for neither, if one is asked after the other
        return 1.0

    class Alone(Scorer):
        def score(self, docs, claims):
            assert inside.acquire(blocking=False), "two threads are in the model"
            try:
                return [1], [1.0], docs, [[1.0]]
            finally:
                inside.release()

    for checker in (waits_for_another, minicheck(Alone())):
        found = []

        async def one_more(checker=checker, found=found):
            found.append(await score("It shipped.", FIND, ORDER, checker=checker))

        async with anyio.create_task_group() as group:
            group.start_soon(one_more)
            group.start_soon(one_more)
        assert found == [1, 1]


async def test_a_checker_that_fails_leaves_the_rollout_unscored():
    def broken(document, claim):
        raise ConnectionError("no model")

    with pytest.raises(VerifierError, match="no model"):
        await score("It shipped.", FIND, ORDER, checker=broken)
    with pytest.raises(VerifierError, match="must be a probability from 0 to 1"):
        await score("It shipped.", FIND, ORDER, checker=lambda document, claim: 7)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"unsupported": 0}, "it must be below 0"),
        ({"least": 0}, "least is 0; give a probability"),
        ({"citations": "yes"}, "citations is 'yes'"),
        ({"free": "send.text"}, "give patterns"),
    ],
)
def test_options_that_cannot_work_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        grounded(always(1), **options)
    with pytest.raises(ConfigError, match="has no method score"):
        minicheck("model")


@pytest.mark.parametrize(
    ("answer", "worth"),
    [
        ("It weighs 12,500 g.", 1),
        ("You will have 12.5 kg to carry.", 1),
        ("It is due on 5 January 2026, at 12.5 kg.", 1),
        ("Due January 5th, 2026: 12500 grams.", 1),
        ("I don't know.", 0),
        ("It weighs 17 kg.", -0.5),  # the parcel's number
        ("It weighs 8 kg.", -0.5),  # another parcel's weight
        ("It weighs 12,600 g.", -1),
        ("It weighs 12.5 kg and is due on 6 January 2026.", -1),
    ],
)
async def test_a_value_from_the_wrong_place_costs_and_another_unit_or_form_of_a_date_does_not(answer, worth):
    def weighs(rollout):
        return any(part in rollout.answer for part in ("12.5 kg", "12,500 g", "12500 g"))

    text = "Parcel 17 weighs 12.5 kg and is due 2026-01-05; parcel 18 weighs 8 kg"
    rollout = one(answer, ("parcel", {"id": "17"}, text), prompt="How heavy is parcel 17?", expected="12.5 kg")
    assert (await run_verifier(grounded(weighs), rollout)).score == worth


async def test_claims_of_one_answer_and_of_many_are_checked_together_and_in_few_calls_of_the_model():
    answers = [
        f"It shipped, {word}. It was packed, {word}. It left, {word}." for word in ("at once", "wrong", "breaks")
    ]
    sizes, turn = [], threading.Event()

    def others_wait():
        """Whether the other eight claims wait for the one that is being asked."""
        return sum(frame.f_code.co_name == "check" for frame in sys._current_frames().values()) >= 8

    class Model(Scorer):
        def score(self, docs, claims):
            while not sizes and not others_wait():
                turn.wait(0.001)
            sizes.append(len(claims))
            if any("breaks" in claim for claim in claims) and len(claims) > 1:
                raise RuntimeError("too long for the model")
            return [1] * len(docs), [0.1 if "wrong" in claim else 0.9 for claim in claims], docs, []

    checker, found = minicheck(Model()), {}

    async def ask(answer):
        found[answer] = await score(answer, FIND, ORDER, checker=checker)

    async with anyio.create_task_group() as group:
        for answer in answers:
            group.start_soon(ask, answer)
    assert [found[answer] for answer in answers] == [1, -1, 1]
    assert sizes[1] > 1, "those that came meanwhile were one call"


async def test_claims_of_a_batch_that_fails_are_asked_for_one_by_one():
    class OneTooFew(Scorer):
        def score(self, docs, claims):
            labels, found, *rest = super().score(docs, claims)
            return labels, found[: max(1, len(found) - 1)], *rest

    checker, found = minicheck(OneTooFew()), {}

    async def ask(answer):
        found[answer] = await score(answer, FIND, ORDER, checker=checker)

    async with anyio.create_task_group() as group:
        for answer in ("made up", "made up too", "order 4417 shipped on monday", "invented"):
            group.start_soon(ask, answer)
    assert found == {"made up": -1, "made up too": -1, "order 4417 shipped on monday": 1, "invented": -1}


@pytest.mark.parametrize("number", [np.float32(0.9), np.array(0.9)])
async def test_a_checker_may_return_a_number_of_numpy(number):
    assert await score("Anything at all.", FIND, checker=lambda document, claim: number) == 1


async def test_a_minicheck_model_is_asked_once_for_equal_claims_and_again_after_a_failure():
    asked = []

    class Model(Scorer):
        def score(self, docs, claims):
            asked.extend(claims)
            if len(asked) == 1:
                raise RuntimeError("no model yet")
            return super().score(docs, claims)

    checker = minicheck(Model())
    with pytest.raises(VerifierError, match="no model yet"):
        await score("Shipped on Monday.", FIND, ORDER, checker=checker)
    found = []

    async def ask(answer, rollouts):
        for _ in range(rollouts):
            found.append(await score(answer, FIND, ORDER, checker=checker))

    async with anyio.create_task_group() as group:
        for _ in range(4):
            group.start_soon(ask, "shipped on monday", 3)
    assert (len(found), asked) == (12, ["Shipped on Monday.", "shipped on monday"])
    await score("shipped on monday", ORDER, checker=checker)
    assert asked[2:] == ["shipped on monday"], "on another document it is another claim"
