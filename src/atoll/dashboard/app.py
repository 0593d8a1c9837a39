"""Serve the dashboard over HTTP: read-only, and only to the browser that has the token of its address."""

from collections.abc import Callable, Mapping
from hashlib import sha256
from importlib import resources
from secrets import compare_digest

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .. import report
from ..errors import AtollError
from ..report import style
from ..report.table import AVERAGED
from ..utils.files import to_json
from .artifacts import contents
from .class_matrices import matrices
from .comparison import compare
from .contract import contract
from .detail import detail
from .run_index import RunIndex, Unknown

KINDS = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
# The page loads only from this server, cannot be framed, and sends no referrer.
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-cache",
}

Handler = Callable[[Request], object]


def make_app(index: RunIndex, port: int, token: str) -> ASGIApp:
    """Build the web application.

    Args:
        index: the runs.
        port: the port that it will be reached at.
        token: the secret that the address or a cookie must hold.
    """
    files = _files()
    routes = [
        Route("/", lambda request: _tagged(request, *files["index.html"])),
        Route("/page/{name}", lambda request: _file(request, files)),
        Route("/api/runs", _api(lambda request: {"root": str(index.root), "runs": index.rows(), "averaged": AVERAGED})),
        Route("/api/runs/{id}", _api(lambda request: _detail(index, request.path_params["id"]))),
        Route("/api/runs/{id}/contents", _api(lambda request: _contents(index, request.path_params["id"]))),
        Route("/api/compare", _api(lambda request: _comparison(index, request.query_params.get("ids", "")))),
    ]
    return Guard(Starlette(routes=routes), port, token)


# -- API -------------------------------------------------------------------------------------------------------------


def _detail(index: RunIndex, identity: str) -> dict[str, object]:
    return detail(index.row(identity), index.seen(identity))


def _contents(index: RunIndex, identity: str) -> dict[str, object]:
    run = index.seen(identity).run
    return {**contents(run), "contract": contract(run), "heat": _or_problem(lambda: matrices(run))}


def _or_problem(read: Callable[[], dict[str, object]]) -> dict[str, object]:
    """Return the matrices that ``read`` returns, or the problem if they cannot be read."""
    try:
        return read()
    except AtollError as reason:
        return {"problem": str(reason), "matrices": []}


def _comparison(index: RunIndex, ids: str) -> dict[str, object]:
    chosen = dict.fromkeys(identity for identity in ids.split(",") if identity)
    return compare({identity: index.seen(identity) for identity in chosen})


def _api(handler: Handler) -> Callable[[Request], Response]:
    """Make an endpoint that responds with JSON; user errors and damaged files become messages."""

    def respond(request: Request) -> Response:
        try:
            return _tagged(request, to_json(handler(request)).encode(), "application/json")
        except Unknown as reason:
            return _error(404, str(reason))
        except AtollError as reason:
            return _error(400, str(reason))
        except Exception as reason:  # Files of a run may hold anything: the page must go on.
            return _error(500, f"This run cannot be shown ({type(reason).__name__}: {reason}).")

    return respond


def _error(code: int, message: str) -> Response:
    return Response(to_json({"error": message}), code, media_type="application/json")


def _tagged(request: Request, body: bytes, kind: str) -> Response:
    """Respond with the body, or with "not modified" if the browser has the same body."""
    tag = f'"{sha256(body).hexdigest()[:32]}"'
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers={"etag": tag})
    return Response(body, headers={"etag": tag}, media_type=kind)


# -- files -----------------------------------------------------------------------------------------------------------


def _files() -> dict[str, tuple[bytes, str]]:
    """Return every file that may be served, by name, with its media type."""
    folders = [resources.files(package) / "page" for package in (__package__, report.__name__)]
    shown = [f for folder in folders for f in folder.iterdir()]
    found = {f.name: (f.read_bytes(), KINDS[f.name.rpartition(".")[2]]) for f in shown}
    return found | {"colours.css": (_colours().encode(), "text/css")}


def _file(request: Request, files: Mapping[str, tuple[bytes, str]]) -> Response:
    name = request.path_params["name"]
    return _tagged(request, *files[name]) if name in files else Response("Not found", 404)


def _colours() -> str:
    """Return the colours as CSS. The system decides between light and dark unless the page's switch does."""
    light, dark = (
        " ".join(f"{name}: {colour};" for name, colour in style.variables(dark=is_dark).items())
        for is_dark in (False, True)
    )
    return (
        f":root {{ color-scheme: light; {light} }}\n"
        f'@media (prefers-color-scheme: dark) {{ :root:not([data-theme="light"]) {{ color-scheme: dark; {dark} }} }}\n'
        f':root[data-theme="dark"] {{ color-scheme: dark; {dark} }}\n'
    )


# -- access control--------------------------------------------------------------------------------------------------


class Guard:
    """Middleware that accepts only requests of the dashboard's own page.

    A foreign site can resolve a name of its own to 127.0.0.1, but the browser then sends that name as the host. A
    request from another page carries its origin. Another account of this machine can connect, and lacks the token: the
    address that the command printed holds it, and gets a cookie and an address without it.
    """

    def __init__(self, app: ASGIApp, port: int, token: str):
        self._app = app
        self._token = token
        self._cookie = f"atoll-{port}"  # Browsers send the cookies of a host to all its ports.
        self._hosts = {f"{name}:{port}" for name in ("localhost", "127.0.0.1")}
        if port == 80:
            self._hosts |= {"localhost", "127.0.0.1"}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                kept = [pair for pair in message["headers"] if pair[0].decode() not in HEADERS]
                message["headers"] = kept + [(name.encode(), words.encode()) for name, words in HEADERS.items()]
            await send(message)

        await self._respond(Request(scope))(scope, receive, send_with_headers)

    def _respond(self, request: Request) -> ASGIApp:
        """Return the application, or the response that takes its place."""
        if error := self._refusal(request):
            return Response(error[1], error[0])
        if self._is_token(request.query_params.get("token")):
            response = Response(status_code=303, headers={"location": request.url.path})
            response.set_cookie(self._cookie, self._token, httponly=True, samesite="strict")
            return response
        if self._is_token(request.cookies.get(self._cookie)):
            return self._app
        return Response("Open the address that `atoll ui` printed, with its token.", 401)

    def _is_token(self, text: str | None) -> bool:
        return text is not None and compare_digest(text.encode(), self._token.encode())

    def _refusal(self, request: Request) -> tuple[int, str] | None:
        hosts = request.headers.getlist("host")
        if len(hosts) != 1 or hosts[0].lower() not in self._hosts:
            return 421, "This is a local dashboard: open it as http://127.0.0.1 with its port."
        if request.method not in ("GET", "HEAD"):
            return 405, "The dashboard only reads."
        origin, site = request.headers.get("origin"), request.headers.get("sec-fetch-site", "none")
        if (origin and origin.removeprefix("http://") not in self._hosts) or site not in ("none", "same-origin"):
            return 403, "Requests from other pages are refused."
        return None
