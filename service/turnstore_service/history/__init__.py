"""The history of a line: the replay rules applied to what the store holds."""
