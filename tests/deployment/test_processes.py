"""What a party's process is started with."""

from pathlib import Path

import pytest

from rhobust.deployment.processes import _environment


def test_where_the_data_are_does_not_depend_on_where_a_party_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RHOBUST_DATA", "some/data")
    assert _environment()["RHOBUST_DATA"] == str(tmp_path / "some" / "data")
    monkeypatch.delenv("RHOBUST_DATA")
    assert "RHOBUST_DATA" not in _environment()
