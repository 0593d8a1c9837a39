"""The pictures of how methods work: who keeps what, and what travels. ``docs/build.py`` writes them.

Colours are those of Okabe and Ito, which colour-blind readers can tell apart; what stays at home also has a broken
edge. Every picture brings its own light ground, so that it can be read on a dark page too.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal
from xml.sax.saxutils import escape

Kind = Literal["travels", "stays", "public", "rows"]
STYLE: dict[str, str] = {
    "travels": 'fill="#cfe4f5" stroke="#0072B2" stroke-width="2"',
    "stays": 'fill="#fdebc8" stroke="#c98200" stroke-width="2" stroke-dasharray="6 3"',
    "public": 'fill="#d3f0e6" stroke="#009E73" stroke-width="2"',
    "rows": 'fill="#e9e9e9" stroke="#666666" stroke-width="1.5" stroke-dasharray="2 3"',
}
LEGEND = {"travels": "travels", "stays": "stays where it is", "public": "public", "rows": "private samples"}
WIDTH, MARGIN, LINE = 760, 20, 18
BOX = 30  # height of a piece
LETTER = 7.3  # width of a letter of 13 pixels, on the safe side


@dataclass(frozen=True)
class Piece:
    """Something that is kept or sent."""

    label: str
    kind: Kind

    @property
    def width(self) -> float:
        return len(self.label) * LETTER + 18


@dataclass(frozen=True)
class Picture:
    title: str
    server: Sequence[Piece]
    client: Sequence[Piece]  # beside its rows
    down: str
    up: str
    does: Sequence[str] = ()  # what the server does
    work: Sequence[str] = ()  # what a client does
    unlike: bool = False
    names: tuple[str, str] = field(default=("client 1", "client 2"))

    def svg(self) -> str:
        server = 34 + BOX + 8 + LINE * len(self.does) + 6
        client = 34 + BOX + 8 + LINE * len(self.work) + 6
        top, gap = 48, 74
        height = top + server + gap + client + 46
        body = [
            *_text(WIDTH / 2, 28, self.title, size=16, bold=True, middle=True),
            *_holder(MARGIN, top, WIDTH - 2 * MARGIN, server, "server", self.server, self.does),
        ]
        below, half = top + server + gap, (WIDTH - 3 * MARGIN) / 2
        for at, name in enumerate(self.names):
            x = MARGIN + at * (half + MARGIN)
            pieces = [Piece("samples", "rows"), *(_own(p, at) if self.unlike else p for p in self.client)]
            body += _holder(x, below, half, client, name, pieces, self.work)
            body += _arrow(x + 22, top + server + 3, below - 3, self.down)
            body += _arrow(x + 162, below - 3, top + server + 3, self.up)
        body += _legend(height - 16)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
            f'font-family="system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif" font-size="13">\n'
            f"<title>{escape(self.title)}</title>\n"
            f'<rect width="{WIDTH}" height="{height}" rx="10" fill="#ffffff"/>\n' + "\n".join(body) + "\n</svg>\n"
        )


def _own(piece: Piece, at: int) -> Piece:
    """Clients with heterogeneous models: the one has A, the other B."""
    return Piece(f"{piece.label} {'AB'[at]}", piece.kind) if piece.label in ("own model", "body") else piece


def _holder(
    x: float, y: float, width: float, height: float, name: str, pieces: Sequence[Piece], lines: Sequence[str]
) -> Iterator[str]:
    yield f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="8" fill="#f7f7f7" stroke="#444444"/>'
    yield from _text(x + 12, y + 22, name, bold=True)
    at = x + 12
    for piece in pieces:
        yield from _piece(at, y + 34, piece)
        at += piece.width + 10
    for number, line in enumerate(lines):
        yield from _text(x + 12, y + 34 + BOX + 8 + LINE * (number + 0.7), line)


def _piece(x: float, y: float, piece: Piece) -> Iterator[str]:
    yield f'<rect x="{x:g}" y="{y:g}" width="{piece.width:.1f}" height="{BOX}" rx="5" {STYLE[piece.kind]}/>'
    yield from _text(x + piece.width / 2, y + 20, piece.label, middle=True)


def _arrow(x: float, start: float, end: float, label: str) -> Iterator[str]:
    colour = "#0072B2"
    if not label:
        return
    tip = 9 if end > start else -9
    yield f'<path d="M{x:g} {start:g} V{end - tip:g}" stroke="{colour}" stroke-width="2.5" fill="none"/>'
    yield f'<path d="M{x - 6:g} {end - tip:g} h12 l-6 {tip} z" fill="{colour}"/>'
    for number, line in enumerate(label.split("\n")):
        yield from _text(x + 10, (start + end) / 2 + 4 + LINE * (number - (label.count("\n")) / 2), line)


def _legend(y: float) -> Iterator[str]:
    x = float(MARGIN)
    for kind, meaning in LEGEND.items():
        yield f'<rect x="{x:g}" y="{y - 11:g}" width="20" height="13" rx="3" {STYLE[kind]}/>'
        yield from _text(x + 27, y, meaning, size=12)
        x += 27 + len(meaning) * 7 + 24


def _text(x: float, y: float, text: str, size: int = 13, bold: bool = False, middle: bool = False) -> Iterator[str]:
    more = ' font-weight="600"' * bold + ' text-anchor="middle"' * middle + (f' font-size="{size}"' * (size != 13))
    yield f'<text x="{x:g}" y="{y:g}" fill="#1a1a1a"{more}>{escape(text)}</text>'


def travels(label: str) -> Piece:
    return Piece(label, "travels")


def stays(label: str) -> Piece:
    return Piece(label, "stays")


PUBLIC = Piece("public samples", "public")
PICTURES = {
    "weights": Picture(
        "Weights: one model for all, trained in turns",
        [travels("global model")], [travels("copy of it")], "the model", "the trained copy\nand the number of samples",
        ["the next model is the mean of the copies, weighted by samples"],
        ["starts from the global model and trains it"],
    ),
    "dual-model": Picture(
        "Dual model: a global model, and a personal one beside it",
        [travels("global model")], [travels("copy of it"), stays("personal model")], "the model",
        "the trained copy\nand the number of samples",
        ["the next model is the mean of the copies"],
        ["trains the copy and sends it; then trains the", "personal model, held near the global one"],
    ),
    "split-model": Picture(
        "Split model: one part is shared, the other is personal",
        [travels("shared part")], [travels("shared part"), stays("own part")], "the shared part",
        "the shared part,\ntrained",
        ["the next shared part is the mean of those that came back"],
        ["its model is both parts, one after the other;", "which one is shared differs (body or head)"],
    ),
    "server-trained": Picture(
        "Server-trained: the server learns from what clients summarise",
        [travels("head or generator")], [stays("own model"), travels("summary")], "what the\nserver trained",
        "a summary of what\nthe client learnt",
        ["trains something of its own on the summaries of all clients: a head, a generator, a student"],
        ["trains its own model with the help of", "what the server trained"], unlike=True,
    ),
    "prototypes": Picture(
        "Prototypes: one mean feature for each class",
        [travels("a mean feature of each class")], [stays("own model"), travels("its means")], "means of all\nclasses",
        "means of its own\nclasses",
        ["averages (or learns) one prototype for each class"],
        ["trains its model and pulls the features of a class", "to the prototype of that class"], unlike=True,
    ),
    "logits-and-features": Picture(
        "Logits and features: clients learn from each other's outputs",
        [travels("outputs of the others"), PUBLIC], [stays("own model"), PUBLIC], "what to agree\nwith",
        "its outputs",
        ["combines the outputs, for everybody or for each client; some methods need no public samples"],
        ["trains on its labels, and towards the outputs", "that it received"], unlike=True,
    ),
    "mutual": Picture(
        "Mutual: a small model travels and learns together with the client's own",
        [travels("small model")], [stays("own model"), travels("small model")], "the small\nmodel",
        "the small model,\ntrained",
        ["the next small model is the mean of those that came back"],
        ["both models learn from the samples, and each", "from the predictions of the other"], unlike=True,
    ),
    "proxy": Picture(
        "Proxy: what travels changes images, it does not classify them",
        [travels("proxy extractor G")], [stays("own model"), travels("proxy G")], "G", "G, trained",
        ["the next G is the mean of those that came back, weighted by samples"],
        ["1. trains its model on images x and on G(x)", "2. trains G so that its model does well on G(x)"],
        unlike=True,
    ),
    "none": Picture(
        "No exchange: every client trains alone",
        [Piece("nothing", "rows")], [stays("own model")], "", "",
        ["there is nothing to do"], ["trains its model: what every method has to beat"], unlike=True,
    ),
    "dcpfl": Picture(
        "DC-PFL: two calibrations, by means and by drawn features",
        [travels("head"), travels("class means"), travels("covariances")],
        [stays("body"), travels("head"), travels("statistics")],
        "the head and\nthe class means", "count, mean and\ncovariance of its classes",
        ["pools the statistics of all clients; draws features from them, and trains the head on those"],
        ["trains body and head; features are pulled to", "the pooled mean of their class"], unlike=True,
    ),
    "feddw": Picture(
        "FedDW: the last layer is held to how classes resemble each other",
        [travels("global model"), travels("Omega: a mean soft label of each class")],
        [travels("copy of the model"), travels("soft labels")], "the model\nand Omega",
        "the trained copy and\nits soft labels",
        ["averages the copies, and the soft labels of each class"],
        ["trains; the rows of the last layer should be as", "like each other as Omega says of the classes"],
    ),
    "fedpd": Picture(
        "FedPD: the server keeps a model of each client's model",
        [stays("server model of 1"), stays("server model of 2"), travels("features of public samples"), PUBLIC],
        [stays("own model"), PUBLIC], "features by its\nserver model", "features of all\npublic samples",
        ["fits each server model to its client's features, and holds all of them near their mean"],
        ["trains on its samples, and towards those of the", "received features that serve it (coefficients a)"],
        unlike=True,
    ),
    "pfedes": Picture(
        "pFedES: a small extractor travels in place of the model",
        [travels("proxy extractor G")], [stays("own model"), travels("proxy G")], "G",
        "G, trained, and\nthe number of samples",
        ["the next G is the mean of those that came back, weighted by samples"],
        ["1. G fixed: trains its model on x and on G(x)", "2. model fixed: trains G on G(x)"], unlike=True,
    ),
    "scd": Picture(
        "SCD: global and personal model teach each other by their spectra",
        [travels("global model")], [travels("copy of it"), stays("personal model")], "the model",
        "the trained copy\nand the number of samples",
        ["the next model is the mean of the copies; it does not wait for personal training"],
        ["trains the copy, its low frequencies near those of", "the personal model; then the personal one, by all"],
    ),
}  # fmt: skip


def pictures() -> dict[str, str]:
    """Pictures by their file names in ``docs``."""
    return {f"pictures/{name}.svg": picture.svg() for name, picture in PICTURES.items()}
