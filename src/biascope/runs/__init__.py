"""How work is carried out, kept and repeated: runs, trials, clusters, random streams, the identity of kept work."""
