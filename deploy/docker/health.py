"""Exit with 0 if the server answers requests: the probe of a container.

    python health.py [TARGET]

The target is CHAIRLIFT_LISTEN by default. A server with TLS is asked at its HTTP port, by the probe
of the platform: this one knows no certificate.
"""

import os
import sys

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc


def main() -> int:
    """Ask once."""
    target = sys.argv[1] if sys.argv[1:] else os.environ.get("CHAIRLIFT_LISTEN", "127.0.0.1:50051")
    # A proxy of the container's variables cannot reach the server in it.
    options = (("grpc.enable_http_proxy", 0),)
    with grpc.insecure_channel(target, options=options) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        try:
            answer = stub.Check(health_pb2.HealthCheckRequest(), timeout=5)
        except grpc.RpcError as error:
            print(error.code().name, file=sys.stderr)
            return 1
    return 0 if answer.status == health_pb2.HealthCheckResponse.SERVING else 1


if __name__ == "__main__":
    sys.exit(main())
