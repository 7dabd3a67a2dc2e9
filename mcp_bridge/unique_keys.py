"""YAML in which no mapping has a key twice."""

from __future__ import annotations

import yaml


class UniqueKeys(yaml.constructor.SafeConstructor):  # type: ignore[misc]
    """Goes before a loader of PyYAML, which of a key that a mapping has twice would keep the last and say nothing."""

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        # It puts the keys of `<<` before the own ones, which replace them: each mapping is looked at once, before that.
        checked: set[yaml.MappingNode] = self.__dict__.setdefault("_checked", set())
        if node not in checked:
            checked.add(node)
            seen: set[str] = set()
            for key, _ in node.value:
                if key.tag != "tag:yaml.org,2002:merge" and isinstance(key.value, str):
                    if key.value in seen:
                        said = f"the key {key.value!r} occurs twice; keep one of them"
                        raise yaml.constructor.ConstructorError(None, None, said, key.start_mark)
                    seen.add(key.value)
        super().flatten_mapping(node)
