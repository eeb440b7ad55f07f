"""Encoders of images that rotate queries and keys."""

from tools.cookbook_rows.row import Row

IMAGES = (
    Row(
        "DINOv3",
        "dinov3_vit",
        "Positions are pixels' centres in [-1, 1]: `positions.grid(h, w, normalized=True,"
        " prefix=…)`; CLS and registers come first and do not turn",
        "axes",
        {"num_register_tokens": 4},
    ),
    Row(
        "Pixtral",
        "pixtral",
        "Rows have the even frequencies, columns the odd ones",
        "axes",
    ),
    Row(
        "Qwen2-VL vision",
        "qwen2_vl_vision",
        "Patches come in blocks of 2 × 2 that are merged later: positions are theirs",
        "axes",
        {"embed_dim": 64, "depth": 2},
    ),
)
