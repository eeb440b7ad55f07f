"""Engines: the same attention with any encoding, dense, tiled, or one token at a time."""
