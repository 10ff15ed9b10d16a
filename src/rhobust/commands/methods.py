"""The command `rhobust methods`."""

from __future__ import annotations

from rich.table import Table

from rhobust.federation.settings import as_federated
from rhobust.method import FEDERATED
from rhobust.method import methods as all_methods
from rhobust.support.console import OUT
from rhobust.support.toml import typed


def methods() -> None:
    """List the training methods and their knobs."""
    table = Table(show_lines=False)
    for column in ("method", "what it is", "knobs"):
        table.add_column(column)
    for method in all_methods().values():
        knobs = ", ".join(key if value is None else f"{key}={typed(value)}" for key, value in method.knobs.items())
        table.add_row(method.name, method.summary, ", ".join(filter(None, ["radius" if method.robust else "", knobs])))
    for name, central in FEDERATED.items():
        settings = as_federated({"method": name})
        averages = settings.get("server_update") == "average"
        then = f"averaged after {settings['local_steps']} local steps" if averages else "one step on the server"
        table.add_row(name, f"federated: {central} on every worker, {then}", "as there; `rhobust federate`")
    OUT.print(table)
