"""Client of the turnstore service: durable agent turns, and the history that the next turn is given."""
