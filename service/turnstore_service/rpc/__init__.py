"""The wire: what comes in as checked values, what goes out as messages, errors as statuses."""
