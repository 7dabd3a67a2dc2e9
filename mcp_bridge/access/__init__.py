"""Access to servers: logins, TLS and proxies, and the redaction of secrets."""
