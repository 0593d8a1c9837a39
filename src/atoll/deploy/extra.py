"""The optional packages that a deployment needs."""

from importlib.util import find_spec

from ..errors import AtollError

NEEDED = ("flwr", "cryptography", "h11", "httpx")  # the last three come with the first


def require() -> None:
    """Say what to install, before an import fails with a traceback."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise AtollError(
            f"A deployment needs packages that are not installed here ({', '.join(missing)}). "
            "Install them with: pip install 'atoll[flower]'"
        )
