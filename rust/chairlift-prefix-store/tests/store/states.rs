//! Recurrent states in pieces.

use super::*;

const PIECES: usize = 3;
const STATE: usize = 2 * BLOCK + 500;

fn with_states(folder: &Path) -> Options {
    Options {
        state_bytes: STATE,
        ..options(folder)
    }
}

fn state() -> Vec<u8> {
    (0..STATE).map(|place| (place % 251) as u8).collect()
}

/// Writes three blocks and the state behind them.
fn write_state(options: Options) -> Stats {
    let mut store = Store::open(options).expect("a store");
    for number in 0..3 {
        offer(&mut store, number);
    }
    let state = state();
    store.offer_state(&name(9), false, &[&state[..300], &state[300..]]);
    assert!(store.close(LONG));
    store.stats()
}

fn blocks_and_state(store: &Store) -> Option<(Vec<Vec<u8>>, Vec<u8>)> {
    let names: Vec<_> = (0..3).map(name).collect();
    let mut load = store.begin_load(&names, Some(&name(9)), None)?;
    let (mut blocks, mut num_pieces) = (Vec::new(), 0);
    while let Progress::Ready(count) = load.poll(LONG) {
        let num_blocks = count.min(3 - blocks.len());
        blocks.extend(load.take(num_blocks).map(|block| block.to_vec()));
        load.keep_pieces(count - num_blocks);
        num_pieces += count - num_blocks;
    }
    let mut found = vec![0; STATE];
    let (first, second) = found.split_at_mut(1700);
    load.fill_state(&mut [first, second]);
    (num_pieces == PIECES).then_some((blocks, found))
}

#[test]
fn a_state_comes_back_behind_its_blocks() {
    let folder = folder();
    let stats = write_state(with_states(folder.path()));
    assert_eq!(stats.written, 3 + PIECES as u64);
    let store = Store::open(with_states(folder.path())).expect("a store");
    assert!(store.contains_state(&name(9)));
    assert!(!store.contains_state(&name(8)));
    let expected = ((0..3).map(block).collect(), state());
    assert_eq!(blocks_and_state(&store), Some(expected));
    assert_eq!(store.stats().corrupt, 0);
}

#[test]
fn a_state_with_a_damaged_or_a_lost_piece_is_a_miss() {
    let folder = folder();
    write_state(with_states(folder.path()));
    let path = &segments(folder.path())[0];
    let bytes = fs::read(path).expect("a segment");
    for piece in 3..3 + PIECES as u64 {
        let mut damaged = bytes.clone();
        damaged[(64 + piece * RECORD) as usize + 70] ^= 1;
        fs::write(path, damaged).expect("a segment");
        let store = Store::open(with_states(folder.path())).expect("a store");
        assert!(store.contains_state(&name(9)), "only a read finds out");
        assert_eq!(blocks_and_state(&store), None);
        assert_eq!(store.stats().corrupt, 1);
        assert!(!store.contains_state(&name(9)));
    }
    let cut = bytes.len() - 1;
    fs::write(path, &bytes[..cut]).expect("a segment");
    let mut store = Store::open(with_states(folder.path())).expect("a store");
    assert!(!store.contains_state(&name(9)));
    let state = state();
    store.offer_state(&name(9), false, &[&state]);
    assert!(store.close(LONG));
    assert_eq!(store.stats().written, 1, "the lost piece alone");
    assert!(store.contains_state(&name(9)));
}

#[test]
fn a_state_is_written_at_its_second_use_and_whole_or_not_at_all() {
    let folder = folder();
    let mut store = Store::open(Options {
        admits_first: false,
        ..with_states(folder.path())
    })
    .expect("a store");
    let state = state();
    store.offer_state(&name(1), false, &[&state]);
    assert_eq!(store.stats().dropped, 0);
    store.offer_state(&name(1), false, &[&state]);
    store.offer_state(&name(2), true, &[&state]);
    assert!(store.close(LONG));
    assert_eq!(store.stats().written, 2 * PIECES as u64);
    let folder = self::folder();
    // More pieces than the queue holds.
    let state_bytes = 4097 * BLOCK;
    let mut store = Store::open(Options {
        state_bytes,
        max_bytes: 1 << 30,
        ..options(folder.path())
    })
    .expect("a store");
    store.offer_state(&name(1), true, &[&vec![1; state_bytes]]);
    assert!(store.close(LONG));
    let stats = store.stats();
    assert_eq!((stats.written, stats.dropped), (0, 4097));
}
