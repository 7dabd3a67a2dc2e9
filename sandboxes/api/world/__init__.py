"""The rows behind a simulated API, and where the first of them come from."""
