"""Models with positions at the input."""

from tools.cookbook_rows.row import Row

INPUT = (
    Row("BERT", "bert", "LayerNorm comes after the sum with words and segments", "rows"),
    Row(
        "RoBERTa, XLM-R",
        "roberta",
        "Position 0 has row `pad_token_id` + 1 = 2: 512 positions in 514 rows",
        "rows",
        {"max_position_embeddings": 514, "pad_token_id": 1},
    ),
    Row(
        "GPT-2",
        "gpt2",
        "`Conv1D` has weights [in, out]; `scale_attn_by_inverse_layer_idx` divides scores by the"
        " layer's number",
        "rows",
    ),
    Row("OPT", "opt", "Two more rows than positions: position 0 has row 2", "rows"),
    Row(
        "CLIP, its text",
        "clip_text_model",
        "Causal, and pooled at the last token; 77 positions, its config may leave them out",
        "rows",
    ),
    Row(
        "BART",
        "bart",
        "As OPT, in both stacks; the config says 1024, the table has 1026 rows",
        "rows",
    ),
    Row(
        "Whisper",
        "whisper",
        "Two layouts: tensor2tensor's sinusoids in the encoder, a table in the decoder",
        "sinusoids",
    ),
    Row(
        "Marian",
        "marian",
        "All sines before all cosines; words are multiplied by sqrt(D) first if `scale_embedding`",
        "sinusoids",
    ),
    Row(
        "ViT, DeiT",
        "vit",
        "Row 0 is CLS, at (-1, -1): `positions.grid(h, w, prefix=1, numbered=True)`; DeiT has a"
        " second one before the patches. `learned_grid.resize` fits other images; in"
        " `jax.image.resize` the cubic constant is another",
        "patches",
    ),
    Row(
        "DINOv2",
        "dinov2",
        "Released tables are of 518 pixels. Meta's code resizes with `offset=0.1` in the ratios,"
        " transformers without",
        "patches",
        {"image_size": 518, "patch_size": 14},
    ),
    Row(
        "DINOv2 with registers",
        "dinov2_with_registers",
        "Resized with antialiasing; registers go between CLS and patches after the table is added",
        "patches",
        {"image_size": 518, "patch_size": 14},
    ),
    Row("SigLIP", "siglip_vision_model", "No CLS; bicubic without antialiasing", "patches"),
    Row(
        "SigLIP 2 (NaFlex)",
        "siglip2_vision_model",
        "Each image has its own grid, and the table is always resized to it, bilinearly with"
        " antialiasing; padding has the vector of the first patch",
        "patches",
        {"num_patches": 256},
    ),
    Row(
        "ViT-MAE",
        "vit_mae",
        "Released tables have the columns' half first, ours the rows': swap the halves; CLS has"
        " zeros",
        "table",
    ),
)
