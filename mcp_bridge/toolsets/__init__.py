"""Tools of all sources as one set: checks, limits and results that hold whatever is behind a tool."""
