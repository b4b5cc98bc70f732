"""How callers show who they are, a file for each way: tokens, JWTs, client certificates."""
