"""Who may come in, and what each user may do: roles, and what they grant."""
