"""The start of a training on the server, with the sites that come up."""

from __future__ import annotations

from typing import Any

from nvflare.collab.runtime.controller import CollabController
from nvflare.collab.runtime.defs import SETUP_TASK_NAME


class PatientController(CollabController):  # type: ignore[misc]
    """The engine's controller, but for a site that is connected and whose process for the training does not come up.

    The engine gives up on everybody then. Here the coordinator is told who is missing, and goes on with the others.
    """

    def broadcast_and_wait(self, task: Any, fl_ctx: Any, *, min_responses: int, **more: Any) -> None:
        """The two calls that begin a training, for each of which the engine wants an answer from all."""
        missing = fl_ctx.get_engine().get_component(self.server_obj_id).missing
        super().broadcast_and_wait(task=task, fl_ctx=fl_ctx, min_responses=min_responses - len(missing), **more)
        setup = task.name == SETUP_TASK_NAME
        for name, info in self.client_info.items():
            if not info or (setup and not self.client_setup_status[name] and name not in missing):
                self.log_warning(fl_ctx, f"{name} does not come up; going on without it")
                missing.append(name)
            if name in missing:
                self.client_info[name], self.client_setup_status[name] = _Nobody(), True


class _Nobody:
    """In place of what a site says that it can be asked: nothing."""

    def __init__(self) -> None:
        self.publish_interface: dict[str, object] = {}
