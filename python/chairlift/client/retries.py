"""Which calls gRPC sends again by itself, as a service config has it.

A call that has one message and one answer, and that changes nothing or may come twice: `Abort` of
a request that has ended has no effect. Streams are not among them: `recovery.py` resumes requests.
"""

import json
from typing import Final

_SERVICES: Final = (
    {"service": "chairlift.v1.GenerationService", "method": "Abort"},
    {"service": "chairlift.v1.GenerationService", "method": "Explain"},
    {"service": "chairlift.v1.ServerService", "method": "GetServerInfo"},
    {"service": "chairlift.v1.ServerService", "method": "GetModelInfo"},
    {"service": "chairlift.v1.ServerService", "method": "GetLoad"},
    {"service": "chairlift.v1.TokenizerService"},
)

SERVICE_CONFIG: Final = json.dumps(
    {
        "methodConfig": [
            {
                "name": _SERVICES,
                "retryPolicy": {
                    "maxAttempts": 3,
                    "initialBackoff": "0.1s",
                    "maxBackoff": "1s",
                    "backoffMultiplier": 2,
                    "retryableStatusCodes": ["UNAVAILABLE"],
                },
            }
        ]
    }
)
"""For the option `grpc.service_config` of a channel."""
