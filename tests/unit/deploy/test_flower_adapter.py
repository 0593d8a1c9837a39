"""The private parts of Flower that Atoll needs: present in the installed version, and named when they are missing."""

import ast
import re
from pathlib import Path

import pytest

import atoll
from atoll.deploy.flower_adapter import private_names
from atoll.deploy.flower_adapter.environment import environment
from atoll.errors import AtollError


def test_check_accepts_the_installed_flower() -> None:
    private_names.check(private_names.SERVER_PARTS + private_names.SITE_PARTS)


def test_check_without_flower_names_the_extra_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private_names, "find_spec", lambda name: None)

    with pytest.raises(AtollError, match='pip install "flwr>='):
        private_names.check(private_names.SITE_PARTS)


@pytest.mark.parametrize(("place", "name"), [("flwr.supercore.nowhere", "Fab"), ("flwr.supercore.fab", "NoSuchName")])
def test_check_names_a_missing_private_name_and_the_expected_versions(
    place: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(private_names.PLACES["site"], name, place)

    with pytest.raises(AtollError, match=rf"lacks {re.escape(place)}\.{name}\. Atoll expects Flower 1\.41 or 1\.42"):
        private_names.check(private_names.SITE_PARTS)


def test_check_names_a_missing_parameter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private_names, "PARAMETERS", (("site", "pull_objects", ("no_such_parameter",)),))

    with pytest.raises(AtollError, match=r"lacks site.pull_objects\(no_such_parameter\)"):
        private_names.check(private_names.SITE_PARTS)


def test_environment_of_programs_leaves_out_other_variables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")

    found = environment(tmp_path)

    assert "AWS_SECRET_ACCESS_KEY" not in found
    assert found["OMP_NUM_THREADS"] == "1"


def test_no_other_module_imports_private_parts_of_flower() -> None:
    """Flower promises to keep flwr.app, flwr.clientapp and flwr.serverapp."""
    public = {"flwr", "flwr.app", "flwr.clientapp", "flwr.serverapp"}
    root = Path(atoll.__file__).parent
    found = {
        f"{path.relative_to(root)}: {node.module}"
        for path in root.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("flwr") and node.module not in public
    }

    assert found == set()
