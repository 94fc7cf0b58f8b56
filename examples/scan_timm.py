"""What does a network of timm find easy to learn? Needs: pip install 'biascope[hub]'."""

import biascope

run = biascope.Run(folder="biascope-runs/timm")
found = biascope.scan("timm:lcnet_035", input=(3, 32, 32), settings={"num_classes": 10}, draws=32, run=run)

rank = found.results[0].headline()["effective_rank"]
print(found.results[0].sentence())
print(f"Effective rank: {rank}, of {3 * 32 * 32} input directions.")
print(f"Pictures and meaning: {found.report}")
