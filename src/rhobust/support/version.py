"""The version of the library, which `pyproject.toml` reads here."""

__version__ = "0.1.0"
