"""Seeded bugs: patches of the product that break a promise, and the judges that must find them."""
