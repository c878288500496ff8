"""gRPC under all services: addresses, statuses, writes in time."""
