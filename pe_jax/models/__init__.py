"""Models that use the slots: a Transformer, and generation with a cache."""
