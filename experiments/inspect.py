"""What a released checkpoint is, and whether its positions are read rightly.

python -m experiments.inspect --checkpoint=smollm2
python -m experiments.inspect --checkpoint=models/SmolLM2-135M --text=novel.txt

The checkpoint is a folder of the Hub, a .gguf file, or `smollm2` or `gemma3`, which are packages to
install; nothing is downloaded. Two losses follow the description, in nats per token. One passage at
growing positions: it must not change where positions are relative. The same last 1,024 targets
under growing context: it should fall up to the length that the model was trained to.
"""

from absl import flags

from experiments.running.command import launch


def main() -> None:
    """Imports the program, once the flags are right, and runs it."""
    from experiments.programs import inspect

    values = flags.FLAGS
    inspect.main(values.checkpoint, values.text, values.dtype, values.probe)


if __name__ == "__main__":
    flags.DEFINE_string("checkpoint", "smollm2", "a folder, a .gguf file, smollm2 or gemma3")
    flags.DEFINE_string("text", None, "a text of the probe; by default Python code of a package")
    flags.DEFINE_enum("dtype", "float32", ("float32", "bfloat16"), "of weights and activations")
    flags.DEFINE_bool("probe", True, "whether losses are computed")
    launch.run_flags(main)
