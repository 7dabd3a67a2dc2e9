"""The helpdesk: an order desk to learn on, with nine tools, business rules and generated tasks."""

from .desk import Helpdesk
from .task_file import tasks

__all__ = ["Helpdesk", "tasks"]
