"""Accounts of users, for who keeps them (a node) and who changes them (an operator): roles, keys, changes."""
