"""Hundreds of calls while servers restart, children are killed and answers are dropped: each is told as it was."""

from pathlib import Path

import pytest
from fault_run import Way, fault_run


@pytest.mark.timeout(300)
@pytest.mark.parametrize("way", ["stdio", "http", "http-handshake"])
async def test_no_call_is_doubled_and_none_is_lost_without_a_word(way: Way, tmp_path: Path) -> None:
    # A world over stdio is a process, and only what becomes of that is asked here: one that starts at once will do.
    by_hand = "call_ledger_by_hand.py"
    tally = await fault_run(way, 300, seed=3, folder=tmp_path, kills=4, world_calls=30, over_stdio=by_hand)
    assert tally.kills == 4
    assert tally.begun == 300
    assert (tally.doubled, tally.wrong, tally.silent) == (0, 0, 0)
    # The faults had their effect, and cost little.
    assert 0 < tally.failed + tally.unknown < 100
    assert tally.once > 200
    # Every call is told in one way, and what was executed is what was told.
    assert tally.once + tally.failed + tally.unknown == tally.begun
