"""Check the laws that every method obeys, on a small federation."""

from .check import LAWS, Finding, Law, check_method
from .trial import BrokenLaw, NotApplicable, Trial, trial_of

__all__ = ["LAWS", "BrokenLaw", "Finding", "Law", "NotApplicable", "Trial", "check_method", "trial_of"]
