"""The papers of a library: those of PubMedQA, or a small set that is made from a seed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from random import Random

LABELS = ("yes", "no", "maybe")
FILE = "ori_pqal.json"


@dataclass(frozen=True)
class Paper:
    """`question`: what the paper asks, its title in PubMedQA. `label`: its answer, one of `LABELS`."""

    id: str
    year: int | None
    question: str
    abstract: str
    topics: tuple[str, ...]
    label: str


def load_papers(folder: str | None) -> list[Paper]:
    """The papers of `ori_pqal.json` in a clone of PubMedQA's `data` folder; without a folder, the made ones.

    Raises `FileNotFoundError` that names the file, and `ValueError` for one that is not PubMedQA's.
    """
    if folder is None:
        return made_papers()
    path = Path(folder) / FILE
    if not path.is_file():
        raise FileNotFoundError(
            f"there is no {path}; give the folder `data` of a clone of github.com/pubmedqa/pubmedqa"
        )
    try:
        return [
            Paper(
                id=number,
                year=int(row["YEAR"]) if row.get("YEAR") else None,
                question=row["QUESTION"],
                abstract=" ".join(row["CONTEXTS"]),
                topics=tuple(row["MESHES"]),
                label=row["final_decision"],
            )
            for number, row in json.loads(path.read_text(encoding="utf-8")).items()
        ]
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is not the file of PubMedQA: {error!r}") from error


_CURES = ("Aspirin", "Massage", "Vitamin D", "Yoga", "Zinc", "Honey", "Caffeine", "Music", "Walking", "Acupuncture")
_ILLS = ("Migraine", "Asthma", "Insomnia", "Low Back Pain", "Anemia", "Eczema", "Gout", "Tinnitus")
_GROUPS = ("Child", "Aged", "Pregnancy", "Athletes")
_FINDINGS = {
    "yes": "The difference was significant (p = 0.01).",
    "no": "There was no difference between the groups (p = 0.62).",
    "maybe": "Results differed between the centres, and more data are needed.",
}


def made_papers(seed: int = 0) -> list[Paper]:
    """240 papers: does a cure help an ill, in a group of people? Equal seeds give equal papers."""
    chance = Random(f"papers {seed}")
    pairs = [(cure, ill, group) for cure in _CURES for ill in _ILLS for group in _GROUPS]
    papers = []
    for number, (cure, ill, group) in enumerate(chance.sample(pairs, 240)):
        label = chance.choice(LABELS)
        people = chance.randrange(40, 900)
        abstract = (
            f"We asked whether {cure.lower()} eases {ill.lower()}. {people} patients ({group.lower()}) were given "
            f"{cure.lower()} or a placebo for {chance.randrange(2, 30)} weeks. {_FINDINGS[label]}"
        )
        question = f"Does {cure.lower()} ease {ill.lower()} ({group.lower()})?"
        papers.append(Paper(f"{1000 + number}", 2005 + number % 8, question, abstract, (cure, ill, group), label))
    return papers
