//! Sampling: filters against a sorted oracle, distribution, determinism and refusals.

use crate::oracle::numbers;
use chairlift_draws::token::NOT_FINITE;
use chairlift_kernels::{
    ArgumentError, Rows,
    memory::pool,
    sampling::{Draws, inputs::Parameters, sample},
};
use proptest::prelude::*;

/// Parameters of one row.
#[derive(Debug, Clone, Copy)]
struct Row {
    temperature: f32,
    top_k: i32,
    top_p: f32,
    min_p: f32,
    seed: i64,
    index: i32,
    position: i32,
}

const PLAIN: Row = Row {
    temperature: 1.0,
    top_k: 0,
    top_p: 1.0,
    min_p: 0.0,
    seed: 0,
    index: 0,
    position: 0,
};

const GREEDY: Row = Row {
    temperature: 0.0,
    ..PLAIN
};

#[derive(Debug, Clone, PartialEq)]
struct Drawn {
    token: i32,
    logprob: f32,
    rank: i32,
}

fn try_draw(logits: &[f32], rows: &[Row]) -> Result<Vec<Drawn>, ArgumentError> {
    let n = rows.len();
    let (mut tokens, mut ranks) = (vec![-7; n], vec![-7; n]);
    let mut logprobs = vec![-7.0; n];
    sample(
        Rows::contiguous(logits, logits.len() / n),
        &Parameters {
            temperature: &rows.iter().map(|row| row.temperature).collect::<Vec<_>>(),
            top_k: &rows.iter().map(|row| row.top_k).collect::<Vec<_>>(),
            top_p: &rows.iter().map(|row| row.top_p).collect::<Vec<_>>(),
            min_p: &rows.iter().map(|row| row.min_p).collect::<Vec<_>>(),
            seed: &rows.iter().map(|row| row.seed).collect::<Vec<_>>(),
            index: &rows.iter().map(|row| row.index).collect::<Vec<_>>(),
            position: &rows.iter().map(|row| row.position).collect::<Vec<_>>(),
            scored: None,
        },
        None,
        None,
        Draws {
            tokens: &mut tokens,
            logprobs: &mut logprobs,
            ranks: &mut ranks,
        },
    )?;
    let drawn = (0..n).map(|i| Drawn {
        token: tokens[i],
        logprob: logprobs[i],
        rank: ranks[i],
    });
    Ok(drawn.collect())
}

/// One row of logits, drawn with many parameters.
fn draw(logits: &[f32], rows: &[Row]) -> Vec<Drawn> {
    try_draw(&logits.repeat(rows.len()), rows).expect("the arguments fit")
}

/// The filtered distribution, by sorting.
fn distribution(logits: &[f32], row: Row) -> Vec<f64> {
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|&a, &b| {
        logits[b]
            .partial_cmp(&logits[a])
            .expect("finite")
            .then(a.cmp(&b))
    });
    if row.top_k > 0 {
        order.truncate(row.top_k as usize);
    }
    let largest = f64::from(logits[order[0]]);
    let weight = |id: usize| ((f64::from(logits[id]) - largest) / f64::from(row.temperature)).exp();
    let total: f64 = order.iter().map(|&id| weight(id)).sum();
    let mut sum = 0.0;
    let enough = order.iter().position(|&id| {
        sum += weight(id);
        sum >= f64::from(row.top_p) * total
    });
    order.truncate(enough.map_or(order.len(), |last| last + 1));
    order.retain(|&id| weight(id) >= f64::from(row.min_p));
    let total: f64 = order.iter().map(|&id| weight(id)).sum();
    let mut p = vec![0.0; logits.len()];
    for id in order {
        p[id] = weight(id) / total;
    }
    p
}

/// Draws many tokens and compares their frequencies with the distribution.
fn assert_drawn_from(logits: &[f32], row: Row) {
    const DRAWS: usize = 4000;
    let rows: Vec<Row> = (0..DRAWS)
        .map(|i| Row {
            position: i as i32,
            ..row
        })
        .collect();
    let mut counts = vec![0.0; logits.len()];
    for drawn in draw(logits, &rows) {
        counts[drawn.token as usize] += 1.0;
    }
    for (id, p) in distribution(logits, row).into_iter().enumerate() {
        let expected = p * DRAWS as f64;
        let deviation = (expected * (1.0 - p)).sqrt();
        let got: f64 = counts[id];
        assert!(
            (got - expected).abs() <= 5.0 * deviation + 1e-9,
            "{row:?}: token {id} was drawn {got} times, expected {expected}"
        );
    }
}

