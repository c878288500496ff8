//! What a seed draws before anything runs: the configuration, the traffic and how often each fault strikes.
//!
//! Half of the seeds leave a fault out altogether (swarm testing, Groce et al., ISSTA '12): a fault that always strikes
//! hides what only happens without it.

use chairlift_core::{Config, KvGroup, policy::Policy};

use crate::random::{Random, Rate};

/// Everything about a run but its events.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// What it was drawn from, unless from bytes.
    pub seed: Option<u64>,
    pub(crate) config: Config,
    pub(crate) traffic: Traffic,
    pub(crate) faults: Faults,
    /// Steps before the faults cease.
    pub(crate) num_steps: usize,
    /// The deep check of all invariants runs after every so many events, and at the end.
    pub(crate) check_every: usize,
}

/// The requests.
#[derive(Clone, Debug)]
pub(crate) struct Traffic {
    pub(crate) arrivals: Rate,
    /// Requests that arrive at once.
    pub(crate) max_burst: usize,
    pub(crate) max_prompt: usize,
    pub(crate) max_output: usize,
    /// Different beginnings of prompts, of which requests share up to `max_shared` tokens.
    pub(crate) num_prefixes: usize,
    pub(crate) max_shared: usize,
    pub(crate) num_tenants: usize,
    /// The second tenant sends short prompts, the third wants short answers: only a true account of both makes them equal.
    pub(crate) is_uneven: bool,
    pub(crate) stops: Rate,
    pub(crate) deadlines: Rate,
    pub(crate) uncached: Rate,
    pub(crate) prompts: Rate,
    /// Requests with a credit limit, and with a priority.
    pub(crate) credits: Rate,
    pub(crate) priorities: Rate,
    /// Requests of callers with many, which take turns with others.
    pub(crate) delays: Rate,
    /// Requests with several answers.
    pub(crate) answers: Rate,
    pub(crate) max_sequences: usize,
    /// The first tenant asks for as many answers as there are rows, or half as many; the others for one.
    pub(crate) is_greedy: bool,
    /// Requests with an adapter.
    pub(crate) adapters: Rate,
}

impl Traffic {
    /// Tokens of a prompt of this tenant at most, and of an answer to it.
    pub(crate) fn max_tokens(&self, tenant: u8) -> (usize, usize) {
        let cut = |max: usize, is_short: bool| {
            if self.is_uneven && is_short {
                max.div_ceil(8)
            } else {
                max
            }
        };
        (
            cut(self.max_prompt, tenant == 1),
            cut(self.max_output, tenant == 2),
        )
    }
}

/// How often each fault strikes.
#[derive(Clone, Debug)]
pub(crate) struct Faults {
    pub(crate) abort: Rate,
    pub(crate) fail: Rate,
    pub(crate) not_finite: Rate,
    pub(crate) wrong_update: Rate,
    pub(crate) bad_request: Rate,
    pub(crate) evict: Rate,
    pub(crate) flush: Rate,
    pub(crate) clock_jump: Rate,
    /// A step's outcome waits for other events.
    pub(crate) late: Rate,
    /// A request is changed.
    pub(crate) change: Rate,
    /// A client proposes drafts.
    pub(crate) draft: Rate,
    /// A request waits for blocks from a store.
    pub(crate) load: Rate,
}

impl Scenario {
    /// Draws the scenario of a seed.
    pub fn draw(seed: u64) -> Self {
        let mut scenario = Self::draw_from(&mut Random::new(seed));
        scenario.seed = Some(seed);
        scenario
    }

    pub(crate) fn draw_from(random: &mut Random) -> Self {
        let mut config = draw_config(random);
        let context = config.max_context_len();
        let mut traffic = Traffic {
            arrivals: random.magnitude(8, 256),
            max_burst: random.pick(&[1, 1, 2, 4, 40]),
            max_prompt: random.magnitude(1, context.max(2) - 1),
            max_output: if random.chance(512) {
                2 * context
            } else {
                random.magnitude(1, 2 * context)
            },
            num_prefixes: random.between(1, 4),
            max_shared: random.between(0, context),
            num_tenants: random.between(1, 3),
            is_uneven: false,
            stops: sometimes(random, 512),
            deadlines: sometimes(random, 256),
            uncached: sometimes(random, 256),
            prompts: sometimes(random, 512),
            credits: 0,
            priorities: 0,
            delays: 0,
            answers: 0,
            max_sequences: config.max_sequences().min(8),
            is_greedy: false,
            adapters: 0,
        };
        let mut faults = Faults {
            abort: sometimes(random, 256),
            fail: sometimes(random, 128),
            not_finite: sometimes(random, 128),
            wrong_update: sometimes(random, 64),
            bad_request: sometimes(random, 128),
            evict: sometimes(random, 64),
            flush: sometimes(random, 64),
            clock_jump: sometimes(random, 64),
            late: sometimes(random, 768),
            change: 0,
            draft: 0,
            load: 0,
        };
        let num_steps = random.magnitude(64, 2048);
        let every = if config.num_blocks <= 32 {
            1
        } else {
            config.num_blocks / 4
        };
        traffic.credits = sometimes(random, 512);
        traffic.priorities = sometimes(random, 1024);
        traffic.answers = sometimes(random, 1024);
        faults.change = sometimes(random, 256);
        if random.chance(512) {
            config.num_host_blocks = random.magnitude(1, 2 * config.num_blocks);
            config.swap_block_time = random.pick(&[0, 0, 1, 100, 10_000]);
        }
        if random.chance(512) {
            faults.draft = random.between(64, 768);
        }
        traffic.adapters = sometimes(random, 1024);
        traffic.is_uneven = random.chance(512);
        if random.chance(384) {
            config.state_snapshots = Some(random.pick(&[0, 1, 2, 8, 64]));
            (config.max_step_drafts, config.num_host_blocks) = (0, 0);
        }
        traffic.delays = sometimes(random, 1024);
        if traffic.num_tenants > 1 && random.chance(256) {
            traffic.is_greedy = true;
            traffic.max_sequences = config.max_sequences();
        }
        faults.load = sometimes(random, 512);
        Self {
            seed: None,
            config,
            traffic,
            faults,
            num_steps,
            check_every: every,
        }
    }

    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    /// The settings with one out of its range, and its name.
    pub(crate) fn spoilt_config(&self) -> (Config, &'static str) {
        let (name, spoil) = BAD_SETTINGS[usize::from(self.config.hash_key[0]) % BAD_SETTINGS.len()];
        let mut config = self.config.clone();
        spoil(&mut config);
        (config, name)
    }
}

