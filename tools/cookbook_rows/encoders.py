"""Encoders of text and proteins that rotate queries and keys."""

from tools.cookbook_rows.row import Row, rope

ENCODERS = (
    Row(
        "ModernBERT",
        "modernbert",
        "Every third layer from the first on is full, base 160000; `local_attention` 128 is 64 to"
        " each side: our window is 65",
        "scores",
    ),
    Row(
        "RoFormer",
        "roformer",
        "Neighbours in pairs, though sin and cos come from a table of halves",
        "rotation",
    ),
    Row(
        "ESM-2",
        "esm",
        "Queries are divided by sqrt(E) before the rotation; ESM-1b has a table:"
        " `position_embedding_type`",
        "scores",
        {"position_embedding_type": "rotary"},
    ),
    Row(
        "EuroBERT",
        "eurobert",
        "Llama without the causal mask",
        "scores",
        rope(rope_theta=250000.0),
    ),
)
