"""Helpers shared by the tests: models, real processes, proxies, seeded page contents."""
