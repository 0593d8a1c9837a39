"""Settings of the process while a run computes."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from atoll.utils.runtime import spared_objects


@pytest.fixture(autouse=True)
def nothing_is_spared_yet() -> Iterator[None]:
    """All tests run with spared objects, and these begin without."""
    gc.unfreeze()
    yield
    gc.collect()
    gc.freeze()


def test_objects_are_spared_inside_the_context_alone_and_an_outer_one_is_respected() -> None:
    assert gc.get_freeze_count() == 0
    with spared_objects():
        frozen = gc.get_freeze_count()
        assert frozen > 0
        with spared_objects():
            assert gc.get_freeze_count() == frozen
        assert gc.get_freeze_count() == frozen
    assert gc.get_freeze_count() == 0


def test_garbage_of_an_earlier_context_is_collected_before_the_next_one() -> None:
    class Cycle:
        pass

    with spared_objects():
        one = Cycle()
        one.itself = one  # type: ignore[attr-defined]
        gone = weakref.ref(one)
    del one
    with spared_objects():
        assert gone() is None
