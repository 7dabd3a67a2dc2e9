"""The maintenance desk of a factory: an HTTP service over SQLite, as another team of the company would write it.

    python service.py --db maintenance.db [--load rows.json] [--port 8000]
    python service.py --document > openapi.json

Nothing of the training side reads this file: it gets `openapi.json` alone. The rules that no schema tells (who may be
assigned, what can be closed) are here, in prose in the document at best.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import socket
import sqlite3
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

from fastapi import Depends, FastAPI, HTTPException, Query, Request
from pydantic import BaseModel, Field

COLUMNS = {
    "sites": ("id", "name", "city"),
    "machines": ("id", "name", "model", "site_id", "status", "hours_run"),
    "technicians": ("id", "name", "email", "trade", "on_shift"),
    "work-orders": ("id", "title", "machine_id", "technician_id", "priority", "status", "hours_spent", "created_at"),
    "parts": ("id", "name", "sku", "stock", "reorder_at"),
}
"""The tables. `id` is the key, and counts up."""


class MachineStatus(StrEnum):
    running = "running"
    stopped = "stopped"
    maintenance = "maintenance"


class Trade(StrEnum):
    electrical = "electrical"
    hydraulics = "hydraulics"
    mechanical = "mechanical"


class Priority(StrEnum):
    low = "low"
    normal = "normal"
    urgent = "urgent"


class OrderStatus(StrEnum):
    open = "open"
    assigned = "assigned"
    closed = "closed"


class Site(BaseModel):
    id: int
    name: str
    city: str


class MachineFields(BaseModel):
    name: str = Field(min_length=1, max_length=60, description="What people call the machine.")
    model: str = Field(min_length=1, max_length=40)
    site_id: int
    status: MachineStatus = MachineStatus.running
    hours_run: int = Field(default=0, ge=0)


class Machine(MachineFields):
    id: int


class MachineChange(BaseModel):
    name: str | None = Field(default=None, min_length=1, max_length=60)
    status: MachineStatus | None = None
    hours_run: int | None = Field(default=None, ge=0)


class TechnicianFields(BaseModel):
    name: str = Field(min_length=1, max_length=60)
    email: str = Field(max_length=80, description="Unique.")
    trade: Trade
    on_shift: bool = True


class Technician(TechnicianFields):
    id: int


class TechnicianChange(BaseModel):
    email: str | None = Field(default=None, max_length=80)
    trade: Trade | None = None
    on_shift: bool | None = None


class WorkOrderFields(BaseModel):
    title: str = Field(min_length=1, max_length=80)
    machine_id: int
    priority: Priority = Priority.normal


class WorkOrder(WorkOrderFields):
    id: int
    technician_id: int | None = Field(default=None, description="Who does it; nobody yet where it is null.")
    status: OrderStatus = OrderStatus.open
    hours_spent: int = Field(default=0, ge=0)
    created_at: datetime


class WorkOrderChange(BaseModel):
    title: str | None = Field(default=None, min_length=1, max_length=80)
    priority: Priority | None = None
    technician_id: int | None = None
    status: OrderStatus | None = None
    hours_spent: int | None = Field(default=None, ge=0)


class PartFields(BaseModel):
    name: str = Field(min_length=1, max_length=60)
    sku: str = Field(min_length=1, max_length=20, description="Unique.")
    stock: int = Field(default=0, ge=0)
    reorder_at: int = Field(default=0, ge=0, description="Order more when the stock is below.")


class Part(PartFields):
    id: int


class PartChange(BaseModel):
    stock: int | None = Field(default=None, ge=0)
    reorder_at: int | None = Field(default=None, ge=0)


class Problem(BaseModel):
    detail: str


MISSING: dict[int | str, dict[str, Any]] = {404: {"model": Problem, "description": "There is none of this id."}}
CONFLICT: dict[int | str, dict[str, Any]] = {409: {"model": Problem, "description": "The desk's rules forbid it."}}

app = FastAPI(title="Maintenance desk", version="2.3.0", description="Machines, technicians, work orders and parts.")


def database(request: Request) -> Iterator[sqlite3.Connection]:
    """One connection a request. Each statement is committed by itself: after `yield`, the answer is out already."""
    connection = sqlite3.connect(request.app.state.path, check_same_thread=False, isolation_level=None)
    connection.row_factory = sqlite3.Row
    with contextlib.closing(connection):
        yield connection


Database = Annotated[sqlite3.Connection, Depends(database)]


def _get(db: sqlite3.Connection, table: str, key: int) -> dict[str, Any]:
    row = db.execute(f'SELECT * FROM "{table}" WHERE id = ?', (key,)).fetchone()
    if row is None:
        raise HTTPException(404, f"there is no {table.removesuffix('s').replace('-', ' ')} {key}")
    return dict(row)


def _list(db: sqlite3.Connection, table: str, limit: int, **filters: Any) -> list[dict[str, Any]]:
    wanted = {column: value for column, value in filters.items() if value is not None}
    where = " AND ".join(f"{column} = ?" for column in wanted) or "1"
    rows = db.execute(f'SELECT * FROM "{table}" WHERE {where} ORDER BY id LIMIT ?', (*wanted.values(), limit))
    return [dict(row) for row in rows]


def _add(db: sqlite3.Connection, table: str, **values: Any) -> dict[str, Any]:
    places = ", ".join("?" for _ in values)
    done = db.execute(f'INSERT INTO "{table}" ({", ".join(values)}) VALUES ({places})', tuple(values.values()))
    assert done.lastrowid is not None
    return _get(db, table, done.lastrowid)


def _change(db: sqlite3.Connection, table: str, key: int, values: dict[str, Any]) -> dict[str, Any]:
    _get(db, table, key)
    if values:
        columns = ", ".join(f"{column} = ?" for column in values)
        db.execute(f'UPDATE "{table}" SET {columns} WHERE id = ?', (*values.values(), key))
    return _get(db, table, key)


def _unique(db: sqlite3.Connection, table: str, column: str, value: Any) -> None:
    if value is not None and db.execute(f'SELECT 1 FROM "{table}" WHERE {column} = ?', (value,)).fetchone():
        raise HTTPException(409, f"there is a {table.removesuffix('s')} with the {column} {value} already")


Limit = Annotated[int, Query(ge=1, le=50)]


@app.get("/sites")
def list_sites(db: Database) -> list[Site]:
    """List the sites of the factory."""
    return [Site(**row) for row in _list(db, "sites", 50)]


@app.get("/machines")
def list_machines(
    db: Database, site_id: int | None = None, status: MachineStatus | None = None, limit: Limit = 20
) -> list[Machine]:
    """List machines, of one site or in one state."""
    return [Machine(**row) for row in _list(db, "machines", limit, site_id=site_id, status=status)]


@app.post("/machines", status_code=201, responses=CONFLICT)
def add_machine(db: Database, body: MachineFields) -> Machine:
    """Add a machine to a site."""
    _get(db, "sites", body.site_id)
    return Machine(**_add(db, "machines", **body.model_dump()))


@app.get("/machines/{machine_id}", responses=MISSING)
def get_machine(db: Database, machine_id: int) -> Machine:
    """Read a machine."""
    return Machine(**_get(db, "machines", machine_id))


@app.patch("/machines/{machine_id}", responses=MISSING)
def update_machine(db: Database, machine_id: int, body: MachineChange) -> Machine:
    """Change a machine."""
    return Machine(**_change(db, "machines", machine_id, body.model_dump(exclude_unset=True)))


@app.get("/technicians")
def list_technicians(db: Database, trade: Trade | None = None, limit: Limit = 20) -> list[Technician]:
    """List technicians, of one trade."""
    return [Technician(**row) for row in _list(db, "technicians", limit, trade=trade)]


@app.post("/technicians", status_code=201, responses=CONFLICT)
def add_technician(db: Database, body: TechnicianFields) -> Technician:
    """Add a technician."""
    _unique(db, "technicians", "email", body.email)
    return Technician(**_add(db, "technicians", **body.model_dump()))


@app.get("/technicians/{technician_id}", responses=MISSING)
def get_technician(db: Database, technician_id: int) -> Technician:
    """Read a technician."""
    return Technician(**_get(db, "technicians", technician_id))


@app.patch("/technicians/{technician_id}", responses={**MISSING, **CONFLICT})
def update_technician(db: Database, technician_id: int, body: TechnicianChange) -> Technician:
    """Change a technician."""
    _unique(db, "technicians", "email", body.email)
    return Technician(**_change(db, "technicians", technician_id, body.model_dump(exclude_unset=True)))


@app.get("/work-orders")
def list_work_orders(
    db: Database,
    machine_id: int | None = None,
    technician_id: int | None = None,
    status: OrderStatus | None = None,
    limit: Limit = 20,
) -> list[WorkOrder]:
    """List work orders, of a machine or a technician, or in one state."""
    rows = _list(db, "work-orders", limit, machine_id=machine_id, technician_id=technician_id, status=status)
    return [WorkOrder(**row) for row in rows]


@app.post("/work-orders", status_code=201, responses=MISSING)
def add_work_order(db: Database, body: WorkOrderFields) -> WorkOrder:
    """Open a work order for a machine."""
    _get(db, "machines", body.machine_id)
    values = {**body.model_dump(), "status": "open", "hours_spent": 0, "created_at": datetime.now(UTC).isoformat()}
    return WorkOrder(**_add(db, "work-orders", **values))


@app.get("/work-orders/{work_order_id}", responses=MISSING)
def get_work_order(db: Database, work_order_id: int) -> WorkOrder:
    """Read a work order."""
    return WorkOrder(**_get(db, "work-orders", work_order_id))


@app.patch("/work-orders/{work_order_id}", responses={**MISSING, **CONFLICT})
def update_work_order(db: Database, work_order_id: int, body: WorkOrderChange) -> WorkOrder:
    """Change a work order: its priority, its state, who does it."""
    now = _get(db, "work-orders", work_order_id)
    values = body.model_dump(exclude_unset=True)
    if values.get("technician_id") is not None and not _get(db, "technicians", values["technician_id"])["on_shift"]:
        raise HTTPException(409, f"technician {values['technician_id']} is not on shift")
    if now["status"] == "closed" and values.get("status", "closed") == "closed":
        raise HTTPException(409, f"work order {work_order_id} is closed; reopen it first")
    return WorkOrder(**_change(db, "work-orders", work_order_id, values))


@app.post("/work-orders/{work_order_id}/close", responses={**MISSING, **CONFLICT})
def close_work_order(db: Database, work_order_id: int) -> WorkOrder:
    """Close a work order that is done."""
    if _get(db, "work-orders", work_order_id)["status"] == "closed":
        raise HTTPException(409, f"work order {work_order_id} is closed already")
    return WorkOrder(**_change(db, "work-orders", work_order_id, {"status": "closed"}))


@app.delete("/work-orders/{work_order_id}", status_code=204, responses=MISSING)
def delete_work_order(db: Database, work_order_id: int) -> None:
    """Delete a work order that was opened by mistake."""
    _get(db, "work-orders", work_order_id)
    db.execute('DELETE FROM "work-orders" WHERE id = ?', (work_order_id,))


@app.get("/parts")
def list_parts(db: Database, limit: Limit = 20) -> list[Part]:
    """List the spare parts."""
    return [Part(**row) for row in _list(db, "parts", limit)]


@app.post("/parts", status_code=201, responses=CONFLICT)
def add_part(db: Database, body: PartFields) -> Part:
    """Add a spare part."""
    _unique(db, "parts", "sku", body.sku)
    return Part(**_add(db, "parts", **body.model_dump()))


@app.get("/parts/{part_id}", responses=MISSING)
def get_part(db: Database, part_id: int) -> Part:
    """Read a spare part."""
    return Part(**_get(db, "parts", part_id))


@app.patch("/parts/{part_id}", responses=MISSING)
def update_part(db: Database, part_id: int, body: PartChange) -> Part:
    """Change the stock of a spare part."""
    return Part(**_change(db, "parts", part_id, body.model_dump(exclude_unset=True)))


def create(path: Path, rows: dict[str, list[dict[str, Any]]]) -> None:
    """A new database with these rows. Raises `ValueError` for a table or a column that the desk has not."""
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        db.row_factory = sqlite3.Row
        for table, columns in COLUMNS.items():
            db.execute(f'CREATE TABLE "{table}" (id INTEGER PRIMARY KEY, {", ".join(columns[1:])})')
        for table, some in rows.items():
            for row in some:
                if table not in COLUMNS or not set(row) <= set(COLUMNS[table]):
                    raise ValueError(f"the desk has no {table} with {', '.join(row)}; it has {COLUMNS}")
                _add(db, table, **row)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--db", type=Path, help="the file of the database; it is made where it is missing")
    parser.add_argument("--load", type=Path, help='rows of a new database: {"parts": [{"id": 1, ...}]}')
    parser.add_argument("--port", type=int, default=8000, help="0: any free one; it is printed (default 8000)")
    parser.add_argument("--document", action="store_true", help="print the OpenAPI document and exit")
    chosen = parser.parse_args()
    if chosen.document:
        print(json.dumps(app.openapi(), indent=1))
        return
    if chosen.db is None:
        parser.error("--db is missing")
    if not chosen.db.exists():
        create(chosen.db, json.loads(chosen.load.read_text()) if chosen.load else {})

    import uvicorn

    app.state.path = chosen.db
    listening = socket.create_server(("127.0.0.1", chosen.port))
    print(f"http://127.0.0.1:{listening.getsockname()[1]}", flush=True)
    uvicorn.Server(uvicorn.Config(app, log_level="error")).run(sockets=[listening])


if __name__ == "__main__":
    sys.exit(main())
