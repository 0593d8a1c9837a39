"""Take the pictures of reports in the README and the pages: ``python docs/pictures/screenshot.py``.

Reads the reports of ``make demo`` and ``make demo-hospitals``, and needs chromium on the path. The figures of the
gallery are those of ``make demo``.
"""

import shutil
import subprocess
import sys
from pathlib import Path

from atoll.report.figures import draw
from atoll.report.plots import save
from atoll.storage.run_reader import find, load

FOLDER = Path(__file__).parent
RUNS = FOLDER.parent.parent / "runs"
PICTURES = {"report": ("demo", 1280, 1500), "report-hospitals": ("demo-hospitals", 1280, 1420)}  # width and height

GALLERY = ("gains", "curves", "boxes", "bytes", "trade-off", "holdings")


def main() -> None:
    """Write a PNG beside this file for each report."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        sys.exit("There is no chromium on the path. Install it with the packages of your system.")
    for name, (folder, width, height) in PICTURES.items():
        report = RUNS / folder / "report.html"
        if not report.exists():
            sys.exit(f"There is no report {report}. Make it with: make {folder}")
        options = ["--headless", "--no-sandbox", "--hide-scrollbars", f"--window-size={width},{height}"]
        subprocess.run(
            [browser, *options, f"--screenshot={FOLDER / name}.png", report.as_uri()], check=True, capture_output=True
        )
        print(f"Wrote {FOLDER / name}.png")
    runs = [load(path) for path in find([RUNS / "demo"])]
    for kind in GALLERY:
        print(f"Wrote {save(draw(kind, runs), FOLDER / 'gallery' / f'{kind}.png')}")


if __name__ == "__main__":
    main()
