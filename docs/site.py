"""What the site takes from outside ``docs/``: pages at the top of the repository, pictures, examples.

The pages are written for who reads them in the repository. Here, links to
files outside ``docs/`` are turned to where the site has those files.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
OUTSIDE = {
    "README.md": "index.md",
    "benchmarks/README.md": "measuring.md",
    **{name: name for name in ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "LICENSE")},
    **{str(path.relative_to(ROOT)): str(path.relative_to(ROOT)) for path in ROOT.glob("examples/*.*")},
    **{str(path.relative_to(ROOT)): str(path.relative_to(ROOT)) for path in ROOT.glob("benchmarks/results/*.*")},
}
"""Where the site has a file of the repository."""
IN_REPOSITORY = {there: here for here, there in OUTSIDE.items()}
LINK = re.compile(r"(?<=\]\()([^)#:\s]+)")


def on_files(files: Files, config: Any) -> Files:
    for here, there in OUTSIDE.items():
        files.append(File.generated(config, there, abs_src_path=str(ROOT / here)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    there = page.file.src_uri
    here = Path(IN_REPOSITORY.get(there, f"docs/{there}")).parent

    def turned(link: re.Match[str]) -> str:
        target = os.path.normpath(here / link[1])
        on_site = OUTSIDE.get(target, target.removeprefix("docs/"))
        return os.path.relpath(on_site, Path(there).parent)

    return LINK.sub(turned, markdown)
