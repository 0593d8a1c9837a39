"""Official files: where they live, and how they come into the data folder."""

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
    """An official file. The checksum guards the download; a file you place yourself is read as it is."""

    name: str  # its place below the data folder
    url: str
    md5: str
    size: int  # bytes
    unpacked: str = ""  # what it unpacks to, taken in its place


def data_folder(data_dir: str | Path | None = None) -> Path:
    """The given folder, otherwise the environment variable ATOLL_DATA, otherwise a cache folder of the user."""
    chosen = data_dir or os.environ.get("ATOLL_DATA") or pooch.os_cache("atoll")
    return Path(chosen).expanduser()


def find(file: File, folder: Path) -> Path | None:
    """The file, or what it unpacks to, if the data folder has it."""
    places = [folder / place for place in (file.unpacked, file.name) if place]
    return next((place for place in places if place.exists()), None)


def fetch(file: File, folder: Path) -> Path:
    """The file from the data folder, where it is downloaded to if need be."""
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
    """What pooch expects of a progress bar, drawn by rich."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self.progress, self.task, self.total = progress, task, 0  # total: set by pooch, unused as sizes are known

    def update(self, amount: int) -> None:
        self.progress.update(self.task, advance=amount)

    def reset(self) -> None:
        self.progress.update(self.task, completed=0)

    def close(self) -> None:
        self.progress.refresh()
