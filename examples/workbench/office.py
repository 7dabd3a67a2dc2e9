"""The benchmark's five office systems and its company directory: 27 tools over one SQL sandbox.

What a tool finds, answers and changes is what the benchmark's tool of that name does. The code is our own.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from itertools import combinations
from pathlib import Path
from random import Random
from typing import Any, ClassVar

from clone import DIRECTORY, SYSTEMS, addresses, table

from mcp_bridge import Tool, ToolAnnotations
from sandboxes import Refused, SqlSandbox
from sandboxes.sql import SqlTool, read_clock

NOW = datetime(2023, 11, 30)
"""The benchmark's present."""
MOST_FOUND = 5

EMAIL, CALENDAR, ANALYTICS, PROJECTS, CUSTOMERS = SYSTEMS
PARTS = (*SYSTEMS, DIRECTORY)
PLOTS = "plots"

FILES = {
    EMAIL: "emails.csv",
    CALENDAR: "calendar_events.csv",
    ANALYTICS: "analytics_data.csv",
    PROJECTS: "project_tasks.csv",
    CUSTOMERS: "customer_relationship_manager_data.csv",
}
NOUNS = {EMAIL: "email", CALENDAR: "event", PROJECTS: "task", CUSTOMERS: "customer"}
"""What a system keeps records of. Their ids are in the column `<noun>_id`."""

CHOICES = {
    "status": ("Qualified", "Won", "Lost", "Lead", "Proposal"),
    "product_interest": ("Software", "Hardware", "Services", "Consulting", "Training"),
    "list_name": ("Backlog", "In Progress", "In Review", "Completed"),
    "board": ("Back end", "Front end", "Design"),
}
"""The values of a field that an update may set. A new customer is not held to them: so it is in the benchmark."""
PLOTTED = (
    "total_visits", "session_duration_seconds", "user_engaged",
    "visits_direct", "visits_referral", "visits_search_engine", "visits_social_media",
)  # fmt: skip
PLOT_TYPES = ("bar", "line", "scatter", "histogram")

Record = dict[str, Any]


# ---------------------------------------------------------------------------------------------------------------------
# Records of all systems


def records(database: sqlite3.Connection, system: str) -> list[Record]:
    """What a system holds, oldest first."""
    select = "SELECT fields FROM records WHERE system = ? AND fields IS NOT NULL ORDER BY place"
    return [json.loads(fields) for (fields,) in database.execute(select, (system,))]


def add(database: sqlite3.Connection, system: str, record: Record) -> None:
    """Append a record to a system."""
    database.execute(
        "INSERT INTO records (system, place, fields) "
        "SELECT :system, coalesce(max(place), 0) + 1, :fields FROM records WHERE system = :system",
        {"system": system, "fields": json.dumps(record)},
    )


def next_id(database: sqlite3.Connection, system: str, digits: int = 8) -> str:
    """One more than the highest id; ids are compared as texts."""
    ids = [record[f"{NOUNS[system]}_id"] for record in records(database, system)]
    return str(int(max(ids, default="0")) + 1).zfill(digits)


def read_record(database: sqlite3.Connection, system: str, record_id: str) -> Record:
    """The record of an id. Refuses an id that no record has."""
    noun = NOUNS[system]
    found = next((record for record in records(database, system) if record[f"{noun}_id"] == record_id), None)
    if found is None:
        raise Refused(f"{noun.capitalize()} not found.")
    return found


def field_reader(system: str) -> Callable[..., Any]:
    """A tool that answers with one field of a record."""

    def read(database: sqlite3.Connection, **given: str) -> Any:
        record = read_record(database, system, given[f"{NOUNS[system]}_id"])
        if given["field"] not in record:
            raise Refused(f"Field not found. Choose from: {', '.join(record)}.")
        return {given["field"]: record[given["field"]]}

    return read


def by_id(system: str, given: Mapping[str, str]) -> dict[str, str]:
    """The parameters of SQL by which a record is found: `json_extract(fields, :path) = :id`."""
    column = f"{NOUNS[system]}_id"
    return {"system": system, "path": f"$.{column}", "id": given[column]}


