"""Encoders, task vectors and merges."""
