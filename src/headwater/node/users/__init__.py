"""The users who may come in, and what each of them may do: roles, and what they grant."""
