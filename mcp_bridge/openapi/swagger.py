"""Swagger 2.0 documents as OpenAPI 3.0 ones.

    parameters in `body` and `formData`     -> `requestBody`
    `definitions`, `securityDefinitions`    -> `components`
    `host`, `basePath`, `schemes`           -> `servers`
    `consumes` and `produces`               -> the media types of bodies and answers

Paths, parameters and answers of other files are written into the document. Schemas of other files stay there.

What has not the right form is left as it is: the reader of documents says what is wrong, and where.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urljoin, urlsplit

from ..errors import SourceError
from .references import References

_METHODS = ("get", "put", "post", "delete", "options", "head", "patch")
_MOVED = {
    "#/definitions/": "#/components/schemas/",
    "#/parameters/": "#/components/parameters/",
    "#/responses/": "#/components/responses/",
}
_JSON, _FORM, _MULTIPART = "application/json", "application/x-www-form-urlencoded", "multipart/form-data"
_IN_BODY = ("body", "formData")
_FLOWS = {"application": "clientCredentials", "accessCode": "authorizationCode"}
_STYLES: dict[str, dict[str, Any]] = {
    "csv": {"explode": False},
    "multi": {"explode": True},
    "ssv": {"style": "spaceDelimited", "explode": False},
    "pipes": {"style": "pipeDelimited", "explode": False},
}
_VALUES = {"example", "examples", "default", "enum"}
"""Keys whose values are data."""
_NAMES = {"properties", "schemas", "responses", "parameters", "paths", "headers", "securitySchemes"}
_OF_PARAMETERS = {"name", "in", "description", "required", "allowEmptyValue", "collectionFormat", "schema"}
"""Keys of a parameter that its schema does not have. In version 2 its schema stands in the parameter itself."""


def as_openapi_3(root: Mapping[str, Any], references: References) -> dict[str, Any]:
    """The document in the form of OpenAPI 3.0. `references`: those of the document as it was read. Where it names no
    scheme, that of the URL it was read from is the API's."""
    return _Converter(root, references).document()


def with_words_of_3(node: Any) -> Any:
    """Another file of the document, whose schemas are in the form of OpenAPI 3.0 and at their place."""
    return _moved(node, to={})


