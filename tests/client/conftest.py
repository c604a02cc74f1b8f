"""The two clients as a fixture, and failures that are retried without delay."""

import functools

import pytest

from headwater.client import bulk, cluster, drainer
from headwater.transport.backoff import Backoff

from .drivers import Aio, Blocking


@pytest.fixture(params=[Blocking, Aio], ids=["blocking", "aio"])
def driver(request):
    made = request.param()
    yield made
    made.close()


@pytest.fixture(autouse=True)
def no_delay(monkeypatch):
    """Delays grow from half a millisecond: what is tested is what happens, not how long it takes."""
    quick = functools.partial(Backoff, 0.0005, 0.02)
    monkeypatch.setattr(drainer, "Backoff", quick)
    monkeypatch.setattr(cluster, "for_requests", quick)
    monkeypatch.setattr(bulk, "for_requests", quick)
