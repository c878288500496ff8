// Runs every scenario of ../README.md against a server and prints a line for each.

import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";

import * as grpc from "@grpc/grpc-js";
import * as loader from "@grpc/proto-loader";

import type { Event__Output } from "./generated/chairlift/v1/Event.js";
import type { GenerateRequest } from "./generated/chairlift/v1/GenerateRequest.js";
import type { GenerateResponse__Output } from "./generated/chairlift/v1/GenerateResponse.js";
import type { GenerationServiceClient } from "./generated/chairlift/v1/GenerationService.js";
import type { Start } from "./generated/chairlift/v1/Start.js";
import type { ProtoGrpcType } from "./generated/generation.js";
import type { ProtoGrpcType as ServerGrpcType } from "./generated/server.js";

// A refused call is sent again; what has begun to answer never is.
const SERVICE_CONFIG = JSON.stringify({
  methodConfig: [
    {
      name: [{ service: "chairlift.v1.GenerationService", method: "GenerateOne" }],
      retryPolicy: {
        maxAttempts: 5,
        initialBackoff: "0.5s",
        maxBackoff: "2s",
        backoffMultiplier: 2,
        retryableStatusCodes: ["UNAVAILABLE", "RESOURCE_EXHAUSTED"],
      },
    },
  ],
});

const { values: options } = parseArgs({
  options: {
    address: { type: "string", default: "localhost:50051" },
    "tls-ca": { type: "string", default: "ca.pem" },
    token: { type: "string", default: "" },
  },
});

const PROTOS = fileURLToPath(new URL("../../../proto", import.meta.url));
const definition = loader.loadSync(["chairlift/v1/generation.proto", "chairlift/v1/server.proto"], {
  includeDirs: [PROTOS],
  longs: String,
  enums: String,
  defaults: true,
  oneofs: true,
});
const proto = grpc.loadPackageDefinition(definition) as unknown as ProtoGrpcType & ServerGrpcType;

const tls = grpc.credentials.createSsl(readFileSync(options["tls-ca"]));
const bearer = grpc.credentials.createFromMetadataGenerator((_, callback) => {
  const metadata = new grpc.Metadata();
  metadata.set("authorization", `Bearer ${options.token}`);
  callback(null, metadata);
});
const client = new proto.chairlift.v1.GenerationService(
  options.address,
  grpc.credentials.combineChannelCredentials(tls, bearer),
  { "grpc.service_config": SERVICE_CONFIG },
);

type Call = ReturnType<GenerationServiceClient["generate"]>;

// A request for exactly so many tokens, the likeliest ones.
function start(requestId: string, maxTokens: number, more: Partial<Start> = {}): GenerateRequest {
  return {
    start: {
      requestId,
      text: "Once upon a time",
      sampling: { temperature: 0 },
      stopping: { maxTokens, ignoreEos: true },
      ...more,
    },
  };
}

// The events of a call; an error ends the program.
async function* events(call: Call): AsyncGenerator<Event__Output> {
  for await (const response of call) {
    for (const event of (response as GenerateResponse__Output).events) {
      const error = event.failed?.error ?? event.rejected?.error;
      if (error) throw new Error(`${error.reason}: ${error.message}`);
      yield event;
    }
  }
}

// Many requests share one stream.
async function stream(): Promise<void> {
  const call = client.generate();
  for (const id of ["a", "b", "c"]) call.write(start(id, 24));
  call.end();
  const tokens: Record<string, number> = {};
  for await (const event of events(call)) {
    tokens[event.requestId] = (tokens[event.requestId] ?? 0) + (event.tokens?.numTokens ?? 0);
  }
  console.log(`stream: a ${tokens.a}, b ${tokens.b}, c ${tokens.c}`);
}

// A request ends early, and its stream goes on.
async function cancel(): Promise<void> {
  const call = client.generate();
  // Without credit for more it cannot end before the cancel arrives.
  call.write(start("a", 100, { credit: 1 }));
  for await (const event of events(call)) {
    if (event.tokens) {
      call.write({ cancel: { requestId: "a" } });
      call.end();
    }
    if (event.finished) console.log("cancel:", event.finished.reason.replace("FINISH_REASON_", ""));
  }
}

// A client that is slow allows only as many tokens as it can take.
async function credit(): Promise<void> {
  const call = client.generate();
  call.write(start("a", 12, { credit: 5 }));
  let [before, total] = [0, 0];
  for await (const event of events(call)) {
    total += event.tokens?.numTokens ?? 0;
    if (total === 5 && before === 0) {
      before = total;
      call.write({ credit: { requestId: "a", tokens: 50 } });
      call.end();
    }
  }
  console.log(`credit: ${before}, then ${total}`);
}

// A request outlives its stream, and another stream goes on with it.
async function resume(): Promise<void> {
  let [whole, got, handle, number] = ["", "", "", 0];
  const uncut = client.generate();
  uncut.write(start("a", 60));
  uncut.end();
  for await (const event of events(uncut)) whole += event.tokens?.text ?? "";

  const note = (event: Event__Output): void => {
    handle = event.accepted?.handle ?? handle;
    got += event.tokens?.text ?? "";
    number = event.number;
  };
  const lost = client.generate();
  lost.on("error", () => {}); // CANCELLED, which is asked for.
  lost.write(start("a", 60, { resumeWindow: { seconds: 60 } }));
  for await (const event of events(lost)) {
    note(event);
    if (event.tokens) break;
  }
  lost.cancel();

  const call = client.generate();
  call.write({ resume: { handle, afterNumber: number, requestId: "b" } });
  call.end();
  for await (const event of events(call)) note(event);
  console.log(`resume: ${whole === got ? "the same text" : `${got} instead of ${whole}`}`);
}

// The deadline of a call ends it, whatever its requests wait for.
async function deadline(): Promise<void> {
  const call = client.generate({ deadline: Date.now() + 500 });
  call.write(start("a", 10, { credit: 0 }));
  try {
    for await (const _ of call);
  } catch (error) {
    console.log("deadline:", grpc.status[(error as grpc.ServiceError).code]);
  }
}

async function withoutToken(): Promise<void> {
  const server = new proto.chairlift.v1.ServerService(options.address, tls);
  const code = await new Promise<grpc.status>((resolve) => {
    server.getServerInfo({}, (error) => resolve(error?.code ?? grpc.status.OK));
  });
  console.log("token:", grpc.status[code]);
  server.close();
}

// More calls at once than the tenant may make in a second: those that are refused are sent again.
async function retry(): Promise<void> {
  const one = async (): Promise<number> => {
    const call = client.generateOne({ start: start("", 1).start });
    try {
      for await (const _ of call);
      return 1;
    } catch {
      return 0;
    }
  };
  const answered = await Promise.all(Array.from({ length: 30 }, one));
  console.log(`retry: ${answered.reduce((sum, number) => sum + number, 0)} of 30`);
}

await stream();
await cancel();
await credit();
await resume();
await deadline();
await withoutToken();
await retry();
client.close();
