"""Derivatives with respect to weights: the tangent kernel by proven rules, its products, and the selftest."""
