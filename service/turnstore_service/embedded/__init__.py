"""A MongoDB of the service's own, for people who have none running: a mongod as a child process."""
