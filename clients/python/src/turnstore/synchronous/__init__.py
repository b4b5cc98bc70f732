"""The plain client. Derived from `turnstore.synchronous` by derive_sync.py: make changes there."""
