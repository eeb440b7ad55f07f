"""Whole Hugging Face configs, as on the Hub; tests/oracles/test_hf_*.py ask transformers."""
