"""Draw images with a square each, and their labels, as YOLO reads them: draw_squares.py FOLDER."""

import random
import sys
from pathlib import Path

from PIL import Image, ImageDraw

folder = Path(sys.argv[1]).resolve()
draw = random.Random(0)
for part, count in (("train", 12), ("val", 4)):
    for kind in ("images", "labels"):
        (folder / kind / part).mkdir(parents=True, exist_ok=True)
    for i in range(count):
        x, y = draw.randrange(8, 40), draw.randrange(8, 40)
        image = Image.new("RGB", (64, 64), (40, 40, 40))
        ImageDraw.Draw(image).rectangle((x, y, x + 16, y + 16), fill=(250, 20 * i, 0))
        image.save(folder / "images" / part / f"{i:02}.png")
        (folder / "labels" / part / f"{i:02}.txt").write_text(f"0 {(x + 8) / 64} {(y + 8) / 64} 0.25 0.25\n")
(folder / "data.yaml").write_text(f"path: {folder}\ntrain: images/train\nval: images/val\nnames: [square]\n")
