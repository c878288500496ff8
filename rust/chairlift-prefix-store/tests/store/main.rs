//! What is read is what was written, or a miss, whatever happens to the files.

use std::{
    fs::{self, OpenOptions},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    time::Duration,
};

use chairlift_prefix_store::{Load, Name, Options, Progress, Stats, Store, StoreError};
use tempfile::{TempDir, tempdir};

mod states;

const BLOCK: usize = 1000;
const RECORD: u64 = 64 + BLOCK as u64;
const LONG: Duration = Duration::from_secs(60);

fn options(folder: &Path) -> Options {
    Options {
        folder: folder.into(),
        max_bytes: 1 << 20,
        block_bytes: BLOCK,
        state_bytes: 0,
        layout: [1; 32],
        key: [2; 32],
        admits_first: true,
    }
}

fn folder() -> TempDir {
    tempdir().expect("a folder")
}

fn open(folder: &Path) -> Store {
    Store::open(options(folder)).expect("a store")
}

fn name(number: u8) -> Name {
    [number; 32]
}

fn block(number: u8) -> Vec<u8> {
    (0..BLOCK).map(|place| number ^ place as u8).collect()
}

fn offer(store: &mut Store, number: u8) {
    store.offer(name(number), false, |out| out.extend(block(number)));
}

/// Writes blocks and closes the store.
fn write(options: Options, numbers: impl IntoIterator<Item = u8>) -> Stats {
    let mut store = Store::open(options).expect("a store");
    for number in numbers {
        offer(&mut store, number);
    }
    assert!(store.close(LONG));
    store.stats()
}

fn drain(load: &mut Load) -> Vec<Vec<u8>> {
    let mut blocks = Vec::new();
    loop {
        match load.poll(LONG) {
            Progress::Ready(count) => blocks.extend(load.take(count).map(|block| block.to_vec())),
            Progress::Done => return blocks,
            Progress::Pending => panic!("nothing came in a minute"),
        }
    }
}

/// The blocks that a load of these gives.
fn load(store: &Store, numbers: impl IntoIterator<Item = u8>) -> Vec<Vec<u8>> {
    let names: Vec<_> = numbers.into_iter().map(name).collect();
    let load = store.begin_load(&names, None, None);
    load.map_or_else(Vec::new, |mut load| drain(&mut load))
}

fn segments(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("a folder");
    let mut paths: Vec<_> = entries
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|end| end == "segment"))
        .collect();
    paths.sort();
    paths
}

#[test]
fn what_was_written_is_loaded_by_the_next_process_in_order_up_to_the_first_unknown_block() {
    let folder = folder();
    let stats = write(options(folder.path()), 0..100);
    assert_eq!((stats.written, stats.num_blocks), (100, 100));
    let store = open(folder.path());
    assert_eq!(store.stats().num_blocks, 100);
    assert_eq!(
        load(&store, 10..90),
        (10..90).map(block).collect::<Vec<_>>(),
        "more than are ready at a time"
    );
    assert_eq!(load(&store, [1, 2, 200, 3]), [block(1), block(2)]);
    assert!(load(&store, [200, 1]).is_empty());
}

#[test]
fn a_segment_that_was_removed_by_hand_costs_no_write() {
    let folder = folder();
    let max_bytes = 12 * RECORD;
    let mut store = Store::open(Options {
        max_bytes,
        ..options(folder.path())
    })
    .expect("a store");
    for number in 0..100 {
        offer(&mut store, number);
        // Until it is written, so that files are there to be removed.
        while store.stats().written + store.stats().failed <= u64::from(number) {
            std::thread::yield_now();
        }
        if number == 20 {
            for path in segments(folder.path()) {
                fs::remove_file(path).expect("a segment");
            }
        }
    }
    assert!(store.close(LONG));
    assert_eq!((store.stats().written, store.stats().failed), (100, 0));
    assert!(store.stats().num_bytes <= max_bytes);
}

#[test]
fn a_block_is_written_once() {
    let folder = folder();
    write(options(folder.path()), [1, 2, 1]);
    let stats = write(options(folder.path()), [2, 3]);
    assert_eq!((stats.written, stats.num_blocks), (1, 3));
}

