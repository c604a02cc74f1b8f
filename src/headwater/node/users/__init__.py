"""The users who may log in, and their rights: roles, and the privileges that roles grant."""
