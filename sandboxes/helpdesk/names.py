"""The names a shop is made of. The two branches have none in common: learn at one, test at the other."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Branch:
    """The names at one branch. Ids are drawn so that `id % 3 == 0` holds at the second branch and never at the first:
    any digit is as likely at one as at the other, and no id is at both.
    """

    first_names: tuple[str, ...]
    last_names: tuple[str, ...]
    products: tuple[str, ...]
    cities: tuple[str, ...]
    streets: tuple[str, ...]
    id_remainders: tuple[int, ...]


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def _lines(text: str) -> tuple[str, ...]:
    return tuple(line.strip() for line in text.strip().splitlines())


MAIN = Branch(
    first_names=_words(
        "Ana Ben Carla David Emma Felix Grace Hugo Ines Jonas Kate Leo Maria Noah Olga Paul Rosa Sam Tina Victor"
        " Alice Bruno Clara Daniel Eva Frank Greta Henry Ida Jack Laura Marco Nina Oscar Petra Ralf Sara Tom Vera Will"
    ),
    last_names=_words(
        "Adler Baker Costa Diaz Evans Fischer Garcia Hall Ivanov Jones Keller Lopez Moreau Novak Olsen Parker"
        " Ruiz Smith Turner Weber Young Zimmer Bell Clark Dubois Ferrari Green Hansen Jansen King"
    ),
    products=_words(
        "lamp kettle chair desk mirror clock blanket pillow toaster blender fan heater radio camera printer"
        " keyboard monitor backpack umbrella bicycle helmet tent rug vase"
    ),
    cities=_words("Lyon Porto Berlin Madrid Oslo Vienna Prague Dublin Milan Geneva Athens Warsaw"),
    streets=_lines(
        """
        Oak Street
        Mill Lane
        High Street
        Lake Road
        Park Avenue
        Church Street
        Garden Road
        Hill Street
        River Lane
        Station Road
        """
    ),
    id_remainders=(1, 2),
)

SECOND = Branch(
    first_names=_words(
        "Arthur Bella Cesar Diana Elias Flora George Hanna Ivan Julia Kurt Lena Martin Nora Otto Paula Robert"
        " Sofia Theo Ursula Walter Yara Adam Beth"
    ),
    last_names=_words(
        "Abbott Blanc Carter Dahl Engel Ford Gomez Hughes Irving Jensen Koch Lang Meyer Nilsson Ortiz Perez"
        " Roberts Silva Thomas Vogel Wagner Walker"
    ),
    products=_words(
        "sofa mattress shelf curtain scale mixer grill drill ladder hammer speaker tablet wallet jacket watch"
    ),
    cities=_words("Paris Rome Lisbon Zurich Hamburg Seville Turin Cork Bergen Ghent"),
    streets=_lines(
        """
        Elm Road
        King Street
        Bridge Lane
        Forest Avenue
        Market Street
        Castle Road
        Harbor Street
        Meadow Lane
        """
    ),
    id_remainders=(0,),
)

BRANCHES = {"default": MAIN, "second_branch": SECOND}

MAIL_DOMAINS = ("mail.test", "post.test")
"""The top-level domain `.test` is reserved (RFC 2606): no such address exists."""
