"""A folder in the layout of a clone, with few rows."""

from __future__ import annotations

import csv
from pathlib import Path

from clone import SYSTEMS

_NADIA, _RAJ = "nadia.moreau@atlas.com", "raj.patel@atlas.com"
_TABLES = {
    "emails.csv": [
        ["email_id", "inbox/outbox", "sender/recipient", "subject", "sent_datetime", "body"],
        *(
            [f"0000000{n}", "inbox", _NADIA, f"Budget {n}", f"2023-11-2{n} 09:00:00", "Dear Sam, the budget is due."]
            for n in range(1, 8)
        ),
        ["00000008", "inbox", _RAJ, "Gala", "2023-11-28 09:00:00", "The gala is off."],
    ],
    "calendar_events.csv": [
        ["event_id", "event_name", "participant_email", "event_start", "duration"],
        ["00000004", "Review", _RAJ, "2023-11-01 09:00:00", "30"],
        ["00000005", "Review", _NADIA, "2023-11-10 09:00:00", "30"],
        ["00000002", "Stand-up", _RAJ, "2023-11-29 09:00:00", "30"],
        ["00000003", "Gala", _NADIA, "2023-12-01 09:00:00", "60"],
        ["00000001", "Stand-up", _RAJ, "2023-12-01 13:30:00", "30"],
    ],
    "analytics_data.csv": [
        ["date_of_visit", "visitor_id", "page_views", "session_duration_seconds", "traffic_source", "user_engaged"],
        ["2023-11-28", "0001", "3", "10", "direct", "True"],
        ["2023-11-27", "0002", "4", "20", "referral", "False"],
        ["2023-11-28", "0003", "5", "20", "direct", "False"],
    ],
    "project_tasks.csv": [
        ["task_id", "task_name", "assigned_to_email", "list_name", "due_date", "board"],
        *(
            [f"0000000{n}", f"Fix page {n}", _NADIA, "Backlog" if n < 7 else "In Review", f"2023-11-2{n}", "Front end"]
            for n in range(1, 8)
        ),
        ["00000008", "Draw logo", _RAJ, "In Progress", "2023-12-05", "Design"],
    ],
    "customer_relationship_manager_data.csv": [
        [
            "customer_id", "assigned_to_email", "customer_name", "customer_email", "customer_phone",
            "last_contact_date", "product_interest", "status", "follow_up_by", "notes",
        ],
        *(
            [f"0000000{n}", _NADIA, f"Kim {n}", f"k{n}@fox", "", f"2023-11-1{n}", "Hardware", "Lead", "2023-12-24", ""]
            for n in range(1, 7)
        ),
    ],
}  # fmt: skip


def write_small_folder(folder: Path) -> None:
    """Eight e-mails, five events, three visits, eight tasks, six customers, two addresses."""
    for name, rows in _TABLES.items():
        write_table(folder / "data" / "processed" / name, rows)
    write_table(folder / "data" / "raw" / "email_addresses.csv", [[_NADIA], [_RAJ]])


def write_table(path: Path, rows: list[list[str]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(rows)


QUERIES = ["query", "answer", "base_template", "chosen_template", "domains"]


def write_queries(folder: Path) -> None:
    """Three templates of e-mail in two wordings each; no task of the other systems."""
    rows = []
    for template, other in (
        ("Delete my last email from {name}", "Remove the newest email from {name}"),
        ("Delete the latest email of {name}", "{name} wrote to me; delete it"),
        ("Get rid of the email from {name}", "Can you delete the last email from {name}?"),
    ):
        for wording in (template, other):
            for name, number in (("nadia", 7), ("raj", 8)):
                gold = f"['email.delete_email.func(email_id=\"0000000{number}\")']"
                rows.append([wording.format(name=name), gold, template, wording, "['email']"])
    for domain in (*SYSTEMS, "multi_domain"):
        of_domain = rows if domain == "email" else []
        write_table(folder / f"queries_and_answers/{domain}_queries_and_answers.csv", [QUERIES, *of_domain])
