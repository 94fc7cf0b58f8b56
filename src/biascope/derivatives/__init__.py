"""Derivatives with respect to inputs: gradients, linearisation, covariances, spectra, mixed derivatives."""
