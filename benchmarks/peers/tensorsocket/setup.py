"""Makes the environment in which TensorSocket is measured: .venv-tensorsocket in the repository's root."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

HERE = Path(__file__).parent
TARGET = HERE.parents[2] / ".venv-tensorsocket"


def main() -> None:
    venv.create(TARGET, with_pip=True)
    pip = [str(TARGET / "bin" / "python"), "-m", "pip", "install", "--quiet"]
    subprocess.run([*pip, "-r", str(HERE / "requirements.txt"), *sys.argv[1:]], check=True)


if __name__ == "__main__":
    main()
