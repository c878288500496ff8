//! What a router promises, whatever it is asked.

use chairlift_router::{
    MAX_REPLICAS, Prompt, Router, RouterConfig, Routing, Ticket,
    random::{Random, mix},
};
use proptest::prelude::*;

const TOKENS_PER_NAME: usize = 128;

fn router(routing: Routing, num_replicas: usize, seed: u64) -> Router {
    let config = RouterConfig {
        routing,
        num_replicas,
        names_per_replica: 1000,
        seed,
    };
    Router::new(config).expect("a valid configuration")
}

fn route(router: &mut Router, names: &[u64]) -> Ticket {
    let prompt = Prompt {
        names,
        tokens_per_name: TOKENS_PER_NAME,
        num_tokens: names.len() * TOKENS_PER_NAME + 1,
    };
    router.route(prompt).expect("a replica is up")
}

/// Names that begin as those of all other prompts do, and then are of this one alone.
fn names(num_alike: u64, num_unique: u64, number: u64) -> Vec<u64> {
    let alike = (0..num_alike).map(mix);
    let unique = (0..num_unique).map(|place| mix(mix(number + 1) ^ place));
    alike.chain(unique).collect()
}

/// The largest number of requests that a replica got, to the mean.
fn imbalance(counts: &[usize]) -> f64 {
    let sum: usize = counts.iter().sum();
    let max = counts.iter().max().copied().unwrap_or(0);
    max as f64 * counts.len() as f64 / sum as f64
}

#[test]
fn a_prompt_goes_where_its_beginning_is() {
    for routing in [Routing::Prefix, Routing::Both] {
        let mut router = router(routing, 8, 1);
        for number in 0..800 {
            let ticket = route(&mut router, &names(0, 20, number));
            router.end(ticket);
        }
        let mut num_followed = 0;
        for number in 1000..1040 {
            let first = route(&mut router, &names(0, 20, number));
            let longer = route(&mut router, &names(0, 24, number));
            if longer.replica() == first.replica() {
                num_followed += 1;
                assert_eq!(longer.num_uncached(), 4 * TOKENS_PER_NAME + 1);
            }
            router.end(first);
            router.end(longer);
        }
        // A replica at its bound of load gets none.
        assert!(num_followed >= 30, "{routing:?} {num_followed}");
    }
}

#[test]
fn one_shared_beginning_makes_no_hot_spot() {
    for routing in [Routing::Prefix, Routing::Both] {
        for stays in [false, true] {
            let mut router = router(routing, 16, 2);
            let mut counts = vec![0; 16];
            for number in 0..4000 {
                let ticket = route(&mut router, &names(100, 1, number));
                counts[ticket.replica() as usize] += 1;
                if !stays {
                    router.end(ticket);
                }
            }
            assert!(imbalance(&counts) < 1.5, "{routing:?} {stays} {counts:?}");
        }
    }
}

#[test]
fn least_load_counts_requests_at_once() {
    let mut router = router(Routing::LeastLoad, 64, 3);
    let tickets: Vec<_> = (0..640)
        .map(|_| route(&mut router, &names(0, 3, 0)))
        .collect();
    assert!((0..64).all(|replica| router.num_in_flight(replica) == 10));
    for ticket in tickets {
        router.end(ticket);
    }
    assert!((0..64).all(|replica| router.num_in_flight(replica) == 0));
}

#[test]
fn round_robin_passes_over_replicas_that_are_down() {
    let mut router = router(Routing::RoundRobin, 4, 4);
    router.leave(2);
    let order: Vec<_> = (0..6)
        .map(|_| route(&mut router, &names(0, 1, 0)).replica())
        .collect();
    assert_eq!(order, [0, 1, 3, 0, 1, 3]);
}

#[test]
fn ties_are_broken_by_the_seed() {
    let decisions = |seed| -> Vec<_> {
        let mut router = router(Routing::Both, 100, seed);
        (0..50)
            .map(|number| route(&mut router, &names(0, 5, number)).replica())
            .collect()
    };
    assert_eq!(decisions(1), decisions(1));
    assert_ne!(decisions(1), decisions(2));
}

#[test]
fn a_replica_that_lies_about_its_load_draws_no_more_than_its_share() {
    for lie in [0, u32::MAX] {
        let mut router = router(Routing::Both, 8, 5);
        let mut counts = vec![0; 8];
        for number in 0..4000 {
            router.report(3, lie);
            let ticket = route(&mut router, &names(2, 10, number));
            counts[ticket.replica() as usize] += 1;
        }
        let others: Vec<_> = (0..8).filter(|&i| i != 3).map(|i| counts[i]).collect();
        assert!(counts[3] < 4000 / 8 * 3 / 2, "{counts:?}");
        assert!(imbalance(&others) < 1.2, "{counts:?}");
    }
}

#[test]
fn a_replica_that_joins_is_not_flooded() {
    let mut router = router(Routing::Both, 8, 6);
    router.leave(7);
    for number in 0..2000 {
        let ticket = route(&mut router, &names(2, 10, number));
        router.end(ticket);
    }
    router.join(7);
    let mut count = 0;
    for number in 2000..2400 {
        let ticket = route(&mut router, &names(2, 10, number));
        count += usize::from(ticket.replica() == 7);
        router.end(ticket);
    }
    assert!((20..100).contains(&count), "{count}");
}

#[test]
fn sizes_outside_of_the_limits_are_refused() {
    for (num_replicas, names_per_replica) in [(0, 1), (MAX_REPLICAS + 1, 1), (1, 0)] {
        let config = RouterConfig {
            routing: Routing::Both,
            num_replicas,
            names_per_replica,
            seed: 0,
        };
        assert!(Router::new(config).is_err());
    }
}

