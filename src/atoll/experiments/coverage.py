"""List what the papers print beside the recipes that answer it, with what a recipe does differently from its paper."""

from pathlib import Path
from typing import NamedTuple

import yaml

from .papers import read_recipe, recipes_dir

FILE = "items.yaml"


class CoveredItem(NamedTuple):
    """A table, figure or named experiment of a paper."""

    paper: str
    item: str
    recipe: str | None  # None: there is none
    remarks: tuple[str, ...]  # what differs from the paper, or why there is no recipe


def list_items(folder: Path | None = None) -> list[CoveredItem]:
    """Return everything that the papers print, in the order of ``papers/items.yaml``."""
    root = folder or recipes_dir()
    listed = yaml.safe_load((root / FILE).read_text(encoding="utf-8"))
    return [_item(paper, item, said, root) for paper, items in listed.items() for item, said in items.items()]


def _item(paper: str, item: str, said: dict[str, str], root: Path) -> CoveredItem:
    if "recipe" not in said:
        return CoveredItem(paper, item, None, (said["none"],))
    name = f"{paper}/{said['recipe']}"
    return CoveredItem(paper, item, name, tuple(read_recipe(name, root).notes))
