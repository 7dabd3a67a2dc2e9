"""OpenAPI 3.0 and 3.1 documents: read into records (`document`), and used as live tools (`source`)."""
