"""The helpdesk: an order desk to learn on, with nine tools, business rules and generated tasks."""

from .generator import tasks
from .sandbox import Helpdesk

__all__ = ["Helpdesk", "tasks"]
