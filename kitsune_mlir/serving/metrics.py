"""An engine's figures for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kitsune_mlir.serving.engine import Engine

__all__ = ["metrics_text"]

OUTCOMES = ("answered", "failed", "expired", "cancelled", "refused", "missed")
COUNTS = {"launches": "launches that had a request of the model", "joined": "requests that shared a launch with others"}


class _Figures(Collector):
    def __init__(self, engine: Engine):
        self._engine = engine

    def collect(self) -> Iterator[Metric]:
        stats = self._engine.stats()
        outcomes = CounterMetricFamily("kitsune_requests", "requests by what became of them", labels=["model", "outcome"])
        latency = GaugeMetricFamily("kitsune_latency_seconds", "from submission to answer", labels=["model", "quantile"])
        counts = {name: CounterMetricFamily(f"kitsune_{name}", text, labels=["model"]) for name, text in COUNTS.items()}
        for model, one in stats["models"].items():
            for outcome in OUTCOMES:
                outcomes.add_metric([model, outcome], one[outcome])
            for name, metric in counts.items():
                metric.add_metric([model], one[name])
            for quantile, value in (("0.5", one["p50"]), ("0.99", one["p99"])):
                latency.add_metric([model, quantile], value)
        yield from (outcomes, latency, *counts.values())
        yield GaugeMetricFamily("kitsune_waiting_requests", "requests that wait", value=stats["waiting"])


def metrics_text(engine: Engine) -> bytes:
    """The figures in Prometheus' text format."""
    registry = CollectorRegistry()
    registry.register(_Figures(engine))
    return generate_latest(registry)
