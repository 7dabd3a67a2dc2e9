"""OpenAPI 3.0 and 3.1 and Swagger 2.0 documents: read into records (`document`), and used as live tools (`source`)."""
