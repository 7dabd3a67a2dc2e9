"""What agents of the frameworks that people use were told by a server, in the frameworks' own environments."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from frameworks.clients import FRAMEWORKS, STRUCTURED
from other_environments import python_of

CLIENTS = Path(__file__).parent / "frameworks" / "clients.py"
QUIET = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # else it is fetched
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "LANGSMITH_TRACING": "false",
}
ALONE = "llamaindex"
"""It has an environment of its own. The others share a process, too: each takes seconds to import its framework."""


def told_by(url: str, form_url: str, **desk: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """By the names of `FRAMEWORKS` and of `STRUCTURED`. `desk`: further variables of their environment."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | QUIET | desk
    others = {name.split(", ")[0] for name in (*FRAMEWORKS, *STRUCTURED)} - {ALONE}
    talks: dict[str, Any] = {}
    forms: dict[str, Any] = {}
    for place, wanted in (("frameworks", others), (ALONE, {ALONE})):
        command = [str(python_of(place)), str(CLIENTS), ",".join(sorted(wanted)), f"{url}/v1", f"{form_url}/v1"]
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=500)
        assert ended.returncode == 0, ended.stderr[-3000:]
        found = json.loads(ended.stdout.splitlines()[-1])
        talks |= found[0]
        forms |= found[1]
    return talks, forms