#[test]
fn without_first_admission_a_block_is_written_at_its_second_use() {
    let folder = folder();
    let mut store = Store::open(Options {
        admits_first: false,
        ..options(folder.path())
    })
    .expect("a store");
    offer(&mut store, 1);
    offer(&mut store, 2);
    offer(&mut store, 2);
    store.offer(name(3), true, |out| out.extend(block(3)));
    assert!(store.close(LONG));
    assert_eq!(store.stats().written, 2);
    assert_eq!(store.num_known(&[name(2), name(3), name(1)]), 2);
}

#[test]
fn a_changed_byte_is_a_miss_wherever_it_is() {
    for place in [64, 64 + 31, 64 + 32, 64 + 63, 64 + 64, 64 + RECORD - 1] {
        let folder = folder();
        write(options(folder.path()), 0..3);
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        let file = options.open(&segments(folder.path())[0]).expect("a file");
        let mut byte = [0];
        file.read_exact_at(&mut byte, place).expect("a byte");
        file.write_all_at(&[byte[0] ^ 1], place).expect("a byte");
        let store = open(folder.path());
        assert!(load(&store, 0..3).is_empty(), "byte {place}");
        assert_eq!(load(&store, 1..3), [block(1), block(2)]);
        let is_renamed = place < 64 + 32;
        assert_eq!(store.stats().corrupt, u64::from(!is_renamed));
        assert!(load(&store, 0..3).is_empty(), "it is forgotten");
        assert_eq!(store.stats().corrupt, u64::from(!is_renamed));
    }
}

#[test]
fn a_record_that_is_cut_short_at_any_byte_is_a_miss_and_the_others_are_not() {
    let folder = folder();
    write(options(folder.path()), 0..3);
    let path = &segments(folder.path())[0];
    let file = OpenOptions::new().write(true).open(path).expect("a file");
    for len in (0..64 + 3 * RECORD).rev().step_by(97) {
        file.set_len(len).expect("a shorter file");
        let store = open(folder.path());
        let num_complete = len.saturating_sub(64) / RECORD;
        assert_eq!(load(&store, 0..3).len() as u64, num_complete, "{len} bytes");
    }
}

#[test]
fn a_file_that_shrinks_under_the_reader_is_a_miss() {
    let folder = folder();
    write(options(folder.path()), 0..3);
    let store = open(folder.path());
    let file = OpenOptions::new()
        .write(true)
        .open(&segments(folder.path())[0]);
    file.expect("a file")
        .set_len(64 + RECORD + 100)
        .expect("a shorter file");
    assert_eq!(load(&store, 0..3), [block(0)]);
    assert_eq!(store.stats().corrupt, 1);
}

#[test]
fn blocks_of_another_layout_key_or_size_are_misses_and_go_first() {
    let folder = folder();
    let few = Options {
        max_bytes: 8 * RECORD,
        ..options(folder.path())
    };
    write(few.clone(), 0..2);
    for other in [
        Options {
            layout: [9; 32],
            ..few.clone()
        },
        Options {
            block_bytes: BLOCK - 8,
            ..few.clone()
        },
    ] {
        let store = Store::open(other).expect("a store");
        assert!(load(&store, 0..2).is_empty());
        assert!(store.stats().num_foreign > 0);
    }
    let store = Store::open(Options {
        key: [9; 32],
        ..few.clone()
    })
    .expect("a store");
    assert!(load(&store, 0..2).is_empty(), "of another key");
    assert_eq!(store.stats().corrupt, 1);
    drop(store);
    let other = Options {
        layout: [9; 32],
        ..few
    };
    let stats = write(other.clone(), 10..17);
    assert_eq!(stats.num_foreign, 0);
    let store = Store::open(other).expect("a store");
    assert_eq!(load(&store, 13..17).len(), 4);
}

