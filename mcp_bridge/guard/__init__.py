"""What a policy may see and call: lists of tools, names, the pace at a server, what training must not touch."""
