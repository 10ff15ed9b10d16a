"""The version of the library, read from its installed metadata."""

__version__ = "0.1.0"
