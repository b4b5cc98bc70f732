"""The store on MongoDB.

`driver` is the only module that knows Motor; `documents` the form of a response in the database; `lines` threads,
places and paths; `indexes` what has to stand; `bodies` what does not fit into a document; `reading`, `writing`
and `erasing` the methods of the port; `store` puts them together.
"""