def deleter(system: str) -> Callable[..., Any]:
    """A tool that deletes a record."""

    def delete(database: sqlite3.Connection, **given: str) -> Any:
        named = by_id(system, given)
        read_record(database, system, named["id"])
        # What was there from the start leaves a mark, by which the state shows that it is gone.
        database.execute(
            "UPDATE records SET fields = NULL WHERE system = :system AND json_extract(fields, :path) = :id", named
        )
        database.execute("DELETE FROM records WHERE system = ? AND fields IS NULL AND first IS NULL", (system,))
        return f"{NOUNS[system].capitalize()} deleted successfully."

    return delete


def updater(system: str) -> Callable[..., Any]:
    """A tool that sets one field of a record."""

    def update(database: sqlite3.Connection, field: str, new_value: str, **given: str) -> Any:
        if field.endswith("_email"):
            new_value = new_value.lower()
        check_choice(field, new_value)
        if system == PROJECTS and field == "assigned_to_email":
            check_assignee(database, new_value)
        named = by_id(system, given)
        record = read_record(database, system, named["id"])
        if field not in record:
            raise Refused(f"Field not valid. Choose from: {', '.join(record)}.")
        database.execute(
            "UPDATE records SET fields = json_set(fields, :field, :value) "
            "WHERE system = :system AND json_extract(fields, :path) = :id",
            {**named, "field": f"$.{field}", "value": new_value},
        )
        return f"{NOUNS[system].capitalize()} updated successfully."

    return update


def check_choice(field: str, value: str) -> None:
    """Refuses a value that the field cannot have."""
    if value not in CHOICES.get(field, (value,)):
        raise Refused(f"{field} {value!r} is not valid. Choose from: {', '.join(CHOICES[field])}.")


def has(record: Record, **wanted: str | None) -> bool:
    """Whether each named field holds the text that is asked for, in any case."""
    return all(not text or text.lower() in (record[field] or "").lower() for field, text in wanted.items())


def within(value: str | None, least: str | None, most: str | None) -> bool:
    """Whether a date, as text, lies between two others; a bound that is empty does not count."""
    return (not least or (value or "") >= least) and (not most or bool(value and value <= most))


def moment(text: str | None) -> datetime | None:
    """A date or time as it was written. Refuses another text."""
    try:
        return datetime.fromisoformat(text) if text else None
    except ValueError:
        raise Refused(f"{text!r} is no date; write YYYY-MM-DD, with HH:MM:SS where a time is meant.") from None


# ---------------------------------------------------------------------------------------------------------------------
# E-mail


def search_emails(
    database: sqlite3.Connection, query: str = "", date_min: str | None = None, date_max: str | None = None
) -> Any:
    """The newest e-mails with all words of the query in subject, body or address."""
    least, most = moment(date_min), moment(date_max)
    found = [
        record
        for record in records(database, EMAIL)
        if all(
            word in f"{record['subject']} {record['body']} {record['sender/recipient']}".lower()
            for word in query.lower().split()
        )
        and (least is None or record["sent_datetime"][:10] >= least.date().isoformat())
        and (most is None or record["sent_datetime"][:10] <= most.date().isoformat())
    ]
    found.sort(key=lambda record: str(record["sent_datetime"]), reverse=True)
    return found[:MOST_FOUND] or "No emails found."


def send_email(database: sqlite3.Connection, recipient: str, subject: str, body: str) -> Any:
    """A new record in the outbox, sent now."""
    if "@" not in recipient or "." not in recipient:
        raise Refused("Invalid recipient email address.")
    add(
        database,
        EMAIL,
        {
            "email_id": next_id(database, EMAIL, digits=0),
            "inbox/outbox": "outbox",
            "sender/recipient": recipient.lower(),
            "subject": subject,
            "sent_datetime": str(read_clock(database)),
            "body": body,
        },
    )
    return "Email sent successfully."


def forward_email(database: sqlite3.Connection, email_id: str, recipient: str) -> Any:
    """The e-mail's text to somebody else."""
    email = read_record(database, EMAIL, email_id)
    send_email(database, recipient, f"FW: {email['subject']}", email["body"])
    return "Email forwarded successfully."


