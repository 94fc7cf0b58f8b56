"""How work is run, cached and repeated: runs, trials, clusters, random streams, the identity of cached work."""
