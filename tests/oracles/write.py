"""Rewrites the golden files: `python -m tests.oracles.write`.

It needs the extra `oracles`, and tests/oracles/no_deps.txt, installed with --no-deps.
"""

from tests.oracles import live, replay
from tests.oracles.cases import GOLDEN


def main() -> None:
    records = {name: live.run(case, settings) for name, case, settings in GOLDEN}
    for old in replay.GOLDEN.glob("*.npz"):
        old.unlink()
    replay.GOLDEN.mkdir(exist_ok=True)
    for name, record in records.items():
        replay.save(record, replay.GOLDEN / f"{name}.npz")
        errors = {output: f"{error:.1e}" for output, error in replay.compare(record).items()}
        print(f"{name:28} {record.settings}  largest error {errors}")


if __name__ == "__main__":
    main()
