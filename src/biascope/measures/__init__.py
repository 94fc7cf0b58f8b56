"""Leaves: one file is one measurement, with its definition, its function, its result and its picture."""
