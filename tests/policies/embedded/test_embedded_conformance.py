"""The embedded engine does what every engine must do."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from engine_conformance import EngineConformance

from sdk.policies.embedded import EmbeddedEngine
from sdk.policies.models import LoadedModel

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def loaded(small_model: LoadedModel) -> LoadedModel:
    return small_model


@pytest.fixture(scope="module")
def engine(loaded: LoadedModel) -> Iterator[EmbeddedEngine]:
    with EmbeddedEngine(loaded.model, max_rows=16) as engine:
        yield engine


class TestEmbeddedEngine(EngineConformance):
    pass
