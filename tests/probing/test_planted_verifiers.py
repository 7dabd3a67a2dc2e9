"""How well `certify` tells verifiers with a hole from honest ones."""

from __future__ import annotations

from planted_verifiers import LAST, PLANTED, WITHOUT_HOLE, detect


async def test_at_least_nine_of_ten_planted_holes_are_found_and_one_of_fifty_honest_verifiers_is_accused() -> None:
    found = await detect()
    planted, honest = ([one for one in found if (one.kind is not None) is kind] for kind in (True, False))
    assert (len(planted), len(honest)) == (len(PLANTED), len(WITHOUT_HOLE)) == (68, 51)
    assert len({one.kind for one in planted}) == 12
    missed = [one.verifier for one in planted if not one.holes]
    assert len(missed) <= 0.1 * len(planted), missed
    accused = [one for one in honest if one.holes]
    assert len(accused) <= 0.02 * len(honest), accused
    # Of those that no probe was made for, too.
    last = [one for one in planted if one.kind == LAST]
    assert sum(bool(one.holes) for one in last) >= 0.9 * len(last)
