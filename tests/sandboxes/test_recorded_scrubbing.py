"""No secret, and no half of one, gets into a cassette."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from mcp_bridge.access.redaction import Hiding, shown_text
from mcp_bridge.errors import SourceError
from sandboxes.recorded.scrubber import Scrubber

secrets = st.text(
    st.characters(codec="utf-8", exclude_characters="*", exclude_categories=["Cs"]), min_size=6, max_size=20
)


@settings(deadline=None)
@given(st.lists(secrets, min_size=1, max_size=3), st.lists(st.text(max_size=12), min_size=1, max_size=4), st.data())
def test_no_part_of_a_known_secret_is_left_of_a_place_where_it_stood(
    known: list[str], around: list[str], data: st.DataObject
) -> None:
    # Secrets side by side, and secrets that overlap, with anything around them.
    overlapping = known[0][:-2] + known[0]
    pieces = [*around, *known, overlapping, json.dumps(known[0])]
    text = "".join(data.draw(st.permutations(pieces)))
    scrubbed = Scrubber(known).text(text)
    assert all(secret not in scrubbed for secret in known)
    assume(len(set(known[0])) == len(known[0]))
    alone = Scrubber(known).text(f"<{overlapping}>")
    before = known[0][:-2]  # a backslash at its end may escape the secret's first letter, and goes with it
    allowed = {"<***>", f"<{before}***>", f"<{before.rstrip(chr(92))}***>"}
    assert alone in allowed, "what overlaps is one place, or the secret itself is gone"


def test_secrets_that_overlap_in_a_text_leave_no_half() -> None:
    assert Scrubber(["abcdefgh", "efghijkl"]).text("<abcdefghijkl>") == "<***>"
    assert Scrubber(["abcdef"], ["def-[0-9]+"]).text("abcdef-123") == "***"
    assert Scrubber(["aaaaaa"]).text("aaaaaaaaa") == "***"
    assert Scrubber([":01\\23"]).text("<:01\\:01\\23>") == "<:01***>", "a backslash may escape what follows it"


@pytest.mark.parametrize(
    ("text", "scrubbed"),
    [
        ("password=hunter2", "password=***"),
        ("db_password: 'correct horse battery'", "db_password: '***'"),
        ('{"apiKey": "with \\"quotes\\" in it", "page": 2}', '{"apiKey": "***", "page": 2}'),
        ('{\\"api_key\\": \\"inside a text\\"}', '{\\"api_key\\": \\"***\\"}'),
        ("Authorization: Bearer abc.def-123", "Authorization: ***"),
        ("curl -H 'X-Api-Key: 0123456789'", "curl -H 'X-Api-Key: ***'"),
        ("use Bearer abcdefgh12345678", "use Bearer ***"),
        ("postgres://ann:s3cr3t@db.example/orders", "postgres://***@db.example/orders"),
        ("postgres://ann:s3c/r3t@db.example/orders", "postgres://***@db.example/orders"),
        ("https://host:8443/@scope/package", "https://host:8443/@scope/package"),
        ("the key sk-live-abcdefghijklmnop1234 works", "the key *** works"),
        ("ghp_abcdefghijklmnopqrstuvwx", "***"),
        ("AKIAABCDEFGHIJKLMNOP", "***"),
        ("npm_abcdefghijklmnopqrstuvwxyz", "***"),
        ("mysql --password hunter2 -u ann", "mysql --password *** -u ann"),
        ("dbpass=hunter2; bypass=yes", "dbpass=***; bypass=yes"),
        ("token=api_key=Bearer b", "token=***"),
        ("eyJhbGciOiJI.eyJzdWIiOiIx.c2lnbmF0dXJl", "***"),
        ("-----BEGIN PRIVATE KEY-----\nMIIE\nabc\n-----END PRIVATE KEY-----\nafter", "***\nafter"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIE and the rest was cut", "***"),
        # In JSON, all texts under the name, and nothing that JSON could not be read with.
        ('{"refresh_tokens":["r\\"1","r2"],"n":1}', '{"refresh_tokens":["***","***"],"n":1}'),
        ('{"accessToken": {"value": "at-9", "in": 5}}', '{"accessToken": {"value": "***", "in": 5}}'),
        ('Got {"cookies": [], "password": "a b", "pin": 1}', 'Got {"cookies": [], "password": "***", "pin": 1}'),
        ('{"password": 1234, "token": null}', '{"password": "***", "token": null}'),
        (
            '{"hasPassword": false, "authorizations": [{"id": 7}]}',
            '{"hasPassword": false, "authorizations": [{"id": 7}]}',
        ),
        ('{"log": "{\\"password\\": \\"hunter2\\"}"}', '{"log": "{\\"password\\": \\"***\\"}"}'),
        ('access_tokens = ["a", "b"\nnext', "access_tokens = ***\nnext"),
        ("PWD=/srv/desk MYSQL_PWD=hunter2", "PWD=/srv/desk MYSQL_PWD=***"),
        # In YAML: the lines that are indented more than the name; also inside JSON.
        ("password: |\n  hunter2\n\n  more\nuser: ann\n", "password: |\n  ***\nuser: ann\n"),
        ("- password: >-\n    hunter2\n  user: ann", "- password: >-\n    ***\n  user: ann"),
        ("db:\n  token: |\n  user: ann", "db:\n  token: ***\n  user: ann"),
        (
            '{"y": "password: |\\n  a\\"b\\n  C:\\\\new\\nuser: ann", "n": 1}',
            '{"y": "password: |\\n  ***\\nuser: ann", "n": 1}',
        ),
        # In XML.
        ("<user><password>hunter2</password></user>", "<user><password>***</password></user>"),
        (
            "<ns:apiKey type='a'> a b</ns:apiKey><user>ann</user>",
            "<ns:apiKey type='a'> ***</ns:apiKey><user>ann</user>",
        ),
        ("<password><![CDATA[a<b]]></password>", "<password><![CDATA[***]]></password>"),
        ("""<user password="hunter2" token='a b' name="ann"/>""", """<user password="***" token='***' name="ann"/>"""),
        ("<hasPassword>false</hasPassword><password/>: ann", "<hasPassword>false</hasPassword><password/>: ann"),
        ("mysql -u <user> -p <password> < dump", "mysql -u <user> -p <password> < dump"),
        # Short names count as whole words, and a pin has four to eight digits.
        ("pw=hunter2 user_pw: x, otp=123456", "pw=*** user_pw: ***, otp=***"),
        (
            '{"pin": 1234, "cardPin": "0042", "pin_code": "990011"}',
            '{"pin": "***", "cardPin": "***", "pin_code": "***"}',
        ),
        ("the pin: 1234. --pin 1234", "the pin: ***. --pin ***"),
        ("<pin>1234</pin><pin>A3</pin>", "<pin>***</pin><pin>A3</pin>"),
        # What looks alike and is data.
        (
            "pin=13, spin=1234, pinned=1234, pins=1234, pin=2026-01-05",
            "pin=13, spin=1234, pinned=1234, pins=1234, pin=2026-01-05",
        ),
        ("pinned_message: 1234, otp_length=6, pwm=40", "pinned_message: 1234, otp_length=6, pwm=40"),
        ("issue_key: SHOP-7, next_page_token=abc", "issue_key: SHOP-7, next_page_token=abc"),
        ("max_tokens=256 author: Ann", "max_tokens=256 author: Ann"),
        ("a monkey = 3 bananas", "a monkey = 3 bananas"),
    ],
)
def test_secrets_nobody_named_are_found_by_their_names_and_forms(text: str, scrubbed: str) -> None:
    assert Scrubber().text(text) == scrubbed


def test_values_under_the_names_of_secrets_are_replaced_whole_at_any_depth() -> None:
    scrubber = Scrubber()
    value: Any = {
        "headers": {"Authorization": "Bearer x", "Accept": "text/html"},
        "users": [{"name": "Ann", "passwords": ["a b", "c d"], "client_secret": 12345, "has_password": True}],
        "next_page_token": "keep",
        "key": "keep",
        "tokens": {"count": 3},
        "cookies": [{"name": "sid", "value": "QWERTY", "age": 9}],
        "card": {"pin": 1234, "pw": "x", "pinned": True},
        "chip": {"pin": 13, "spin": 1234},
    }
    assert scrubber.value(value) == {
        "headers": {"Authorization": "***", "Accept": "text/html"},
        "users": [{"name": "Ann", "passwords": ["***", "***"], "client_secret": "***", "has_password": True}],
        "next_page_token": "keep",
        "key": "keep",
        "tokens": {"count": 3},
        "cookies": [{"name": "***", "value": "***", "age": 9}],
        "card": {"pin": "***", "pw": "***", "pinned": True},
        "chip": {"pin": 13, "spin": 1234},
    }
    assert scrubber.count == 8
    assert scrubber.value(scrubber.value(value)) == scrubber.value(value), "scrubbing twice changes nothing more"


def test_a_description_may_speak_of_passwords() -> None:
    scrubber = Scrubber(["tok-4417"])
    assert scrubber.words("password: the new one, not tok-4417") == "password: the new one, not ***"


def test_short_values_of_an_environment_are_words_and_stay() -> None:
    assert Scrubber(["1", "true", "prod"]).text("prod is true in 1 of 1") == "prod is true in 1 of 1"


def test_a_known_secret_is_found_as_a_url_and_as_json_write_it() -> None:
    scrubber = Scrubber(['p@ss "word"/é'])
    assert scrubber.text("https://host/?q=p%40ss%20%22word%22%2F%C3%A9&x=1") == "https://host/?q=***&x=1"
    assert scrubber.text(json.dumps({"said": 'p@ss "word"/é'})) == '{"said": "***"}'


@pytest.mark.parametrize(("pattern", "complaint"), [("(", "not a valid regular"), ("x*", "matches the empty text")])
def test_a_pattern_that_cannot_work_is_refused(pattern: str, complaint: str) -> None:
    with pytest.raises(SourceError, match=complaint):
        Scrubber(patterns=[pattern])


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    ("before", "repeated"),
    [
        *[
            ("", one)
            for one in ("x", "ab-_", "token=a", "a:", '\\"', "sk-", "-eyJaaaaaaaa", "://a:b", "token=[", "pin=")
        ],
        *[
            ("", one)
            for one in ("<password>", "<password><![CDATA[", "password: |\n ", "password: |\\n ", "-----BEGIN ")
        ],
        *[("://", "a:"), ("-----BEGIN ", "password: |\n "), ("-----BEGIN ", "password: |\\n ")],
    ],
)
def test_long_texts_take_no_longer_than_their_reading(before: str, repeated: str) -> None:
    text = before + repeated * (300_000 // len(repeated))
    assert "hunter2" not in Scrubber().text(f"{text}\npassword=hunter2")


PIECES = (
    *("a", "token", "password", "pin", "sk-", "eyJaaaaaaaa", "aaaaaaaaaaaaaaaa", "9", "Bearer ", "-----BEGIN ", "://"),
    *(
        "password: |\n ",
        "password: |\\n ",
        "<![CDATA[",
        "</",
        "<",
        ">",
        "[",
        "{",
        "]",
        ":",
        "=",
        "@",
        "-",
        "--",
        ".",
        "/",
    ),
    *("\\", '"', "'", '\\"', "\\n", "|", ",", "_", "#", " ", "\n"),
)


@pytest.mark.timeout(60)
@settings(deadline=None, max_examples=40)
@given(st.lists(st.sampled_from(PIECES), max_size=3), st.lists(st.sampled_from(PIECES), min_size=1, max_size=5))
def test_no_text_that_repeats_itself_takes_longer_than_its_reading(before: list[str], repeated: list[str]) -> None:
    unit = "".join(repeated)
    text = "".join(before) + unit * (60_000 // len(unit))
    Scrubber().text(text)
    shown_text(text)
    Hiding(lambda: ("-abc-123-xyz-9!",), "a").text(text)
