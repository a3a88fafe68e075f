"""Draw images whose numbers are their brightness, in four classes, into a folder: draw_images.py FOLDER COUNT."""

import sys
from pathlib import Path

from PIL import Image

for row in range(int(sys.argv[2])):
    path = Path(sys.argv[1]) / f"class{row % 4}" / f"{row:02}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (40, 40), (5 * row, 5 * row, 5 * row)).save(path)
