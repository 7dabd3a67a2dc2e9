"""The helpdesk: an order desk to learn on, with nine tools, business rules and generated tasks."""

from .desk import Helpdesk, tasks

__all__ = ["Helpdesk", "tasks"]