#[test]
fn draws_follow_the_filtered_distribution() {
    let logits = numbers::<f32>(1, 40);
    let filters = [
        (0, 1.0, 0.0),
        (5, 1.0, 0.0),
        (0, 0.7, 0.0),
        (0, 1.0, 0.3),
        (8, 0.8, 0.2),
    ];
    for temperature in [0.5, 1.0, 2.0] {
        for (top_k, top_p, min_p) in filters {
            let row = Row {
                temperature,
                top_k,
                top_p,
                min_p,
                seed: 42,
                ..PLAIN
            };
            assert_drawn_from(&logits, row);
        }
    }
}

#[test]
fn draws_of_a_wide_vocabulary_span_its_chunks() {
    // Four likely tokens far apart among thousands of impossible ones.
    let mut logits = vec![f32::NEG_INFINITY; 3000];
    for (id, logit) in [(0, 1.0), (511, 2.0), (512, 0.5), (2999, 1.5)] {
        logits[id] = logit;
    }
    assert_drawn_from(&logits, PLAIN);
    assert_drawn_from(
        &logits,
        Row {
            top_p: 0.9,
            ..PLAIN
        },
    );
    assert_drawn_from(&logits, Row { top_k: 2, ..PLAIN });
}

#[test]
fn greedy_takes_the_lowest_id_among_equals() {
    let drawn = draw(&[0.0, 3.0, -1.0, 3.0, 3.0], &[GREEDY]);
    assert_eq!((drawn[0].token, drawn[0].rank), (1, 1));
    assert_eq!(draw(&[-0.0, 0.0, -1.0], &[GREEDY])[0].token, 0);
    assert_eq!(draw(&[f32::NEG_INFINITY, -3e38], &[GREEDY])[0].token, 1);
}

#[test]
fn filters_keep_the_lowest_ids_among_equals() {
    let logits = [1.0; 10];
    let rows: Vec<Row> = (0..200).map(|seed| Row { seed, ..PLAIN }).collect();
    let kept = |change: fn(Row) -> Row| {
        let rows: Vec<Row> = rows.iter().map(|&row| change(row)).collect();
        let mut tokens: Vec<i32> = draw(&logits, &rows)
            .iter()
            .map(|drawn| drawn.token)
            .collect();
        tokens.sort_unstable();
        tokens.dedup();
        tokens
    };
    assert_eq!(kept(|row| Row { top_k: 3, ..row }), [0, 1, 2]);
    assert_eq!(kept(|row| Row { top_p: 0.35, ..row }), [0, 1, 2, 3]);
    assert_eq!(
        kept(|row| Row {
            top_k: 5,
            top_p: 0.35,
            ..row
        }),
        [0, 1]
    );
    assert_eq!(kept(|row| Row { min_p: 1.0, ..row }).len(), 10);
}

#[test]
fn filters_at_their_ends() {
    let logits = numbers::<f32>(3, 1000);
    let best = draw(&logits, &[GREEDY])[0].token;
    for seed in 0..50 {
        let one = [
            Row {
                top_k: 1,
                seed,
                ..PLAIN
            },
            Row {
                top_p: 1e-9,
                seed,
                ..PLAIN
            },
            Row {
                min_p: 1.0,
                seed,
                ..PLAIN
            },
            Row {
                temperature: 1e-30,
                seed,
                ..PLAIN
            },
        ];
        assert!(draw(&logits, &one).iter().all(|drawn| drawn.token == best));
        let off = [
            Row { seed, ..PLAIN },
            Row {
                top_k: 1000,
                seed,
                ..PLAIN
            },
            Row {
                top_k: i32::MAX,
                seed,
                ..PLAIN
            },
        ];
        let drawn = draw(&logits, &off);
        assert!(drawn.iter().all(|one| *one == drawn[0]));
    }
}

#[test]
fn a_row_that_is_not_finite_gives_minus_one_and_harms_no_other() {
    let good = numbers::<f32>(5, 100);
    let alone = draw(&good, &[PLAIN]);
    for poison in [f32::NAN, f32::INFINITY] {
        for place in [0, 57, 99] {
            let mut bad = good.clone();
            bad[place] = poison;
            for row in [PLAIN, GREEDY] {
                let logits = [bad.clone(), good.clone()].concat();
                let drawn = try_draw(&logits, &[row, PLAIN]).expect("the arguments fit");
                assert_eq!(drawn[0].token, NOT_FINITE);
                assert_eq!(drawn[1], alone[0]);
            }
        }
    }
    assert_eq!(draw(&[f32::NEG_INFINITY; 4], &[PLAIN])[0].token, NOT_FINITE);
}

