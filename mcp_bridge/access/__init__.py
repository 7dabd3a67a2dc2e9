"""Who may reach a server and what stays secret on the way."""
