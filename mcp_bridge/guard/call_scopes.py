"""Cancel scopes for calls: anyio's, entered and left in a fraction of the time.

A call in process takes 50 to 70 microseconds, and a new scope of anyio's ten of them: two sets and fourteen fields are
made, and the task's state is looked up twice through a dict of weak references. Here the scopes of calls that ended in
the ordinary way are used again, and what a scope and the one around it note of each other is written directly. Whatever
is not ordinary, a cancellation above all, goes through anyio's own methods, which find everything as they would have
left it. That leans on the inside of anyio, so only the releases that it was written for are used so.
"""

from __future__ import annotations

from asyncio import current_task
from types import TracebackType
from typing import Any
from weakref import ref

from anyio._backends._asyncio import CancelScope, _task_states


class CallScope(CancelScope):
    """A scope for a task of asyncio. It may be entered again where it `is_as_new` once it was left."""

    __slots__ = ("_state", "is_as_new")
    _state: Any
    is_as_new: bool
    """Whether nothing of its last call is left in it. Of a scope that was left."""

    def __enter__(self) -> CallScope:
        self.is_as_new = False
        task = current_task()
        # Not by the mapping's own method, which is written in Python and makes the same reference.
        state = self._state = None if task is None else _task_states.data.get(ref(task))  # type: ignore[attr-defined]
        if task is None or state is None or self._cancel_called or self._active:
            self._parent_scope = None
            super().__enter__()
            return self
        parent = self._parent_scope = state.cancel_scope
        state.cancel_scope = self
        self._host_task = task
        self._tasks.add(task)
        if parent is not None:
            parent._child_scopes.add(self)
            parent._tasks.discard(task)
        self._active = True
        self._cancelling_at_enter = task.cancelling()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> bool:
        state, task, parent = self._state, self._host_task, self._parent_scope
        if (
            state is None
            or task is None
            or self._cancel_called
            or self._pending_uncancellations
            or state.cancel_scope is not self
            or current_task() is not task
        ):
            return super().__exit__(exc_type, exc_val, exc_tb)
        self._active = False
        self._tasks.remove(task)
        self._host_task = None
        state.cancel_scope = parent
        if parent is not None:
            parent._child_scopes.remove(self)
            parent._tasks.add(task)
            # Where the call ended although a scope around it is cancelled, that one goes on from here.
            self._restart_cancellation_in_parent()
        # A tool may have left something hanging on it; and where an error ends the call, a thread that nobody waits for
        # any more, which asks this scope and those around it whether it is cancelled.
        self.is_as_new = exc_type is None and not (self._tasks or self._child_scopes)
        return False
