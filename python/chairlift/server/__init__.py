"""The gRPC server of the engine: proto types stop here."""
