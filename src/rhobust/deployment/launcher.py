"""The process in which a site runs its part of a training."""

from __future__ import annotations

from nvflare.apis.job_launcher_spec import JobHandleSpec, JobReturnCode
from nvflare.app_common.job_launcher.client_process_launcher import ClientProcessJobLauncher


class PatientLauncher(ClientProcessJobLauncher):  # type: ignore[misc]
    """The engine's launcher, which does not report to the server that a process was killed.

    On such a report the engine ends the whole training. The coordinator notices by itself that a site does not answer,
    and goes on with the others.
    """

    def launch_job(self, job_meta: dict[str, object], fl_ctx: object) -> JobHandleSpec:
        """Start the process."""
        handle = super().launch_job(job_meta, fl_ctx)
        poll = handle.poll

        def patient() -> object:
            code = poll()
            return code if code == JobReturnCode.SUCCESS else JobReturnCode.UNKNOWN

        handle.poll = patient
        return handle
