"""What a party's process is started with."""

from pathlib import Path

import pytest

from rhobust.deployment.kits import LAUNCHER, FederationError, make_kits
from rhobust.deployment.processes import Party, _environment


def test_where_the_data_are_does_not_depend_on_where_a_party_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RHOBUST_DATA", "some/data")
    assert _environment()["RHOBUST_DATA"] == str(tmp_path / "some" / "data")
    monkeypatch.delenv("RHOBUST_DATA")
    assert "RHOBUST_DATA" not in _environment()


def test_the_kit_of_another_version_is_refused_before_a_process_is_started(tmp_path: Path) -> None:
    make_kits(tmp_path / "fed", 1, "localhost", 8002)
    party = Party(tmp_path / "fed" / "site-1")
    resources = party.kit / "local" / "resources.json"
    made = resources.read_text()
    for ours in ("rhobust.deployment.site.Site", LAUNCHER):
        resources.write_text(made.replace(ours, "rhobust.engines.nvflare.older.Name"))
        with pytest.raises(FederationError, match=r"made by another version .* rhobust federation init"):
            party.launch()
    resources.write_text("{")
    with pytest.raises(FederationError, match=r"resources\.json cannot be read"):
        party.launch()
    assert not (party.kit / "process.json").exists()
