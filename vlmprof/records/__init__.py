"""Every document's schema, the events they are made of, the environment fingerprint and the store.

`figures` and `run` are the schema, `journal` what a worker tells as it goes, `assemble` makes one from the other.
"""
