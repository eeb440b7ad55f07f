"""Released checkpoints: small ones, made here or recorded from transformers."""