class _Converter:
    def __init__(self, root: Mapping[str, Any], references: References) -> None:
        self._root = root
        self._references = references

    def document(self) -> dict[str, Any]:
        root = self._root
        kept = {key: root[key] for key in ("info", "security", "tags", "externalDocs") if key in root}
        found = {"openapi": "3.0.3", **kept, "servers": self._servers(), "paths": self._paths()}
        components: dict[str, Any] = {}
        for ours, theirs in (("schemas", "definitions"), ("responses", "responses"), ("parameters", "parameters")):
            if theirs in root:
                components[ours] = root[theirs]
        if isinstance(root.get("responses"), Mapping):
            media = self._media(root, "produces")
            components["responses"] = {
                name: _response(self._brought(one), media) for name, one in root["responses"].items()
            }
        if isinstance(root.get("parameters"), Mapping):
            named = {name: self._brought(one) for name, one in root["parameters"].items()}
            components["parameters"] = {name: _parameter(one) for name, one in named.items() if not _is_in_body(one)}
        if isinstance(root.get("securityDefinitions"), Mapping):
            components["securitySchemes"] = {name: _scheme(one) for name, one in root["securityDefinitions"].items()}
        converted = {key: _moved(one) for key, one in {**found, "components": components}.items()}
        # Other files refer to the schemas of this one by their old place.
        return {**converted, "definitions": converted["components"].get("schemas", {})}

    def _servers(self) -> list[dict[str, str]]:
        host, base = self._root.get("host"), str(self._root.get("basePath") or "")
        if not isinstance(host, str) or not host:
            return [{"url": base}] if base else []
        given = self._root.get("schemes")
        schemes = given if isinstance(given, list) else []
        own = [] if schemes else [urlsplit(self._references.root.document).scheme]
        scheme = next((one for one in ("https", "http") if one in (schemes or own)), "https")
        return [{"url": f"{scheme}://{host}{base}"}]

    def _paths(self) -> Any:
        paths = self._root.get("paths")
        if not isinstance(paths, Mapping):
            return paths
        return {path: self._item(one) if str(path).startswith("/") else one for path, one in paths.items()}

    def _item(self, item: Any) -> Any:
        item = self._brought(item)
        if not isinstance(item, Mapping):
            return item
        shared = self._listed(item)
        made = {key: one for key, one in item.items() if key not in _METHODS}
        if isinstance(item.get("parameters"), list):
            made["parameters"] = [_parameter(one) for one, target in shared if not _is_in_body(target)]
        for method in _METHODS:
            if method in item:
                made[method] = self._operation(item[method], [target for _, target in shared if _is_in_body(target)])
        return made

    def _brought(self, node: Any) -> Any:
        """What a reference to another file leads to; anything else as it is."""
        return self._followed(node)[0]

    def _followed(self, node: Any) -> tuple[Any, Any]:
        """A reference within the document and what it leads to; of any other node twice the same: what a reference to
        another file leads to, and the node itself otherwise."""
        here = self._references.root
        try:
            target, place = self._references.follow(node, here)
        except SourceError:
            return node, node
        if place.document == here.document:
            return node, target
        brought = _absolute(target, place.document)
        return brought, brought

    def _listed(self, holder: Mapping[str, Any]) -> list[tuple[Any, Any]]:
        """The parameters of a path or an operation, each with what it refers to."""
        listed = holder.get("parameters")
        return [self._followed(one) for one in listed] if isinstance(listed, list) else []

    def _operation(self, node: Any, shared: list[Any]) -> Any:
        if not isinstance(node, Mapping):
            return node
        own = self._listed(node)
        made = {key: one for key, one in node.items() if key not in ("consumes", "produces", "schemes")}
        if isinstance(node.get("parameters"), list):
            made["parameters"] = [_parameter(one) for one, target in own if not _is_in_body(target)]
        in_body = [target for _, target in own if _is_in_body(target)]
        if all(one["in"] == "formData" for one in in_body):
            names = [one.get("name") for one in in_body]
            in_body = [*(one for one in shared if one.get("name") not in names), *in_body]
        if in_body:
            made["requestBody"] = _body(in_body, self._media(node, "consumes"))
        if isinstance(node.get("responses"), Mapping):
            media = self._media(node, "produces")
            made["responses"] = {
                status: one if str(status).startswith("x-") else _response(self._brought(one), media)
                for status, one in node["responses"].items()
            }
        return made

    def _media(self, node: Mapping[str, Any], key: str) -> list[str]:
        given = node.get(key) or self._root.get(key)
        return [str(one) for one in given] if isinstance(given, list) and given else [_JSON]


def _is_in_body(parameter: Any) -> bool:
    return isinstance(parameter, Mapping) and parameter.get("in") in _IN_BODY


def _parameter(node: Any) -> Any:
    """A parameter outside of the body, or a header of an answer."""
    if not isinstance(node, Mapping) or "$ref" in node:
        return node
    made = {key: node[key] for key in ("name", "in", "description", "required", "allowEmptyValue") if key in node}
    if node.get("type") == "array":
        form = str(node.get("collectionFormat", "csv"))
        # A form that OpenAPI 3 has not, such as `tsv`, is refused as a style of that name.
        style = _STYLES.get(form, {"style": form})
        made |= style if node.get("in") == "query" or form not in ("csv", "multi") else {}
    return {**made, "schema": _own_schema(node)}


def _own_schema(node: Mapping[str, Any]) -> dict[str, Any]:
    """The schema that stands in a parameter itself."""
    schema = {key: one for key, one in node.items() if key not in _OF_PARAMETERS}
    if isinstance(schema.get("items"), Mapping):
        schema["items"] = _own_schema(schema["items"])
    return schema


