"""The start of a training on the server, with the sites that come up."""

from __future__ import annotations

from typing import Any

from nvflare.collab.runtime.controller import CollabController
from nvflare.collab.runtime.defs import SETUP_TASK_NAME


class PatientController(CollabController):  # type: ignore[misc]
    """The engine's controller, which also begins without a site whose process for the training does not start.

    The engine's own controller ends the job then. This one reports the missing sites to the coordinator, which goes on
    with the others.
    """

    def broadcast_and_wait(self, task: Any, fl_ctx: Any, *, min_responses: int, **more: Any) -> None:
        """The two calls that begin a training; the engine requires an answer from every site to each."""
        missing = fl_ctx.get_engine().get_component(self.server_obj_id).missing
        super().broadcast_and_wait(task=task, fl_ctx=fl_ctx, min_responses=min_responses - len(missing), **more)
        setup = task.name == SETUP_TASK_NAME
        for name, info in self.client_info.items():
            if not info or (setup and not self.client_setup_status[name] and name not in missing):
                self.log_warning(fl_ctx, f"{name} does not start; going on without it")
                missing.append(name)
            if name in missing:
                self.client_info[name], self.client_setup_status[name] = _MissingSite(), True


class _MissingSite:
    """The interface of a missing site: it offers no function."""

    def __init__(self) -> None:
        self.publish_interface: dict[str, object] = {}
