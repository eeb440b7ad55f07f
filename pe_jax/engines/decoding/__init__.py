"""Decoding: the past of a layer (`cache`), and a single new token against it (`one_token`)."""
