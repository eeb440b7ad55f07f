"""Attention in Pallas kernels, for NVIDIA GPUs (`gpu`) and TPUs (`tpu`).

Experimental: those for GPUs ran on one H200, those for TPUs on no device yet. So each kind of call
is compared with the dense engine on the same device before a kernel runs it (`self_check`), and
tiles of XLA run instead if the two disagree.

Only `pe_jax.engines.dispatch` imports these modules. Both back ends share `common` (which terms
they take, how these add up, padding, gradients) and `query_chunks` (terms that no kernel computes).
"""
