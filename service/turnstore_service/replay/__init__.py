"""Which items the next turn is given: pure functions over plain values, without I/O.

`values` names what the rules speak of, `items` reads the facts that matter from an item's JSON, and
`rules` holds the rules themselves.
"""