/// A call of a router; numbers pick among what there is.
#[derive(Clone, Debug)]
enum Call {
    Route { beginning: u64, length: u64 },
    End(usize),
    Report(u16, u32),
    Leave(u16),
    Join(u16),
}

fn call() -> impl Strategy<Value = Call> {
    prop_oneof![
        6 => (0..6_u64, 0..30_u64).prop_map(|(beginning, length)| Call::Route { beginning, length }),
        4 => any::<usize>().prop_map(Call::End),
        1 => (any::<u16>(), any::<u32>()).prop_map(|(replica, count)| Call::Report(replica, count)),
        1 => any::<u16>().prop_map(Call::Leave),
        1 => any::<u16>().prop_map(Call::Join),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn a_router_stays_within_its_bounds(
        routing in prop::sample::select(vec![Routing::RoundRobin, Routing::LeastLoad, Routing::Prefix, Routing::Both]),
        num_replicas in 1..12_usize,
        names_per_replica in 1..40_usize,
        seed in any::<u64>(),
        calls in prop::collection::vec(call(), 1..200),
    ) {
        let config = RouterConfig { routing, num_replicas, names_per_replica, seed };
        let mut router = Router::new(config).expect("a valid configuration");
        let mut random = Random::new(seed);
        let mut is_up = vec![true; num_replicas];
        let mut tickets: Vec<Ticket> = Vec::new();
        for call in calls {
            match call {
                Call::Route { beginning, length } => {
                    let names = names(beginning, length, random.below(20) as u64);
                    let num_tokens = names.len() * TOKENS_PER_NAME + 1;
                    let prompt = Prompt { names: &names, tokens_per_name: TOKENS_PER_NAME, num_tokens };
                    let ticket = router.route(prompt);
                    prop_assert_eq!(ticket.is_some(), is_up.contains(&true));
                    if let Some(ticket) = ticket {
                        prop_assert!(is_up[ticket.replica() as usize]);
                        prop_assert!((1..=num_tokens).contains(&ticket.num_uncached()));
                        tickets.push(ticket);
                    }
                }
                Call::End(which) if !tickets.is_empty() => {
                    router.end(tickets.swap_remove(which % tickets.len()));
                }
                Call::End(_) => {}
                Call::Report(replica, count) => router.report(replica % num_replicas as u16, count),
                Call::Leave(replica) => {
                    let replica = replica % num_replicas as u16;
                    router.leave(replica);
                    is_up[replica as usize] = false;
                }
                Call::Join(replica) => {
                    let replica = replica % num_replicas as u16;
                    router.join(replica);
                    is_up[replica as usize] = true;
                }
            }
            prop_assert!(router.num_names() <= num_replicas * names_per_replica);
            for replica in 0..num_replicas as u16 {
                let count = tickets.iter().filter(|ticket| ticket.replica() == replica).count();
                prop_assert_eq!(router.num_in_flight(replica) as usize, count);
                prop_assert!(router.load(replica) >= -1e-3, "{}", router.load(replica));
            }
        }
    }

}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    #[test]
    fn every_number_of_replicas_is_balanced(
        routing in prop::sample::select(vec![Routing::LeastLoad, Routing::Prefix, Routing::Both]),
        size in 0..13_u32,
        stays in any::<bool>(),
        seed in any::<u64>(),
    ) {
        let num_replicas = 1_usize << size;
        let mut router = router(routing, num_replicas, seed);
        let mut tokens = vec![0; num_replicas];
        let per_replica = if num_replicas > 256 { 4 } else { 64 };
        let num_requests = per_replica * num_replicas;
        for number in 0..num_requests as u64 {
            let ticket = route(&mut router, &names(30, 2, number));
            // A load is of tokens: those to compute, and what an answer counts for.
            tokens[ticket.replica() as usize] += ticket.num_uncached() + 256;
            if !stays && routing != Routing::LeastLoad {
                router.end(ticket);
            }
        }
        let max = tokens.iter().max().copied().unwrap_or(0);
        let sum: usize = tokens.iter().sum();
        // Half more than the mean, and eight mean requests: four of slack, those that it let through before, and the last.
        let bound = sum * 3 / 2 / num_replicas + 8 * sum / num_requests;
        prop_assert!(max <= bound, "{} of {}", max, bound);
    }
}

#[test]
fn a_request_that_some_replicas_may_have_goes_to_one_of_them_that_is_up() {
    let names = names(0, 4, 1);
    let prompt = Prompt {
        names: &names,
        tokens_per_name: TOKENS_PER_NAME,
        num_tokens: 1000,
    };
    for routing in [
        Routing::RoundRobin,
        Routing::LeastLoad,
        Routing::Prefix,
        Routing::Both,
    ] {
        let mut router = router(routing, 8, 1);
        let mut counts = [0; 8];
        for _ in 0..100 {
            // The others have nothing to do.
            let ticket = router.route_among(prompt, &[2, 5]).expect("both are up");
            counts[ticket.replica() as usize] += 1;
        }
        assert_eq!(counts[2] + counts[5], 100);
        assert!(counts[2].min(counts[5]) >= 40, "{routing:?}: {counts:?}");
        router.leave(2);
        let ticket = router.route_among(prompt, &[2, 5]);
        assert_eq!(ticket.map(|ticket| ticket.replica()), Some(5));
        assert!(router.route_among(prompt, &[2]).is_none());
        assert!(router.route_among(prompt, &[]).is_none());
    }
}
