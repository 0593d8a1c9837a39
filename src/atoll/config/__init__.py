"""Define the configuration of a run, and read it from files."""

from .files import from_dict, read_yaml
from .labels import label_of, split_terms
from .options import LENGTH, NEUTRAL, bounds_of
from .run_config import Config, flag

__all__ = ["LENGTH", "NEUTRAL", "Config", "bounds_of", "flag", "from_dict", "label_of", "read_yaml", "split_terms"]