def reply_email(database: sqlite3.Connection, email_id: str, body: str) -> Any:
    """A new text under the e-mail's subject, to who sent it."""
    email = read_record(database, EMAIL, email_id)
    send_email(database, email["sender/recipient"], email["subject"], body)
    return "Email replied successfully."


# ---------------------------------------------------------------------------------------------------------------------
# Calendar


def search_events(
    database: sqlite3.Connection, query: str = "", time_min: str | None = None, time_max: str | None = None
) -> Any:
    """The first events whose name or participant holds the query and that start between the two times."""
    least, most = moment(time_min), moment(time_max)
    found = [
        record
        for record in records(database, CALENDAR)
        if (has(record, event_name=query) or has(record, participant_email=query))
        and (least is None or datetime.fromisoformat(record["event_start"]) >= least)
        and (most is None or datetime.fromisoformat(record["event_start"]) <= most)
    ]
    return found[:MOST_FOUND] or "No events found."


def create_event(
    database: sqlite3.Connection, event_name: str, participant_email: str, event_start: str, duration: str
) -> Any:
    """A new event; the answer is its id."""
    event_id = next_id(database, CALENDAR)
    event = {"event_id": event_id, "event_name": event_name, "participant_email": participant_email.lower()}
    add(database, CALENDAR, event | {"event_start": event_start, "duration": duration})
    return event_id


# ---------------------------------------------------------------------------------------------------------------------
# Analytics


def visits(database: sqlite3.Connection, time_min: str | None, time_max: str | None) -> dict[str, list[Record]]:
    """Day -> the visits of that day, the first day first."""
    days: dict[str, list[Record]] = {}
    for record in sorted(records(database, ANALYTICS), key=lambda record: str(record["date_of_visit"])):
        if within(record["date_of_visit"], time_min, time_max):
            days.setdefault(record["date_of_visit"], []).append(record)
    return days


def get_visitor_information_by_id(database: sqlite3.Connection, visitor_id: str) -> Any:
    """All visits of a visitor."""
    found = [record for record in records(database, ANALYTICS) if record["visitor_id"] == visitor_id]
    if not found:
        raise Refused("Visitor not found.")
    return found


def by_day(figure: Callable[[list[Record]], float]) -> Callable[..., Any]:
    """A tool that answers with a figure of each day's visits."""

    def read(database: sqlite3.Connection, time_min: str | None = None, time_max: str | None = None) -> Any:
        return {day: figure(found) for day, found in visits(database, time_min, time_max).items()}

    return read


def engaged(found: list[Record]) -> int:
    """How many of some visits were of engaged visitors."""
    return sum(record["user_engaged"] == "True" for record in found)


def mean_duration(found: list[Record]) -> float:
    """Mean seconds of a visit."""
    return sum(float(record["session_duration_seconds"]) for record in found) / len(found)


def traffic_source_count(
    database: sqlite3.Connection,
    time_min: str | None = None,
    time_max: str | None = None,
    traffic_source: str | None = None,
) -> dict[str, int]:
    """Visits by day, of one source where one is named."""
    days = visits(database, time_min, time_max)
    return {
        day: sum(not traffic_source or record["traffic_source"] == traffic_source for record in found)
        for day, found in days.items()
    }


def create_plot(database: sqlite3.Connection, time_min: str, time_max: str, value_to_plot: str, plot_type: str) -> str:
    """A plot; the answer is the path of its picture."""
    if value_to_plot not in PLOTTED:
        raise Refused(f"Value to plot must be one of {', '.join(PLOTTED)}.")
    if plot_type not in PLOT_TYPES:
        raise Refused(f"Plot type must be one of {', '.join(PLOT_TYPES)}.")
    path = f"plots/{time_min}_{time_max}_{value_to_plot}_{plot_type}.png"
    add(database, PLOTS, {"file_path": path})
    return path


# ---------------------------------------------------------------------------------------------------------------------
# Project management


def search_tasks(database: sqlite3.Connection, **wanted: str) -> Any:
    """All tasks that fit: the benchmark sets no limit here."""
    if not any(wanted.values()):
        raise Refused("No search parameters provided.")
    return [record for record in records(database, PROJECTS) if has(record, **wanted)]


