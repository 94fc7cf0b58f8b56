"""Where we look and what is learned: probes, bases, tasks, samples, patches, signals."""
