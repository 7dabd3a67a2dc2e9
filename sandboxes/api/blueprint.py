"""What all worlds of an API twin share: the document, its tools, what was inferred, and the rows of each seed."""

from __future__ import annotations

import hashlib
import json
import logging
from collections import OrderedDict
from collections.abc import Collection, Mapping
from pathlib import Path
from threading import Lock
from typing import Any

from mcp_bridge.errors import SourceError
from mcp_bridge.openapi.document import Document
from mcp_bridge.openapi.operations import read_document
from mcp_bridge.openapi.tools import OF_OTHER_TAGS, OperationTool, ToolMaker, legal_name
from mcp_bridge.toolsets.schema_checks import compiled_schema, schema_errors
from mcp_bridge.toolsets.usable import split_usable

from .access import SIGNED_OUT
from .answering.errors import Refusals
from .inference.planning import infer
from .shapes import Shapes
from .world.seeding import Seeds

logger = logging.getLogger(__name__)

_SEEDS_KEPT = 64
DEFAULT, EMPTY = "default", "empty"


class Blueprint:
    """Read once, and never written to apart from what is made on demand."""

    def __init__(
        self,
        document: str | Path | Mapping[str, Any] | Document,
        *,
        name: str | None,
        rows: int,
        tags: Collection[str],
        follow_urls: bool,
    ) -> None:
        self.document = document if isinstance(document, Document) else read_document(document, follow_urls=follow_urls)
        self.name = legal_name(name or self.document.title or "api")
        self._rows = rows
        self.shapes = Shapes(self.document)
        self.backend = infer(self.document, self.shapes)
        self.refusals = Refusals(self.document, self.shapes)
        # Keys of the API are the configuration's business, in a twin as on the live API.
        keys = {
            (scheme.location, scheme.parameter.lower())
            for scheme in self.document.security_schemes.values()
            if scheme.kind == "apiKey"
        }
        self.maker = ToolMaker(self.document, source=self.name, tags=tags, fixed=keys)
        made, left_out = self.maker.make(lambda _: None)
        usable, unusable = split_usable([one.tool for one in made], self.name)
        left_out += unusable
        if not usable:
            reasons = "; ".join(dict.fromkeys(one.reason for one in left_out)) or "it has none"
            raise SourceError(f"{self.name}: no operation is left: {reasons}")
        names = {tool.name for tool in usable}
        self.tools: dict[str, OperationTool] = {one.tool.name: one for one in made if one.tool.name in names}
        self.left_out = [one for one in left_out if not one.reason.startswith(OF_OTHER_TAGS)]
        if self.left_out:
            told = "; ".join(f"{one.tool} ({one.reason})" for one in self.left_out)
            logger.warning("%s: operations that cannot be used are left out: %s", self.name, told)
        self._strict: dict[str, Any] = {}
        self._seeds: OrderedDict[tuple[int, str], Seeds] = OrderedDict()
        # Resources are tried in a world of few rows, whatever the size of the user's.
        self.few_rows = Seeds(self.backend.tables, self.shapes, name=self.document.title, seed=0, rows=2)
        self._lock = Lock()

    def seeds(self, seed: int, scenario: str) -> Seeds:
        """The rows that a world of this seed and scenario begins with."""
        scenario = self.data_of(scenario)
        key = (seed, scenario)
        with self._lock:
            found = self._seeds.get(key)
            if found is None:
                rows = 0 if scenario == EMPTY else self._rows
                name = f"{self.document.title}/{scenario}"
                found = Seeds(self.backend.tables, self.shapes, name=name, seed=seed, rows=rows)
                self._seeds[key] = found
                if len(self._seeds) > _SEEDS_KEPT:
                    self._seeds.popitem(last=False)
            self._seeds.move_to_end(key)
        return found

    @staticmethod
    def data_of(scenario: str) -> str:
        """The scenario whose rows a scenario has: who calls changes none of them."""
        return DEFAULT if scenario == SIGNED_OUT else scenario

    def fingerprint(self) -> str:
        """Of what a snapshot hangs on: which tables there are, and how many rows they begin with."""
        tables = {table.name: [table.path, table.parent] for table in self.backend.tables.values()}
        said = json.dumps([self.document.title, self.document.version, tables, self._rows])
        return hashlib.sha256(said.encode()).hexdigest()

    def only_the_server_sets(self, tool: OperationTool, value: Any) -> str | None:
        """The place in a body that holds what only the server may set, as the live source refuses it.

        Raises `SchemaTimeout`.
        """
        if tool.plan.strict_schema is None:
            return None
        name = tool.tool.name
        if name not in self._strict:
            self._strict[name] = compiled_schema(tool.plan.strict_schema, is_known_valid=True)
        for problem in schema_errors(self._strict[name], value):
            if problem.validator is None:
                return str(problem.json_path).removeprefix("$").removeprefix(".")
        return None
