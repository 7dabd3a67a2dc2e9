"""The backend of an API twin: the rows of one world, and the answers to requests."""
