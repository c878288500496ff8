"""Run with xds-protos and grpcio: an endpoint picker, which Envoy asks by ext_proc.

    picker_program.py PORT EARLY|WHOLE WAITING,RUNNING,USAGE ENDPOINT...

EARLY chooses by the headers of a call. WHOLE waits for its whole body first, as llm-d's picker.
Each choice reads the /metrics of all endpoints by the three names; the least loaded one is chosen.
An endpoint without an answer keeps the load that it last had: a real picker learns late, too.
"""

import random
import sys
import urllib.request
from concurrent import futures

import grpc
from envoy.config.core.v3 import base_pb2 as core
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from envoy.service.ext_proc.v3 import external_processor_pb2_grpc as rpc

DESTINATION = "x-gateway-destination-endpoint"


class Picker(rpc.ExternalProcessorServicer):
    def __init__(self, *, is_early, names, endpoints):
        self.is_early = is_early
        self.names = names
        self.loads = dict.fromkeys(endpoints, (0.0, 0.0))

    def Process(self, requests, context):
        has_chosen, held = False, []
        for request in requests:
            part = request.WhichOneof("request")
            held.append(request)
            if part == "request_headers" and not request.request_headers.end_of_stream:
                is_ready = self.is_early
            elif part == "request_body" and not has_chosen:
                is_ready = request.request_body.end_of_stream
            else:
                is_ready = True
            if is_ready:
                for one in held:
                    yield self.answer(one)
                has_chosen, held = True, []

    def answer(self, request):
        part = request.WhichOneof("request")
        if part == "request_headers":
            return self.chosen()
        if part == "response_headers":
            return pb.ProcessingResponse(response_headers=pb.HeadersResponse())
        if part in ("request_trailers", "response_trailers"):
            return pb.ProcessingResponse(**{part: pb.TrailersResponse()})
        body = getattr(request, part)
        streamed = pb.StreamedBodyResponse(body=body.body, end_of_stream=body.end_of_stream)
        common = pb.CommonResponse(body_mutation=pb.BodyMutation(streamed_response=streamed))
        return pb.ProcessingResponse(**{part: pb.BodyResponse(response=common)})

    def chosen(self):
        self.read_loads()
        least = min(self.loads.values())
        endpoint = random.choice([one for one, load in self.loads.items() if load == least])
        header = core.HeaderValue(key=DESTINATION, raw_value=endpoint.encode())
        option = core.HeaderValueOption(
            header=header, append_action=core.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD
        )
        common = pb.CommonResponse(header_mutation=pb.HeaderMutation(set_headers=[option]))
        answer = pb.ProcessingResponse(request_headers=pb.HeadersResponse(response=common))
        answer.dynamic_metadata.update({"envoy.lb": {DESTINATION: endpoint}})
        return answer

    def read_loads(self):
        for endpoint in self.loads:
            try:
                with urllib.request.urlopen(f"http://{endpoint}/metrics", timeout=2) as response:
                    text = response.read().decode()
            except OSError:
                continue
            waiting, running, usage = (value_of(text, name) for name in self.names)
            self.loads[endpoint] = (waiting + running, usage)


def value_of(text, name):
    """The value of a metric, whatever labels it has."""
    for line in text.splitlines():
        if line.startswith((f"{name} ", f"{name}{{")):
            return float(line.rsplit(" ", 1)[1])
    raise KeyError(name)


def main():
    port, mode, names, *endpoints = sys.argv[1:]
    picker = Picker(is_early=mode == "EARLY", names=names.split(","), endpoints=endpoints)
    server = grpc.server(futures.ThreadPoolExecutor(64))
    rpc.add_ExternalProcessorServicer_to_server(picker, server)
    assert server.add_insecure_port(f"127.0.0.1:{port}") == int(port)
    server.start()
    print("picks", flush=True)
    server.wait_for_termination()


if __name__ == "__main__":
    main()
