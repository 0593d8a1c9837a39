"""``python -m atoll`` is the ``atoll`` command."""

from .cli import main

main()
