"""The async client. The plain one in `turnstore.synchronous` is derived from these files."""
