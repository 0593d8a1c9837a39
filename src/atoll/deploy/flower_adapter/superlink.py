"""Run Flower's SuperLink with a control interface that asks for a token, and call that interface."""

import sys
from collections.abc import Callable
from typing import Any

from .private_names import load


def run_superlink(arguments: list[str], is_token: Callable[[str], bool]) -> None:
    """Run the SuperLink in this process, with a control interface that asks for a token.

    Args:
        arguments: options of ``flower-superlink``.
        is_token: returns True for the bearer token of the server's own account.
    """
    flower = load("superlink")

    class TokenCheck(flower.NoOpControlAuthnPlugin):  # type: ignore[misc, name-defined, unused-ignore]
        """Accepts requests with the token as those of the one account that Flower knows without accounts."""

        def validate_tokens_in_metadata(self, metadata: Any) -> tuple[bool, Any]:
            given = [value for name, value in metadata if name == flower.ACCESS_TOKEN_KEY]
            accepted = len(given) == 1 and is_token(str(given[0]))
            return super().validate_tokens_in_metadata(metadata) if accepted else (False, None)

        def refresh_tokens(self, metadata: Any) -> tuple[list[Any], None]:
            """Give out no token: Flower asks for a new one when a token is not accepted, and would take it."""
            return [], None

    flower.flower_superlink.load_control_authn_plugin = TokenCheck
    sys.argv = ["flower-superlink", *arguments]
    flower.flower_superlink.flower_superlink()


class BearerToken:
    """Adds a token to each request of a client of Flower."""

    def __init__(self, token: str):
        self._token = token

    def intercept(self, context: Any, call_next: Callable[[Any], Any]) -> Any:
        """Send a request with the token."""
        context.request.headers["authorization"] = f"Bearer {self._token}"
        return call_next(context)
