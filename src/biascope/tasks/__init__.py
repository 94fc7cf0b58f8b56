"""Inputs and tasks: probes, bases, tasks, samples, patches, signals."""
