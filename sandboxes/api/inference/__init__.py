"""Inference of a backend from an API's document: tables, their links, and what each operation does."""
