"""Test and measure a transformer at initialisation, by its type alone. Needs: pip install 'biascope[hub]'."""

import biascope
from biascope.kernels.selftest import selftest

SHAPE = (8, 32)  # the embeddings of 8 tokens, of width 32

family = biascope.family_of("hf-config:bert", shape=SHAPE, settings={"hidden_size": 32, "vocab_size": 100})
checks = selftest(family, SHAPE)
print(f"{family.name}: {family.num_parameters:,} weights, attention {family.attention}")
print(f"{sum(check.passed for check in checks)} of {len(checks)} checks of its derivatives passed.")

result = biascope.mean_gradient(family, biascope.Probe.gaussian(SHAPE, num=8, fresh=True), draws=32)
print(result.sentence())
