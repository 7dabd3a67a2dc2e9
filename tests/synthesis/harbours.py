"""An object that the tests of the search wrap: ships and their captains, with lists, a flag and acts that say "ok"."""

from __future__ import annotations

from typing import Any

from sandboxes.objects import ObjectTwin


class Harbour:
    """Two ships of captains who live in the same town as another."""

    def __init__(self) -> None:
        self.ships: dict[str, dict[str, Any]] = {
            "SH-41": {"name": "Marta", "berth": "East", "captain_id": 3, "fee": 80, "insured": 1},
            "SH-57": {"name": "Ondine", "berth": "West", "captain_id": 4, "fee": 95, "insured": 0},
        }
        people = (("Ada Holm", "Bergen"), ("Ben Roos", "Kiel"), ("Cleo Vik", "Bergen"), ("Dan Lund", "Kiel"))
        self.captains = {
            number: {"captain_id": number, "name": name, "town": town}
            for number, (name, town) in enumerate(people, start=1)
        }

    def get_ship(self, ship: str) -> dict[str, Any]:
        """Read a ship."""
        return self.ships[self._known(ship)]

    def ships_at(self, berth: str) -> dict[str, Any]:
        """The ships at a berth."""
        found = [ship for ship, one in self.ships.items() if one["berth"] == berth]
        return {"ships": found, "total": len(found)}

    def get_captain(self, captain_id: int) -> dict[str, Any]:
        """Read a captain."""
        if captain_id not in self.captains:
            raise ValueError(f"no captain {captain_id}")
        return self.captains[captain_id]

    def list_captains(self) -> list[dict[str, Any]]:
        """All captains."""
        return list(self.captains.values())

    def set_fee(self, ship: str, fee: int) -> dict[str, Any]:
        """Set the fee of a ship."""
        self.ships[self._known(ship)]["fee"] = fee
        return {"ok": True, "ship": ship}

    def move_ship(self, ship: str, berth: str) -> dict[str, bool]:
        """Move a ship to a berth."""
        self.ships[self._known(ship)]["berth"] = berth
        return {"ok": True}

    def _known(self, ship: str) -> str:
        if ship not in self.ships:
            raise ValueError(f"no ship {ship!r}")
        return ship


def harbour() -> ObjectTwin:
    return ObjectTwin(Harbour, reads=("get_ship", "ships_at", "get_captain", "list_captains"))
