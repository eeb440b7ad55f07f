"""Which runs there are, in which order, and what became of them."""
