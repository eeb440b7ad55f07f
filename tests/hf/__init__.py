"""Whole Hugging Face configs, as on the Hub; tests/oracles/test_hf.py asks transformers."""