def create_task(
    database: sqlite3.Connection, task_name: str, assigned_to_email: str, list_name: str, due_date: str, board: str
) -> Any:
    """A new task; the answer is its id."""
    check_assignee(database, assigned_to_email.lower())
    check_choice("list_name", list_name)
    check_choice("board", board)
    task_id = next_id(database, PROJECTS)
    task = {"task_id": task_id, "task_name": task_name, "assigned_to_email": assigned_to_email.lower()}
    add(database, PROJECTS, task | {"list_name": list_name, "due_date": due_date, "board": board})
    return task_id


def check_assignee(database: sqlite3.Connection, email: str) -> None:
    """Refuses who has no task yet."""
    if all(str(record["assigned_to_email"]).lower() != email for record in records(database, PROJECTS)):
        raise Refused("Assignee email not valid. Please choose from the list of team members.")


# ---------------------------------------------------------------------------------------------------------------------
# Customers


def search_customers(
    database: sqlite3.Connection,
    last_contact_date_min: str | None = None,
    last_contact_date_max: str | None = None,
    follow_up_by_min: str | None = None,
    follow_up_by_max: str | None = None,
    **wanted: str,
) -> Any:
    """The first customers that fit."""
    contact, follow_up = (last_contact_date_min, last_contact_date_max), (follow_up_by_min, follow_up_by_max)
    if not any((*contact, *follow_up, *wanted.values())):
        raise Refused("No search parameters provided. Please provide at least one parameter.")
    found = [
        record
        for record in records(database, CUSTOMERS)
        if has(record, **wanted)
        and within(record["last_contact_date"], *contact)
        and within(record["follow_up_by"], *follow_up)
    ]
    return found[:MOST_FOUND]


def add_customer(
    database: sqlite3.Connection,
    customer_name: str,
    assigned_to_email: str,
    status: str,
    customer_email: str | None = None,
    customer_phone: str | None = None,
    last_contact_date: str | None = None,
    product_interest: str | None = None,
    notes: str = "",
    follow_up_by: str | None = None,
) -> Any:
    """A new customer; the answer is the id."""
    customer_id = next_id(database, CUSTOMERS)
    add(
        database,
        CUSTOMERS,
        {
            "customer_id": customer_id,
            "assigned_to_email": assigned_to_email.lower(),
            "customer_name": customer_name,
            "customer_email": customer_email and customer_email.lower(),
            "customer_phone": customer_phone,
            "last_contact_date": last_contact_date,
            "product_interest": product_interest,
            "status": status,
            "follow_up_by": follow_up_by,
            "notes": notes,
        },
    )
    return customer_id


# ---------------------------------------------------------------------------------------------------------------------
# Directory


def find_email_address(database: sqlite3.Connection, name: str) -> list[str]:
    """The addresses that hold a name."""
    return [record["address"] for record in records(database, DIRECTORY) if name.lower() in record["address"]]


# ---------------------------------------------------------------------------------------------------------------------
# The tools as models see them. Every word is read in every rollout: one short sentence each.

_READS = ToolAnnotations(read_only=True, destructive=False, idempotent=True, open_world=False)
_ADDS = ToolAnnotations(read_only=False, destructive=False, idempotent=False, open_world=False)
_DELETES = ToolAnnotations(read_only=False, destructive=True, idempotent=False, open_world=False)
_SETS = ToolAnnotations(read_only=False, destructive=True, idempotent=True, open_world=False)
_DATE, _TIME = "YYYY-MM-DD", "YYYY-MM-DD HH:MM:SS"
_PERIOD = {"time_min": _DATE, "time_max": _DATE}


def _tool(
    part: str,
    name: str,
    run: Callable[..., Any],
    says: str,
    behaviour: ToolAnnotations,
    needed: str = "",
    optional: str = "",
    **notes: str,
) -> SqlTool:
    """`needed` and `optional` are names of arguments, which are all texts; `notes` describe some of them."""
    schema = {
        "type": "object",
        "properties": {
            argument: {
                "type": "string",
                **({"minLength": 1} if argument in needed.split() else {}),
                **({"description": notes[argument]} if argument in notes else {}),
            }
            for argument in f"{needed} {optional}".split()
        },
        "required": needed.split(),
        "additionalProperties": False,
    }
    return SqlTool(Tool(name=name, description=says, input_schema=schema, annotations=behaviour, source=part), run)


