"""The gRPC door of the engine: proto types stop here."""
