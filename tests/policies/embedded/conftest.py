"""The embedded model, loaded once; and one thread for models so small that threads only wait for each other."""

from __future__ import annotations

import os
from collections.abc import Iterator

# Before torch is imported: threads that spin at barriers cost a shared machine a factor of ten and more.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import pytest
import torch

from sdk.policies.models import LoadedModel, load_model


@pytest.fixture(scope="session")
def embedded_model() -> LoadedModel:
    return load_model()


@pytest.fixture
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