def _listed(field: str) -> str:
    return ", ".join(CHOICES[field])


_TASK = "task_name assigned_to_email list_name due_date board"
_TASK_NOTES = {"list_name": _listed("list_name"), "due_date": _DATE, "board": _listed("board")}
_CUSTOMER_NOTES = {"status": _listed("status"), "product_interest": _listed("product_interest")}

TOOLS = (
    _tool(EMAIL, "get_email_information_by_id", field_reader(EMAIL), "Read a field of an e-mail.", _READS,
          "email_id field", field="subject, sender/recipient, sent_datetime, body, inbox/outbox"),
    _tool(EMAIL, "search_emails", search_emails, "The 5 newest e-mails with all words of query in subject, body or "
          "address.", _READS, "", "query date_min date_max", date_min=_DATE, date_max=_DATE),
    _tool(EMAIL, "send_email", send_email, "Send an e-mail.", _ADDS, "recipient subject body"),
    _tool(EMAIL, "delete_email", deleter(EMAIL), "Delete an e-mail.", _DELETES, "email_id"),
    _tool(EMAIL, "forward_email", forward_email, "Forward an e-mail.", _ADDS, "email_id recipient"),
    _tool(EMAIL, "reply_email", reply_email, "Reply to an e-mail.", _ADDS, "email_id body"),
    _tool(CALENDAR, "get_event_information_by_id", field_reader(CALENDAR), "Read a field of an event.", _READS,
          "event_id field", field="event_name, participant_email, event_start, duration"),
    _tool(CALENDAR, "search_events", search_events, "The first 5 events with query in name or participant that start "
          "between two times.", _READS, "", "query time_min time_max", time_min=_TIME, time_max=_TIME),
    _tool(CALENDAR, "create_event", create_event, "Create an event.", _ADDS,
          "event_name participant_email event_start duration", event_start=_TIME, duration="minutes"),
    _tool(CALENDAR, "delete_event", deleter(CALENDAR), "Delete an event.", _DELETES, "event_id"),
    _tool(CALENDAR, "update_event", updater(CALENDAR), "Set a field of an event.", _SETS, "event_id field new_value",
          field="event_name, participant_email, event_start, duration"),
    _tool(ANALYTICS, "engaged_users_count", by_day(engaged), "Engaged users by day.", _READS,
          "", "time_min time_max", **_PERIOD),
    _tool(ANALYTICS, "get_visitor_information_by_id", get_visitor_information_by_id, "Visits of a visitor.", _READS,
          "visitor_id"),
    _tool(ANALYTICS, "traffic_source_count", traffic_source_count, "Visits by day, of one source.", _READS,
          "", "time_min time_max traffic_source", traffic_source="direct, referral, search engine, social media",
          **_PERIOD),
    _tool(ANALYTICS, "total_visits_count", by_day(len), "Visits by day.", _READS,
          "", "time_min time_max", **_PERIOD),
    _tool(ANALYTICS, "create_plot", create_plot, "Plot a value over a period.", _ADDS,
          "time_min time_max value_to_plot plot_type", value_to_plot=", ".join(PLOTTED),
          plot_type=", ".join(PLOT_TYPES), **_PERIOD),
    _tool(ANALYTICS, "get_average_session_duration", by_day(mean_duration), "Mean seconds of a visit by day.",
          _READS, "", "time_min time_max", **_PERIOD),
    _tool(PROJECTS, "get_task_information_by_id", field_reader(PROJECTS), "Read a field of a task.", _READS,
          "task_id field", field=_TASK.replace(" ", ", ")),
    _tool(PROJECTS, "search_tasks", search_tasks, "Find tasks.", _READS, "", _TASK, **_TASK_NOTES),
    _tool(PROJECTS, "create_task", create_task, "Create a task.", _ADDS, _TASK, **_TASK_NOTES),
    _tool(PROJECTS, "delete_task", deleter(PROJECTS), "Delete a task.", _DELETES, "task_id"),
    _tool(PROJECTS, "update_task", updater(PROJECTS), "Set a field of a task.", _SETS, "task_id field new_value",
          field=_TASK.replace(" ", ", ")),
    _tool(CUSTOMERS, "search_customers", search_customers, "The first 5 customers that fit.", _READS, "",
          "customer_name customer_email product_interest status assigned_to_email last_contact_date_min "
          "last_contact_date_max follow_up_by_min follow_up_by_max", last_contact_date_min=_DATE, **_CUSTOMER_NOTES),
    _tool(CUSTOMERS, "update_customer", updater(CUSTOMERS), "Set a field of a customer.", _SETS,
          "customer_id field new_value", field="customer_name, assigned_to_email, customer_email, customer_phone, "
          "last_contact_date, product_interest, status, notes, follow_up_by"),
    _tool(CUSTOMERS, "add_customer", add_customer, "Add a customer.", _ADDS, "customer_name assigned_to_email status",
          "customer_email customer_phone last_contact_date product_interest notes follow_up_by"),
    _tool(CUSTOMERS, "delete_customer", deleter(CUSTOMERS), "Delete a customer.", _DELETES, "customer_id"),
    _tool(DIRECTORY, "find_email_address", find_email_address, "E-mail addresses of a name.", _READS, "name"),
)  # fmt: skip


