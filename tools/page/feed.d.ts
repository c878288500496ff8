/** What the server sends to the page: the events of `/page/feed` and `/page/runs`, and what the page makes of them. */

interface Hello {
  v: number;
  server: {
    version: string; state: string; device: string; kernels: string; batching: string; max_num_seqs: number;
    max_num_batched_tokens: number; step_budget_ms: number; batch_size: number; max_queued_requests: number;
    block_size: number; num_blocks: number; prefix_cache: boolean; start_ms: number;
  };
  model: {
    name: string; architecture: string; dtype: string; quantization: string; kv_cache_dtype: string;
    max_context_len: number; has_chat_template: boolean;
  };
  caller: { tenant: string; sees_all: boolean; may_run: boolean };
}

interface Frame {
  n: number;
  first_step: number;
  start_us: number[];
  duration_us: number[];
  /** schedule, inputs, forward, sample, update */
  parts_us: number[][];
  num_waiting: number[];
  num_tokens: number[];
  num_sampled: number[];
  /** row, first_step, num_steps, request, work, num_tokens, num_accepted */
  spans: [number, number, number, number, number, number, number][];
  /** row, step, request */
  preempted: [number, number, number][];
  /** request, handle, request_id */
  new: [number, string, string][];
  /** request, reason, num_output */
  ended: [number, string, number][];
  num_dropped: number;
  /** prefill, decode, idle */
  bands?: [number, number, number][];
}

interface Load {
  num_waiting: number; num_running: number; num_running_suspended: number; num_blocks: number; num_free_blocks: number;
  num_kv_tokens: number; num_preemptions: number; num_prefix_queries: number; num_prefix_hits: number; num_steps: number;
  state?: string;
  itl_p50_us: number | null;
  itl_p99_us: number | null;
  tenants: {
    tenant: string; num_generated_tokens: number; num_started: number;
    ttft_p50_ms: number | null; ttft_p99_ms: number | null;
    /** reason, is_error, count */
    reasons: [string, boolean, number][];
  }[];
}

interface Queue {
  /** The first hundred: handle, request_id, cause, num_before, num_computed_tokens, num_tokens, estimated_wait_ms, age_ms */
  own: [string, string, string | null, number, number, number, number | null, number][];
  num_own: number;
  num_other: number;
  causes: Record<string, number>;
}

interface Blocks {
  num_blocks: number;
  held: number[]; own: number[]; cached: number[]; shared: number[]; free: number[];
}

/** A column of the rows: a step, or where `gap` is not 0 a part of the place of steps that are missing. */
interface Column { gap: number; step: number; us: number; parts: number[]; tokens: number }
/** Consecutive columns of a row, from column `at` on. */
interface Span { row: number; at: number; n: number; no: number; work: number; tokens: number; accepted: number }
interface Known { handle: string; id: string; no: number; row: number | null; reason: string; output: number }

/** An answer of the playground. */
interface Answer {
  id: string; node: any; badge: any; row: any; text: any; meta: any; cancel: any;
  handle: string; no: number; out: string; n: number; end: string; ttft: number | null; itl: number[]; started: number;
}
