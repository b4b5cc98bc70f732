"""Lets `python -m turnstore_service` be the same as `turnstore-service`."""

from turnstore_service.cli import main

main()
