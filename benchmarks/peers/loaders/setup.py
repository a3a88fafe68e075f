"""Makes the environments in which other loaders of images are measured: .venv-LOADER in the repository's root.

python benchmarks/peers/loaders/setup.py [options of pip]
"""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[2]


def main() -> None:
    peers: list[str] = []
    for requirements in sorted(HERE.glob("*.txt")):
        target = ROOT / f".venv-{requirements.stem}"
        venv.create(target, with_pip=True)
        pip = [str(target / "bin" / "python"), "-m", "pip", "install", "--quiet"]
        installed = subprocess.run([*pip, "-r", str(requirements), *sys.argv[1:]], check=False)
        if installed.returncode:
            print(f"{requirements.stem} cannot be installed here, and is left out", file=sys.stderr)
        else:
            peers.append(f"--peer {requirements.stem}={target.relative_to(ROOT)}/bin/python")
    print("python -m benchmarks loaders DIR", *peers)


if __name__ == "__main__":
    main()
