"""Figures of the endpoint for Prometheus, named as vLLM names them."""

from __future__ import annotations

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from .requests import RequestQueue, RequestRecord

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_TOKEN_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5)


class ServingMetrics:
    """What `/metrics` shows. Each has its own registry: several servers of a process do not share figures."""

    media_type = CONTENT_TYPE_LATEST

    def __init__(self, model_name: str, queue: RequestQueue) -> None:
        self._registry = CollectorRegistry()
        self._model = model_name
        running = self._gauge("num_requests_running", "Answers that have begun and are not complete.")
        running.set_function(lambda: queue.running)
        waiting = self._gauge("num_requests_waiting", "Answers that have no token yet.")
        waiting.set_function(lambda: queue.waiting)
        self._prompt_tokens = self._counter("prompt_tokens", "Tokens of prompts.")
        self._new_tokens = self._counter("generation_tokens", "Tokens that were sampled.")
        self._queries = self._counter("prefix_cache_queries", "Tokens of prompts that the cache was asked for.")
        self._hits = self._counter("prefix_cache_hits", "Those of them that it had.")
        self._finished = self._counter("request_success", "Complete answers.", "finished_reason")
        self._http = self._counter(
            "http_requests", "Requests, with the status of errors in streams.", "handler", "status"
        )
        self._first = self._histogram("time_to_first_token_seconds", "From a request to an answer's first token.")
        self._each = self._histogram(
            "request_time_per_output_token_seconds", "Of an answer, the mean after its first token.", _TOKEN_SECONDS
        )
        self._whole = self._histogram("e2e_request_latency_seconds", "From a request to the end of its answers.")

    def observe(self, record: RequestRecord, handler: str) -> None:
        """A request has ended. `handler`: the path that it was sent to, as the endpoint names it."""
        self._http.labels(self._model, handler, str(record.status)).inc()
        if not record.expected:
            return
        self._prompt_tokens.labels(self._model).inc(record.prompt_tokens)
        self._new_tokens.labels(self._model).inc(record.completion_tokens)
        self._queries.labels(self._model).inc(record.prompt_tokens)
        self._hits.labels(self._model).inc(record.cached_tokens)
        for reason in record.finish_reasons:
            self._finished.labels(self._model, reason).inc()
        for times in record.answers.values():
            self._first.labels(self._model).observe(times.first - record.began)
            if times.tokens > 1:
                self._each.labels(self._model).observe((times.last - times.first) / (times.tokens - 1))
        if record.answers:
            self._whole.labels(self._model).observe(max(times.last for times in record.answers.values()) - record.began)

    def text(self) -> bytes:
        """In Prometheus' text format."""
        return generate_latest(self._registry)

    def _gauge(self, name: str, meaning: str) -> Gauge:
        return Gauge(f"toolbake:{name}", meaning, ["model_name"], registry=self._registry).labels(self._model)

    def _counter(self, name: str, meaning: str, *labels: str) -> Counter:
        return Counter(f"toolbake:{name}", meaning, ["model_name", *labels], registry=self._registry)

    def _histogram(self, name: str, meaning: str, buckets: tuple[float, ...] = _SECONDS) -> Histogram:
        return Histogram(f"toolbake:{name}", meaning, ["model_name"], registry=self._registry, buckets=buckets)
