"""Find the official files of data sets in the data folder, or download them with a checksum."""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import pooch
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from ..errors import AtollError
from ..utils.progress import is_quiet


@dataclass(frozen=True)
class File:
    """An official file. The checksum guards the download; a file that the user placed is read without it."""

    name: str  # path below the data folder
    url: str
    md5: str
    size: int  # bytes
    unpacked: str = ""  # path of the unpacked content, which is preferred if it exists


def data_folder(data_dir: str | Path | None = None) -> Path:
    """Return the data folder: the one given, else that of the variable ATOLL_DATA, else the user's cache folder."""
    chosen = data_dir or os.environ.get("ATOLL_DATA") or pooch.os_cache("atoll")
    return Path(chosen).expanduser()


def find(file: File, folder: Path) -> Path | None:
    """Return the path of the file or of its unpacked content, or None if the data folder has neither."""
    places = [folder / place for place in (file.unpacked, file.name) if place]
    return next((place for place in places if place.exists()), None)


def fetch(file: File, folder: Path) -> Path:
    """Return the path of a file in the data folder; download the file first if it is missing."""
    found = find(file, folder)
    if found:
        return found
    try:
        folder.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(folder).free
        if free < file.size:
            raise OSError(f"it needs {file.size:,} bytes, and {folder} has {free:,} left")
        return _download(file, folder)
    except (OSError, ValueError) as error:  # pooch raises ValueError where the checksum differs
        raise AtollError(
            f"Cannot download {file.url}: {error}. Get the file by other means and place it at {folder / file.name}"
        ) from error


def _download(file: File, folder: Path) -> Path:
    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn()
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=is_quiet() or not console.is_terminal) as progress:
        bar = _Bar(progress, progress.add_task(Path(file.name).name, total=file.size))
        downloader = pooch.HTTPDownloader(progressbar=bar, chunk_size=2**18)
        return Path(pooch.retrieve(file.url, f"md5:{file.md5}", file.name, folder, downloader=downloader))


class _Bar:
    """A progress bar with the interface that pooch expects, drawn by rich."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self.progress = progress
        self.task = task
        self.total = 0  # pooch sets it; the size is known beforehand

    def update(self, amount: int) -> None:
        self.progress.update(self.task, advance=amount)

    def reset(self) -> None:
        self.progress.update(self.task, completed=0)

    def close(self) -> None:
        self.progress.refresh()
