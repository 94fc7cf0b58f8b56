"""Biascope: a microscope for inductive bias."""

__version__ = "0.1.0"
