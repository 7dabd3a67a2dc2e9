"""Where a JSON Schema of draft 2020-12 holds other schemas."""

ONE = frozenset(
    {"additionalItems", "additionalProperties", "contains", "contentSchema", "else", "if", "items", "not", "then"}
    | {"propertyNames", "unevaluatedItems", "unevaluatedProperties"}
)
"""Keywords whose value is a schema."""
MANY = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
"""Keywords whose value is a list of schemas."""
NAMED = frozenset({"dependentSchemas", "patternProperties", "properties"})
"""Keywords whose value is an object of schemas."""
