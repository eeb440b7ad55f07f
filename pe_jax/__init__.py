"""Positional encodings as pure functions, and one attention that runs any of them."""
