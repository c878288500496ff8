//! Blocks of windows that are loaded from a store.

use super::*;

fn windowed(windows: &[Option<u32>]) -> Config {
    Config {
        kv_groups: windows.iter().map(|&window| KvGroup { window }).collect(),
        num_blocks: 64,
        ..cached()
    }
}

/// Blocks of 4 tokens: the token behind seven of them sees from token 23 on with a window of 6, in blocks 5 and 6.
#[test]
fn of_a_window_only_what_the_last_token_sees_is_missing() {
    for (windows, num_names) in [
        (&[Some(6)][..], 2),
        (&[None, Some(6)], 7 + 2),
        (&[Some(6), None], 7 + 2),
        (&[Some(60), None], 7 + 7),
    ] {
        let mut stored = Stored::new(windowed(windows));
        let request = stored.add(of_tenant("t", prompt(30)));
        let missing = stored.driver.scheduler.missing_blocks(request);
        assert_eq!(missing.names.len(), num_names, "{windows:?}");
        assert_eq!(
            (missing.first, missing.num_indices, missing.number),
            (0, 7, 0)
        );
        let later = stored.driver.scheduler.block_names(request, 5);
        let at = missing.names.len() - later.names.len();
        assert_eq!((later.number, &later.names[..]), (at, &missing.names[at..]));
        stored.run();
    }
}

#[test]
fn loaded_blocks_of_windows_are_found_and_billed() {
    for windows in [
        &[Some(6)][..],
        &[None, Some(6)],
        &[Some(6), None],
        &[None, Some(3), Some(17)],
    ] {
        let mut stored = Stored::new(windowed(windows));
        stored.add(of_tenant("t", prompt(30)));
        stored.run();
        let mut stored = stored.restart(windowed(windows));
        let (request, _) = stored.add_loaded(of_tenant("t", prompt(30)));
        stored.run();
        assert_eq!(stored.tokens(request), expected_tokens(&prompt(30), 6));
        let stats = stored.driver.outcome(request).stats.expect("it has ended");
        let billed = (stats.cached_tokens, stats.transferred_tokens);
        assert_eq!(billed, (28, 28), "{windows:?}");
        stored.driver.assert_empty();
    }
}

#[test]
fn without_a_block_of_a_window_nothing_behind_it_is_found() {
    let windows = [None, Some(6)];
    let mut stored = Stored::new(windowed(&windows));
    stored.add(of_tenant("t", prompt(30)));
    stored.run();
    let mut stored = stored.restart(windowed(&windows));
    let request = stored.add(of_tenant("t", prompt(30)));
    let missing = stored.driver.scheduler.missing_blocks(request);
    assert!(stored.driver.scheduler.hold(0, request));
    let all_but_one = missing.names.len() - 1;
    stored.load(request, &missing.names[..all_but_one], 0);
    stored.driver.scheduler.release_held(0, request);
    stored.run();
    assert_eq!(stored.tokens(request), expected_tokens(&prompt(30), 6));
    let stats = stored.driver.outcome(request).stats.expect("it has ended");
    assert_eq!((stats.cached_tokens, stats.transferred_tokens), (0, 0));
}

/// The group without a window knows the beginning, the window does not: what is computed again is told all the same.
#[test]
fn a_block_that_is_computed_again_is_told() {
    let mut stored = Stored::new(windowed(&[None, Some(6)]));
    stored.add(of_tenant("t", prompt(30)));
    stored.run();
    let mut shorter = prompt(18);
    shorter.extend([400; 3]);
    let request = stored.add(of_tenant("t", shorter));
    let names = stored.driver.scheduler.block_names(request, 0).names;
    let told: Vec<_> = stored.run().into_iter().map(|(name, _)| name).collect();
    assert!(names.iter().all(|name| told.contains(name)));
}

/// Blocks of 4 tokens; a window of 6 sees the last two.
#[test]
fn the_longest_beginning_that_a_store_has_all_of_is_loaded_and_found() {
    for windows in [&[None][..], &[Some(6)], &[None, Some(6)], &[Some(6), None]] {
        let mut stored = Stored::new(windowed(windows));
        stored.add(of_tenant("t", prompt(22)));
        stored.run();
        let mut stored = stored.restart(windowed(windows));
        // A longer prompt, whose last windows were never computed.
        let longer = || of_tenant("t", [prompt(22), vec![400; 30]].concat());
        let request = stored.add(longer());
        let missing = stored.beginning(request);
        assert_eq!((missing.first, missing.num_indices), (0, 5), "{windows:?}");
        let num_names: usize = windows.iter().map(|window| window.map_or(5, |_| 2)).sum();
        assert_eq!(missing.names.len(), num_names);
        assert!(stored.driver.scheduler.hold(0, request));
        stored.load(request, &missing.names, missing.number);
        stored.driver.scheduler.release_held(0, request);
        stored.run();
        let stats = stored.driver.outcome(request).stats.expect("it has ended");
        let billed = (stats.cached_tokens, stats.transferred_tokens);
        assert_eq!(billed, (20, 20), "{windows:?}");
        let again = stored.add(longer());
        assert_eq!(
            stored.beginning(again),
            MissingBlocks::default(),
            "all is known"
        );
        stored.run();
        stored.driver.assert_empty();
    }
}

#[test]
fn behind_a_block_that_a_store_has_lost_no_window_is_whole_until_it_has_passed() {
    let windows = [None, Some(6)];
    let mut stored = Stored::new(windowed(&windows));
    let request = stored.add(of_tenant("t", prompt(30)));
    let names = stored.driver.scheduler.block_names(request, 0).names;
    stored.run();
    // The last two of each group are those of the window.
    let [.., whole, windowed_6, _, windowed_7] = names[..] else {
        panic!("{} names", names.len());
    };
    for (lost, num_indices) in [(windowed_7, 6), (windowed_6, 5), (whole, 5), (names[0], 0)] {
        let mut stored = Stored {
            store: stored.store.clone(),
            ..Stored::new(windowed(&windows))
        };
        stored.store.remove(&lost);
        let request = stored.add(of_tenant("t", prompt(30)));
        assert_eq!(stored.beginning(request).num_indices, num_indices);
        stored.run();
    }
}