#[test]
fn bytes_stay_below_the_bound_and_the_segment_used_longest_ago_goes_first() {
    let folder = folder();
    let few = Options {
        max_bytes: 4 * (64 + RECORD),
        ..options(folder.path())
    };
    let mut store = Store::open(few.clone()).expect("a store");
    for number in 0..4 {
        offer(&mut store, number);
    }
    assert!(store.close(LONG));
    drop(store);
    let mut store = Store::open(few.clone()).expect("a store");
    assert_eq!(load(&store, [0]).len(), 1, "a use");
    offer(&mut store, 4);
    assert!(store.close(LONG));
    let on_disk: u64 = segments(folder.path())
        .iter()
        .map(|path| fs::metadata(path).expect("a file").len())
        .sum();
    assert_eq!(store.stats().num_bytes, on_disk);
    assert!(on_disk <= few.max_bytes);
    assert_eq!(store.num_known(&[name(0), name(4)]), 2);
    assert_eq!(store.num_known(&[name(1)]), 0, "used longest ago");
}

#[test]
fn a_second_store_of_a_folder_is_refused_until_the_first_ends() {
    let folder = folder();
    let first = open(folder.path());
    let error = Store::open(options(folder.path())).expect_err("it is locked");
    assert!(matches!(error, StoreError::Locked(_)));
    assert!(error.to_string().ends_with("is used by another server"));
    drop(first);
    open(folder.path());
}

#[test]
fn writes_that_fail_are_counted_and_blocks_before_them_stay() {
    let folder = folder();
    let mut store = Store::open(Options {
        max_bytes: 4 * (64 + RECORD),
        ..options(folder.path())
    })
    .expect("a store");
    offer(&mut store, 0);
    while store.stats().written == 0 {
        std::thread::yield_now();
    }
    // The next segment cannot be made: its name is a folder.
    fs::create_dir(folder.path().join("0000000000000001.segment")).expect("a folder");
    offer(&mut store, 1);
    assert!(store.close(LONG));
    let stats = store.stats();
    assert_eq!((stats.written, stats.failed), (1, 1));
    drop(store);
    assert_eq!(load(&open(folder.path()), [0]), [block(0)]);
}

#[test]
fn a_full_queue_drops_blocks_and_counts_them() {
    let folder = folder();
    let size = 1 << 20;
    let mut store = Store::open(Options {
        block_bytes: size,
        max_bytes: 1 << 28,
        ..options(folder.path())
    })
    .expect("a store");
    // A block is made faster than it is written, unless threads wait for a core: as many as it takes.
    let mut num_offered = 0_u64;
    while store.stats().dropped == 0 {
        num_offered += 1;
        assert!(num_offered < 100_000, "the queue has a bound");
        let mut name = name(0);
        name[..8].copy_from_slice(&num_offered.to_le_bytes());
        store.offer(name, false, |out| out.resize(out.len() + size, 1));
    }
    assert!(store.close(LONG));
    let stats = store.stats();
    assert_eq!(stats.written + stats.dropped + stats.failed, num_offered);
}

#[test]
fn a_load_that_saves_no_time_is_declined_and_one_that_is_dropped_ends() {
    let folder = folder();
    write(options(folder.path()), 0..200);
    let mut store = open(folder.path());
    let names: Vec<_> = (0..200).map(name).collect();
    assert!(
        store
            .begin_load(&names, None, Some(Duration::ZERO))
            .is_none()
    );
    assert_eq!(store.stats().declined, 1);
    let load = store.begin_load(&names, None, Some(LONG)).expect("a load");
    assert_eq!(load.num_blocks(), 200);
    drop(load);
    assert!(
        store.close(LONG),
        "the reader does not wait for what nothing takes"
    );
}

#[test]
fn a_store_of_too_few_bytes_or_in_a_place_that_is_no_folder_is_refused() {
    let folder = folder();
    let error = Store::open(Options {
        max_bytes: 1000,
        ..options(folder.path())
    });
    let error = error.expect_err("too few").to_string();
    assert_eq!(
        error,
        format!("expected at least {} bytes, got 1000", 4 * (64 + RECORD))
    );
    let path = folder.path().join("file");
    fs::write(&path, "").expect("a file");
    let error = Store::open(options(&path)).expect_err("a file");
    assert!(matches!(error, StoreError::Io { .. }));
}
