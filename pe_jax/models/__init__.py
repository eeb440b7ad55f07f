"""Models that take any encoding: a Transformer, a ViT, generation, adapters for Flax attention."""
