"""Whether anybody follows calls with OpenTelemetry."""

from __future__ import annotations

import os

from opentelemetry import context, trace
from opentelemetry.environment_variables import OTEL_PYTHON_TRACER_PROVIDER

_BY_ENVIRONMENT = OTEL_PYTHON_TRACER_PROVIDER in os.environ


def is_traced() -> bool:
    """True where spans would be recorded, or where the caller's context has something to hand on."""
    # Not `get_tracer_provider`, which looks into the environment each time.
    return trace._TRACER_PROVIDER is not None or _BY_ENVIRONMENT or bool(context.get_current())
