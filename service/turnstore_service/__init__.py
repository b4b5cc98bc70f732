"""The turnstore service: keeps agents' turns and decides which items the next turn is given."""