class Office(SqlSandbox):
    """Some of the systems, as they are in the clone at `folder`.

    A scenario names its parts, such as `email+company_directory`, in the order of `PARTS`; `default` has all.
    """

    name = "office"
    scenarios = ("default", *("+".join(some) for size in range(1, 7) for some in combinations(PARTS, size)))
    # One table: `first` is a record as it was at first, and `compared` what the benchmark compares of it, which is
    # any case but that of three fields. The state is what has changed, so that a rollout does not hold 2,000 records.
    schema = """
        CREATE TABLE parts (name TEXT PRIMARY KEY);
        CREATE TABLE records (
            system TEXT NOT NULL, place INTEGER NOT NULL, fields TEXT, first TEXT,
            compared TEXT AS (json_patch(lower(fields), json_object(
                'status', json_extract(fields, '$.status'), 'list_name', json_extract(fields, '$.list_name'),
                'board', json_extract(fields, '$.board')))),
            compared_first TEXT AS (json_patch(lower(first), json_object(
                'status', json_extract(first, '$.status'), 'list_name', json_extract(first, '$.list_name'),
                'board', json_extract(first, '$.board')))),
            PRIMARY KEY (system, place)
        ) WITHOUT ROWID;
    """
    reads: ClassVar[Mapping[str, str]] = {
        "parts": "SELECT name AS key FROM parts",
        "records": "SELECT system || '/' || place AS key, compared AS record FROM records "
        "WHERE fields IS NOT first AND compared IS NOT compared_first",
    }
    sql_tools = TOOLS

    def __init__(self, folder: str | Path, seed: int = 0, scenario: str = "default") -> None:
        self._folder = str(folder)
        super().__init__(seed, scenario)

    @property
    def tools(self) -> Sequence[Tool]:
        """Those of the scenario's parts; of all while the sandbox is made."""
        if not hasattr(self, "database"):
            return self._tools
        there = {name for (name,) in self.database.execute("SELECT name FROM parts")}
        return [tool for tool in self._tools if tool.source in there]

    def populate(self, database: sqlite3.Connection, chance: Random, scenario: str) -> datetime:  # noqa: ARG002
        """See `SqlSandbox.populate`. All seeds give the same office."""
        for part in PARTS if scenario == "default" else scenario.split("+"):
            database.execute("INSERT INTO parts VALUES (?)", (part,))
            if part == DIRECTORY:
                found: list[Record] = [{"address": address} for address in addresses(self._folder)]
            else:
                found = list(table(self._folder, FILES[part]))
            rows = ((part, place, json.dumps(record)) for place, record in enumerate(found, start=1))
            database.executemany("INSERT INTO records (system, place, fields) VALUES (?, ?, ?)", rows)
        database.execute("UPDATE records SET first = fields")
        return NOW
