// A program of a user of the AI SDK.
import assert from "node:assert/strict";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, Output, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const shared = { baseURL: process.argv[2], apiKey: "none" };
const openai = createOpenAI(shared);
const compatible = createOpenAICompatible({
  ...shared, name: "chairlift", supportsStructuredOutputs: true, includeUsage: true,
});
const models = [openai.chat("demo"), openai.responses("demo"), compatible("demo")];
const prompt = "Why is the sky blue?";
const person = z.object({ name: z.string().max(12), age: z.number().int().min(0).max(99) });
const weather = tool({
  description: "The weather in a city.",
  inputSchema: z.object({ city: z.string().max(10) }),
});

for (const model of models) {
  const options = { model, temperature: 0, maxRetries: 0 };
  const whole = await generateText({ ...options, prompt });
  assert(whole.text.startsWith("The sky is blue because"), whole.text);
  const streamed = streamText({ ...options, prompt });
  assert.equal(await streamed.text, whole.text);
  assert((await streamed.usage).outputTokens > 0);

  const typed = await generateText({
    ...options, prompt: "Write a JSON object with a name and an age.", output: Output.object({ schema: person }),
  });
  person.parse(typed.output);

  // A required call goes before the format of the answer. A model this small never stops to call.
  const called = await generateText({
    ...options, prompt: "How is the weather in Paris?", tools: { weather }, toolChoice: "required",
    output: Output.object({ schema: person }), stopWhen: stepCountIs(1),
    providerOptions: {
      openai: { parallelToolCalls: false }, chairlift: { parallel_tool_calls: false },
    },
  });
  assert.equal(called.toolCalls[0].toolName, "weather");
  assert.equal(typeof called.toolCalls[0].input.city, "string");
}
console.log("ai of npm: as expected");
