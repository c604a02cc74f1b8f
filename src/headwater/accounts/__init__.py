"""Accounts of users: their roles, the keys of their passwords, and changes, for nodes that keep accounts and for
operators.
"""
