"""A federation in NVFlare's simulator: the same coordinator and sites, in threads and processes of the engine's own.

python -m tests.equivalence.simulated FOLDER RUN CONFIG.toml SITES
"""

import json
import sys
from pathlib import Path

from rhobust.deployment.coordinator import Coordinator
from rhobust.deployment.site import LocalData, Site
from rhobust.deployment.submission import job_of


class SimulatedSite(Site):
    """A site without a kit: the simulator empties the folders of its sites, so there is no file to read."""

    def __init__(self, share: str) -> None:
        super().__init__()
        self.share = share

    def local(self) -> LocalData:
        return LocalData("digits", share=self.share)


def simulate(folder: Path, run: Path, config: str, count: int) -> int:
    names = [f"site-{number}" for number in range(1, count + 1)]
    (folder / "local").mkdir(parents=True)
    rules = {"format_version": 2, "class_allow_list": ["rhobust.", "nvflare.collab.runtime.", "tests.equivalence."]}
    (folder / "local" / "resources.json").write_text(json.dumps(rules))
    coordinator = Coordinator(str(run), str(folder / "report.json"), names, 60.0, config)
    sites = {name: SimulatedSite(f"{number}/{count}") for number, name in enumerate(names, start=1)}
    job = job_of(coordinator, sites)
    job.set_app_packages(["rhobust", "tests"])
    return int(job.simulator_run(str(folder), threads=count))


if __name__ == "__main__":
    from tests.equivalence.simulated import simulate as main  # under its full name, by which the engine knows it

    raise SystemExit(main(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]).read_text(), int(sys.argv[4])))