def _body(parameters: list[Any], consumes: list[str]) -> dict[str, Any]:
    body = next((one for one in parameters if one["in"] == "body"), None)
    if body is not None:
        media = {name: {"schema": body.get("schema", {})} for name in consumes if name not in (_FORM, _MULTIPART)}
        made = {"content": media or {_JSON: {"schema": body.get("schema", {})}}}
        return {**made, **{key: body[key] for key in ("description", "required") if key in body}}
    fields = {str(one.get("name")): one for one in parameters}
    required = [name for name, one in fields.items() if one.get("required") is True]
    properties = {
        name: {**_own_schema(one), **({"description": one["description"]} if "description" in one else {})}
        for name, one in fields.items()
    }
    schema = {"type": "object", "properties": properties, **({"required": required} if required else {})}
    encoding = {
        name: {"style": "form", **_STYLES.get(str(one.get("collectionFormat", "csv")), {})}
        for name, one in fields.items()
        if one.get("type") == "array"
    }
    has_file = any(one.get("type") == "file" for one in fields.values())
    kind = _MULTIPART if has_file or (_MULTIPART in consumes and _FORM not in consumes) else _FORM
    content = {kind: {"schema": schema, **({"encoding": encoding} if encoding else {})}}
    return {"content": content, "required": bool(required)}


def _response(node: Any, produces: list[str]) -> Any:
    if not isinstance(node, Mapping) or "$ref" in node:
        return node
    made = {key: one for key, one in node.items() if key not in ("schema", "headers", "examples")}
    examples = node["examples"] if isinstance(node.get("examples"), Mapping) else {}
    media = produces if "schema" in node else list(examples)
    if media:
        made["content"] = {
            name: {
                **({"schema": node["schema"]} if "schema" in node else {}),
                **({"example": examples[name]} if name in examples else {}),
            }
            for name in media
        }
    if isinstance(node.get("headers"), Mapping):
        made["headers"] = {name: _parameter(one) for name, one in node["headers"].items()}
    return made


def _scheme(node: Any) -> Any:
    if not isinstance(node, Mapping):
        return node
    if node.get("type") == "basic":
        return {**node, "type": "http", "scheme": "basic"}
    if node.get("type") == "oauth2":
        flow = {key: node[key] for key in ("authorizationUrl", "tokenUrl", "scopes") if key in node}
        name = str(node.get("flow"))
        return {"type": "oauth2", "description": node.get("description", ""), "flows": {_FLOWS.get(name, name): flow}}
    return node


def _absolute(node: Any, document: str) -> Any:
    """A part of another document, with references that hold elsewhere, too."""
    if isinstance(node, list):
        return [_absolute(one, document) for one in node]
    if not isinstance(node, Mapping):
        return node
    made = {key: _absolute(one, document) for key, one in node.items()}
    if isinstance(made.get("$ref"), str):
        made["$ref"] = urljoin(document, made["$ref"])
    return made


def _moved(node: Any, *, is_of_names: bool = False, to: Mapping[str, str] = _MOVED) -> Any:
    """With references `to` where things are now, and with the words of OpenAPI 3.0 in schemas. `is_of_names`: the keys
    of the object are names of the author's own."""
    if isinstance(node, list):
        return [_moved(one, to=to) for one in node]
    if not isinstance(node, Mapping):
        return node
    made = {
        key: one
        if key in _VALUES and not is_of_names
        else _moved(one, is_of_names=key in _NAMES and not is_of_names, to=to)
        for key, one in node.items()
    }
    reference = made.get("$ref")
    if isinstance(reference, str):
        for old, new in to.items():
            if reference.startswith(old):
                made["$ref"] = new + reference.removeprefix(old)
    if isinstance(made.get("discriminator"), str):
        made["discriminator"] = {"propertyName": made["discriminator"]}
    if isinstance(made.get("x-nullable"), bool):
        made["nullable"] = made.pop("x-nullable")
    return made