#[test]
fn logprobs_and_ranks_are_those_of_the_raw_logits() {
    let logits = numbers::<f32>(6, 5000);
    let largest = logits.iter().copied().fold(f32::MIN, f32::max);
    let total: f64 = logits.iter().map(|l| f64::from(l - largest).exp()).sum();
    let rows: Vec<Row> = (0..100)
        .map(|seed| Row {
            temperature: 3.0,
            top_p: 0.9,
            seed,
            ..PLAIN
        })
        .collect();
    for drawn in draw(&logits, &rows) {
        let logit = logits[drawn.token as usize];
        let expected = f64::from(logit - largest) - total.ln();
        assert!((f64::from(drawn.logprob) - expected).abs() < 1e-5);
        assert_eq!(
            drawn.rank as usize,
            1 + logits.iter().filter(|&&l| l > logit).count()
        );
    }
}

#[test]
fn each_coordinate_of_a_draw_matters() {
    let logits = vec![0.0; 1 << 16];
    let rows = [
        PLAIN,
        Row { seed: 1, ..PLAIN },
        Row {
            seed: 1 << 40,
            ..PLAIN
        },
        Row { seed: -1, ..PLAIN },
        Row { index: 1, ..PLAIN },
        Row {
            position: 1,
            ..PLAIN
        },
    ];
    let mut tokens: Vec<i32> = draw(&logits, &rows)
        .iter()
        .map(|drawn| drawn.token)
        .collect();
    assert_eq!(draw(&logits, &rows[..1])[0].token, tokens[0]);
    tokens.sort_unstable();
    tokens.dedup();
    assert_eq!(tokens.len(), rows.len());
}

#[test]
fn parameters_out_of_range_are_refused_by_name() {
    let cases = [
        (
            Row {
                temperature: -0.1,
                ..PLAIN
            },
            "temperature: expected finite and at least 0, got",
        ),
        (
            Row {
                temperature: f32::NAN,
                ..PLAIN
            },
            "temperature: expected finite and at least 0",
        ),
        (
            Row { top_k: -1, ..PLAIN },
            "top_k: expected at least 0, got -1",
        ),
        (
            Row {
                top_p: 0.0,
                ..PLAIN
            },
            "top_p: expected above 0 and at most 1, got 0",
        ),
        (
            Row {
                top_p: 1.5,
                ..PLAIN
            },
            "top_p: expected above 0 and at most 1, got 1.5",
        ),
        (
            Row {
                top_p: f32::NAN,
                ..PLAIN
            },
            "top_p: expected above 0 and at most 1, got NaN",
        ),
        (
            Row {
                min_p: 2.0,
                ..PLAIN
            },
            "min_p: expected 0 to 1, got 2",
        ),
    ];
    for (row, expected) in cases {
        let error = try_draw(&[0.0; 4], &[row])
            .expect_err("out of range")
            .to_string();
        assert!(error.starts_with(expected), "{error}");
    }
}

proptest! {
    #[test]
    fn a_drawn_token_is_kept_by_the_filters_and_does_not_depend_on_mates_or_threads(
        logits in prop::collection::vec(-8_f32..8.0, 1..700),
        temperature in prop::sample::select(vec![0.2_f32, 0.7, 1.0, 3.0]),
        top_k in 0..20,
        top_p in prop::sample::select(vec![0.1_f32, 0.5, 0.95, 1.0]),
        min_p in prop::sample::select(vec![0.0_f32, 0.01, 0.5]),
        seed: i64,
    ) {
        let row = Row { temperature, top_k, top_p, min_p, seed, index: 3, position: 17 };
        pool::set_num_threads(1);
        let alone = draw(&logits, &[row]);
        let mates = [PLAIN, row, GREEDY, Row { seed: 5, ..row }];
        pool::set_num_threads(3);
        let together = draw(&logits, &mates);
        prop_assert_eq!(&alone[0], &together[1]);
        // Float32 weights may round a token across a filter's edge; float64 ones near it agree.
        let p = distribution(&logits, row)[alone[0].token as usize];
        let loose = Row { top_p: (top_p + 1e-5).min(1.0), min_p: (min_p - 1e-5).max(0.0), ..row };
        prop_assert!(p > 0.0 || distribution(&logits, loose)[alone[0].token as usize] > 0.0);
    }
}
