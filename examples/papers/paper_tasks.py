"""Tasks about a library of papers: questions that one paper answers, and sets of papers, with demonstrations."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from random import Random
from typing import Any

from library import Paper, load_papers
from papers import BY_HEART, MOST_FOUND, Papers

MOST_QUESTIONS = {"train": 120, "heldout": 60}
MOST_SETS = {"train": 80, "heldout": 40}
SMALLEST_SET = 2
QUESTIONS = {
    "train": (
        "{asks} Cite the paper that tells.",
        "I need a source: {asks}",
        "{asks} Name the study.",
        "Tell me with a reference: {asks}",
        "Look it up for me. {asks}",
        "{asks} Answer, and note where it is from.",
        "My question is this: {asks} Name your source.",
        "Search for an answer: {asks}",
        "{asks} I have to cite it.",
        "Is it known? {asks}",
    ),
    "heldout": (
        "What does the literature say: {asks}",
        "Find the paper and answer: {asks}",
        "{asks} Who found out?",
        "A patient asks: {asks} On what do you base it?",
        "{asks} Give me the evidence too.",
        "A colleague wants to know: {asks}",
        "Check this for me, with the study: {asks}",
        "{asks} Which paper settles it?",
        "I am writing a report. {asks}",
        "For the seminar tomorrow: {asks} Tell me where you read it.",
    ),
}
SETS = {
    "train": (
        "Which papers of {year} are about {topic}? Cite them all.",
        "Cite every study of {year} on {topic}.",
        "Collect the {year} papers with the topic {topic}.",
        "{topic}: what was published in {year}?",
        "For a review I need the studies of {year} on {topic}.",
        "Note all papers about {topic} from the year {year}.",
        "{year}, {topic}: cite what there is.",
        "Who wrote about {topic} in {year}? Cite each paper.",
        "Make a list of sources: {topic}, {year}.",
        "Cite the work on {topic} that appeared in {year}.",
    ),
    "heldout": (
        "I want all that was published in {year} about {topic}.",
        "List the literature on {topic} from {year}.",
        "What did people write about {topic} in {year}?",
        "Give me the {year} references for {topic}.",
        "My thesis has a chapter on {topic}. What came out in {year}?",
        "Everything from {year} that deals with {topic}, please.",
        "{topic} in the year {year}: which papers?",
        "Put together a bibliography of {topic} for {year}.",
        "Which {year} articles have {topic} as a topic?",
        "I have to read up on {topic}. Start with {year}.",
    ),
}
_COMMON = 0.02
"""A word in a larger share of the questions says nothing of a paper."""


def make_tasks(folder: str | None = None, *, by_heart: bool = False) -> list[dict[str, Any]]:
    """Training and held-out tasks, about other papers and topics in other words. `folder`: see `load_papers`.

    `by_heart`: the same questions in a world without papers, whose only tool is `finish`. No task there asks for a set.
    """
    papers, library, chance = load_papers(folder), Papers(folder), Random("paper tasks")
    tasks: list[dict[str, Any]] = []
    rare = _rare_words(papers)
    shuffled = chance.sample(papers, len(papers))
    half = {"train": shuffled[: len(shuffled) // 2], "heldout": shuffled[len(shuffled) // 2 :]}
    for split, some in half.items():
        tasks += [_question(paper, split, rare[paper.id], library, chance) for paper in some[: MOST_QUESTIONS[split]]]
    sets = _sets(papers)
    topics = sorted({topic for topic, _ in sets})
    of = {topic: "train" if place % 3 else "heldout" for place, topic in enumerate(chance.sample(topics, len(topics)))}
    for split in ("train", "heldout"):
        mine = chance.sample(keys := [key for key in sorted(sets) if of[key[0]] == split], len(keys))
        shown = [(topic, year) for topic, year in mine if _finds(library, f"{topic} {year}", sets[topic, year])]
        tasks += [_set(topic, year, sets[topic, year], split, chance) for topic, year in shown[: MOST_SETS[split]]]
    return [_without_papers(task) for task in tasks if task["tags"]["kind"] == "question"] if by_heart else tasks


def _without_papers(question: dict[str, Any]) -> dict[str, Any]:
    task = {**question, "setup": {"scenario": BY_HEART}, "expected": {"answer": question["expected"]["answer"]}}
    if "demonstration" in task:
        task["demonstration"] = task["demonstration"][-1:]
    return task


def _finds(library: Papers, query: str, wanted: Sequence[str]) -> bool:
    found = library.call_now("search", {"query": query}).structured
    return set(wanted) <= {one["paper_id"] for one in found}


def _rare_words(papers: Sequence[Paper]) -> dict[str, list[str]]:
    """The words of each question that few others have, in their order."""
    words = {paper.id: list(dict.fromkeys(re.findall(r"[^\W_]{4,}", paper.question.lower()))) for paper in papers}
    common = Counter(word for some in words.values() for word in some)
    most = max(2, _COMMON * len(papers))
    return {key: [word for word in some if common[word] <= most] or some for key, some in words.items()}


def _sets(papers: Sequence[Paper]) -> dict[tuple[str, int], list[str]]:
    """(topic, year) -> the papers, where a search shows them all."""
    found: dict[tuple[str, int], list[str]] = defaultdict(list)
    for paper in papers:
        for topic in paper.topics:
            if paper.year is not None:
                found[topic, paper.year].append(paper.id)
    return {key: ids for key, ids in found.items() if SMALLEST_SET <= len(ids) <= MOST_FOUND}


Call = tuple[str, dict[str, str]]


def _task(task_id: str, prompt: str, split: str, kind: str, family: str, calls: list[Call], **expected: Any) -> dict:
    task = {
        "id": task_id,
        "prompt": prompt,
        "expected": expected,
        "family": f"{kind}: {family}",
        "tags": {"split": split, "kind": kind},
    }
    if split == "train" and calls:
        task["demonstration"] = [
            {"role": "assistant", "tool_calls": [{"id": f"c{place}", "name": name, "arguments": arguments}]}
            for place, (name, arguments) in enumerate(calls)
        ]
    return task


def _question(paper: Paper, split: str, rare: list[str], library: Papers, chance: Random) -> dict[str, Any]:
    """Its demonstration searches for as few of the question's rare words as find the paper."""
    wording = chance.choice(QUESTIONS[split])
    source = {"paper_id": paper.id}
    tried = (" ".join(rare[:words]) for words in range(2, len(rare) + 1))
    query = next((query for query in tried if _finds(library, query, [paper.id])), None)
    calls: list[Call] = [("open", source), ("cite", source), ("finish", {"answer": paper.label})]
    calls = [("search", {"query": query}), *calls] if query is not None else []
    prompt = wording.format(asks=paper.question)
    return _task(f"q/{paper.id}", prompt, split, "question", wording, calls, answer=paper.label, cited=[paper.id])


def _set(topic: str, year: int, ids: list[str], split: str, chance: Random) -> dict[str, Any]:
    wording = chance.choice(SETS[split])
    calls: list[Call] = [("search", {"query": f"{topic} {year}"})]
    calls += [("cite", {"paper_id": one}) for one in ids] + [("finish", {"answer": "done"})]
    prompt = wording.format(topic=topic, year=year)
    return _task(f"s/{topic}/{year}", prompt, split, "set", wording, calls, cited=sorted(ids))
