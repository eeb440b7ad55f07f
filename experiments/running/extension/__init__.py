"""Longer contexts from a trained RoPE model: its runs, the methods, passkeys, a search."""
