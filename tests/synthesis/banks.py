"""An object that the tests of synthesis wrap: accounts that can be read, found by their owner, and charged."""

from __future__ import annotations

from typing import Any

from sandboxes.objects import ObjectTwin


class Bank:
    """Accounts of a few people; two of them have the same city."""

    unit = 7
    """What the first balances are multiples of."""

    def __init__(self) -> None:
        owners = (("Ann", "Bath"), ("Bob", "Bath"), ("Cid", "York"), ("Dora", "Hull"))
        self.accounts = {
            f"A-{number}": {"owner": owner, "city": city, "balance": self.unit * number}
            for number, (owner, city) in zip((101, 202, 303, 404), owners, strict=True)
        }

    def get_account(self, account: str) -> dict[str, Any]:
        """Read an account."""
        return self.accounts[self._known(account)]

    def find_accounts(self, owner: str) -> list[dict[str, Any]]:
        """The accounts of an owner."""
        return [{"account": key, **one} for key, one in self.accounts.items() if one["owner"] == owner]

    def transfer(self, source: str, target: str, amount: int) -> dict[str, int]:
        """Move money between accounts."""
        payer, payee = self.accounts[self._known(source)], self.accounts[self._known(target)]
        if payer["balance"] < amount:
            raise ValueError("not enough money")
        payer["balance"] -= amount
        payee["balance"] += amount
        return {"left": payer["balance"]}

    def _known(self, account: str) -> str:
        if account not in self.accounts:
            raise ValueError(f"no account {account!r}")
        return account


def bank() -> ObjectTwin:
    return ObjectTwin(Bank, reads=("get_account", "find_accounts"))
