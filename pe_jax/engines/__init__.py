"""Engines: the same attention with any encoding, dense, tiled, or one token at a time.

`api` is `attention`: it checks a call (`checks`), gathers terms, computes states and rotates
(`pipeline`, which a cache shares), and `dispatch` chooses an engine. `block` has the score of a
pair, `mask` which keys a query sees, `reference` the dense engine, `tiled` the online softmax over
tiles, `decoding` the cache, `sharded` rings of devices, `kernels` those for GPUs and TPUs.
"""
