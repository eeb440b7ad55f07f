"""Published results to compare with: in separate tables, marked as theirs.

Press et al., "Train Short, Test Long" (ALiBi), arXiv 2108.12409: WikiText-103 in words, 247M
parameters, 16 layers of width 1024, 8 heads.
"""

from experiments.reporting.html_page import Section

PAPER = "Press et al., arXiv 2108.12409"
SCHEMES = ("sinusoidal", "rotary", "T5 bias", "ALiBi")
WORDS_PER_SECOND = ((26_000, 77_800), (17_700, 39_400), (13_000, 20_200), (25_800, 76_400))
GIGABYTES = (19.2, 22.8, 20.9, 19.3)


def _table(title: str, what: str, head: tuple[str, ...], rows: tuple[tuple, ...]) -> Section:
    def text(value: float | str) -> str:
        return value if isinstance(value, str) else f"{value:,.{0 if value > 1000 else 2}f}"

    cells = [(name, *map(text, row)) for name, row in zip(SCHEMES, rows, strict=True)]
    return Section(
        f"Published by others: {title}", f"{PAPER}: {what}.", ("theirs", *head), cells, csv=None
    )


NON_OVERLAPPING = _table(
    "perplexity by length, without overlap",
    "validation perplexity of words, non-overlapping evaluation, trained → tested length",
    ("512 → 512", "→ 1012", "→ 2512", "→ 15512", "1024 → 1024", "→ 3024", "3072 → 3072"),
    (
        (20.05, 43.54, 132.41, 406.01, 19.34, 96.46, 18.67),
        (20.07, 21.37, 31.58, 79.25, 19.33, 35.67, 18.57),
        (19.65, 18.79, 20.41, "out of memory", 18.80, 18.62, 18.01),
        (19.73, 18.73, 18.41, 18.31, 18.66, 17.92, 17.60),
    ),
)
SLIDING = _table(
    "perplexity by length, sliding window",
    "validation perplexity of words, sliding window of stride 1, trained at 512",
    ("→ 512", "→ 1024", "→ 3072"),
    ((18.35, 204.42, 360.12), ("—", "—", "—"), (17.92, 18.51, 30.77), (17.98, 17.92, 18.30)),
)
SPEED = _table(
    "time and memory on a V100",
    "length 1024, one V100; time per word and memory as ratios to sinusoidal, less is better, from"
    " their words per second, in training "
    + ", ".join(f"{train:,}" for train, _ in WORDS_PER_SECOND)
    + ", and in evaluation "
    + ", ".join(f"{test:,}" for _, test in WORDS_PER_SECOND),
    (
        "training, time ÷ sinusoidal (less is better)",
        "evaluation, time ÷ sinusoidal (less is better)",
        "memory ÷ sinusoidal (less is better)",
        "memory, GB",
    ),
    tuple(
        (
            *(first / speed for first, speed in zip(WORDS_PER_SECOND[0], pace, strict=True)),
            m / GIGABYTES[0],
            m,
        )
        for pace, m in zip(WORDS_PER_SECOND, GIGABYTES, strict=True)
    ),
)
TABLES = (NON_OVERLAPPING, SLIDING, SPEED)
