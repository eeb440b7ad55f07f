"""One file a scheme: the paper's equation in float64, written from the paper, and the traps."""
