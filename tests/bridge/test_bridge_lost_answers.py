"""Over a network that loses requests and answers, to a real server that is killed: nothing is done twice in silence."""

from __future__ import annotations

from pathlib import Path

import pytest
from faulty_network import FAULTS
from lost_answers import play

from mcp_bridge.ledger import ENDS

WORLDS, CALLS = 6, 50


@pytest.mark.timeout(180)
async def test_no_charge_is_made_twice_and_every_call_has_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mcp_bridge.ledger._FIRST_PAUSE_S", 0.01)
    audit = await play(tmp_path / "log", seed=11, rate=0.25, kills=2, worlds=WORLDS, calls=CALLS)
    ends, done = audit.ends, audit.done
    assert all(audit.faults[fault] for fault in FAULTS), audit.faults
    assert len([line for line in audit.lines if line.event in ENDS]) == len(ends) == WORLDS * CALLS
    assert {line.key for line in audit.lines if line.event == "started"} == set(ends)
    assert set(done) <= set(ends)
    for key, end in ends.items():
        if end.tool == "charge":
            assert done[key] <= 1, end
            assert done[key] == 0 or end.event in {"answered", "unknown"}, end
        if end.event == "answered":
            assert done[key] >= 1, end
        assert done[key] <= 3
    # Faults had their effect: charges of unknown outcome, some of them made and some not; calls that were made twice.
    assert {done[key] for key in audit.ended("charge", "unknown")} == {0, 1}
    assert audit.doubled("set_limit") + audit.doubled("balance") > 0
    assert len(audit.ended("set_limit", "answered")) > len(audit.ended("charge", "answered"))
    assert audit.raised == sum(end.event != "answered" for end in ends.values())
