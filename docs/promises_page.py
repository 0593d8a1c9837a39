"""The page of promises, from the markers of the tests that hold them."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

TESTS = Path(__file__).parent.parent / "tests"
COMMANDS = {"chaos": "make test-chaos", "papers": "make test-papers", "deploy": "make test-deploy"}  # of long tests
TOPICS = ("Models", "Repeatability", "Stopping and resuming", "Results", "Data", "Privacy", "Uploads", "Command line",
          "Between machines", "Documentation")  # fmt: skip


class Promise(NamedTuple):
    """A sentence and the test that holds it."""

    topic: str
    sentence: str
    file: str
    test: str
    command: str  # that runs the test, if `make test` does not


def promises_page(note: str) -> str:
    """Return the page; ``note`` says how it is made."""
    by_topic: dict[str, list[Promise]] = defaultdict(list)
    for promise in find_promises():
        by_topic[promise.topic].append(promise)
    lines = [
        "# What Atoll promises",
        "",
        "Each sentence stands beside the test that holds it. The list is made from the markers of the tests, so a "
        "promise "
        "without a test cannot be in it. `make test` runs them all, but for those with a command of their own.",
        "",
        note,
    ]
    for topic in TOPICS:
        lines += ["", f"## {topic}", "", "| promise | test |", "| --- | --- |"]
        lines += [_row(promise) for promise in by_topic.pop(topic, [])]
    if by_topic:
        raise ValueError(f"Promises of unknown topics: {', '.join(by_topic)}. Add them to TOPICS.")
    return "\n".join(lines) + "\n"


def _row(promise: Promise) -> str:
    where = f"[`{promise.test}`](../tests/{promise.file})"
    return f"| {promise.sentence} | {where}{f' (`{promise.command}`)' if promise.command else ''} |"


def find_promises() -> Iterator[Promise]:
    """Yield the promises of all test files, in the order of files and tests."""
    for path in sorted(TESTS.rglob("test_*.py")):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if "mark.promise(" in text else ():
            if isinstance(node, ast.FunctionDef):
                yield from _promises_of(node, str(path.relative_to(TESTS)))


def _promises_of(test: ast.FunctionDef, file: str) -> Iterator[Promise]:
    marks = [ast.unparse(mark) for mark in test.decorator_list]
    command = next((COMMANDS[name] for name in COMMANDS if f"pytest.mark.{name}" in marks), "")
    for mark in test.decorator_list:
        if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.promise":
            topic, sentence = (ast.literal_eval(value) for value in mark.args)
            yield Promise(topic, sentence, file, test.name, command)
