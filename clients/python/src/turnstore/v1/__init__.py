"""Messages and stubs of the wire contract `turnstore.v1`, generated from protos/turnstore/v1."""
