"""Scalings of the frequencies of RoPE; `pe_jax.encodings.rope_scaling` has them all."""