type BadSetting = (&'static str, fn(&mut Config));

const BAD_SETTINGS: &[BadSetting] = &[
    ("max_num_seqs", |config| config.max_num_seqs = 0),
    ("max_num_seqs", |config| {
        config.max_num_seqs = 1 << 17;
        config.max_num_batched_tokens = 1 << 17;
    }),
    ("max_num_batched_tokens", |config| {
        config.max_num_batched_tokens = config.max_num_seqs - 1;
    }),
    ("max_num_batched_tokens", |config| {
        config.max_num_batched_tokens = 1 << 31;
    }),
    ("max_model_len", |config| config.max_model_len = 1),
    ("max_queued_requests", |config| {
        config.max_queued_requests = 0;
    }),
    ("max_queued_requests", |config| {
        config.max_queued_requests = 1 << 30;
    }),
    ("vocab_size", |config| config.vocab_size = 0),
    ("vocab_size", |config| config.vocab_size = 1 << 31),
    ("block_size", |config| config.block_size = 0),
    ("kv_groups", |config| config.kv_groups.clear()),
    ("window", |config| config.kv_groups[0].window = Some(0)),
    ("num_blocks", |config| {
        config.num_blocks = config.kv_groups.len();
    }),
    ("num_blocks", |config| config.num_blocks = 1 << 31),
    ("num_host_blocks", |config| config.num_host_blocks = 1 << 31),
    ("max_step_drafts", |config| {
        (config.state_snapshots, config.max_step_drafts) = (Some(1), 1);
    }),
    ("num_host_blocks", |config| {
        (config.state_snapshots, config.max_step_drafts) = (Some(1), 0);
        config.num_host_blocks = 1;
    }),
    ("steps_in_flight", |config| config.steps_in_flight = 0),
    ("steps_in_flight", |config| config.steps_in_flight = 3),
    ("batch_size", |config| {
        config.policy = Policy::Batched {
            size: 0,
            patience: 1,
        }
    }),
    ("batch_size", |config| {
        config.policy = Policy::Batched {
            size: config.max_num_seqs + 1,
            patience: 1,
        };
    }),
];

/// A rate up to `max`; none at all for half of the seeds.
fn sometimes(random: &mut Random, max: Rate) -> Rate {
    if random.chance(512) {
        0
    } else {
        random.magnitude(1, max)
    }
}

fn draw_config(random: &mut Random) -> Config {
    let num_groups = random.pick(&[1, 1, 1, 2, 3]);
    let block_size = random.pick(&[1, 2, 3, 4, 4, 8, 16, 32]);
    let max_model_len = random.magnitude(2, 256);
    let mut kv_groups = vec![KvGroup { window: None }; num_groups];
    if random.chance(512) {
        for group in &mut kv_groups {
            let limited = random.chance(768);
            group.window = limited.then(|| random.magnitude(1, 64) as u32);
        }
    }
    // Half of the pools hold a few long requests only, so that memory is what runs out.
    let num_blocks = if random.chance(512) {
        (max_model_len.div_ceil(block_size) * num_groups * random.between(1, 4)).clamp(4, 4096)
    } else {
        random.magnitude(4, 4096)
    };
    let max_num_seqs = random.magnitude(1, 64);
    let spare = if random.chance(512) {
        random.between(0, 8)
    } else {
        random.magnitude(8, 256)
    };
    let size = random.between(1, max_num_seqs);
    let patience = random.magnitude(1, 1 << 16) as u64;
    let limited = random.chance(256);
    let step_budget = limited.then(|| random.magnitude(1, 1 << 16) as u64);
    let mut hash_key = [0; 32];
    hash_key[..8].copy_from_slice(&random.next().to_le_bytes());
    Config {
        policy: match random.below(4) {
            0 | 1 => Policy::Batched { size, patience },
            _ => Policy::Continuous,
        },
        max_num_seqs,
        max_num_batched_tokens: max_num_seqs + spare,
        step_budget,
        max_model_len,
        max_queued_requests: random.magnitude(1, 64),
        vocab_size: random.pick(&[3, 16, VOCAB, VOCAB]),
        block_size,
        num_blocks: 1 + num_blocks,
        num_host_blocks: 0,
        swap_block_time: 0,
        kv_groups,
        state_snapshots: None,
        prefix_cache: random.chance(768),
        hash_key,
        steps_in_flight: random.between(1, 2),
        max_step_drafts: random.pick(&[0, 1, 16, 256, 256]),
        prompt_lookup: random.chance(512),
    }
}

/// Ids of the token table.
pub(crate) const VOCAB: usize = 1000;
