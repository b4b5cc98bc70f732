"""What it takes to run the service: settings, health, metrics, logs."""
