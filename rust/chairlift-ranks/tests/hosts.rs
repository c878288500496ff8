//! Ranks that meet over connections: what goes over them, and how a group ends.

use chairlift_ranks::{Broken, Cause, Key, Limits, Listener, MeetError, Mesh, join};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread::{self, Scope};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);
const LIMITS: Limits = Limits {
    spin: Duration::ZERO,
    timeout: Some(PATIENCE),
};
const HASTE: Limits = Limits {
    spin: Duration::from_micros(50),
    timeout: Some(Duration::from_millis(20)),
};

fn key() -> Key {
    Key::new(b"secret")
}

fn listener() -> (Listener, String) {
    let listener = Listener::bind("127.0.0.1:0", key()).expect("a port");
    let address = listener.address().expect("an address").to_string();
    (listener, address)
}

/// The connections of all ranks.
fn group(num_ranks: usize) -> Vec<Mesh> {
    let (listener, address) = listener();
    thread::scope(|scope| {
        let others: Vec<_> = (1..num_ranks)
            .map(|rank| {
                let address = &address;
                scope.spawn(move || join(address, &key(), rank, PATIENCE).expect("a group"))
            })
            .collect();
        let lead = listener.meet(num_ranks, PATIENCE).expect("a group");
        let others = others
            .into_iter()
            .map(|other| other.join().expect("no panic"));
        [lead].into_iter().chain(others).collect()
    })
}

/// Runs the ranks beside each other, and gives what each returns.
fn each<R: Send>(meshes: &[Mesh], run: impl Fn(&Mesh) -> R + Sync) -> Vec<R> {
    thread::scope(|scope| {
        let run = &run;
        let threads: Vec<_> = meshes
            .iter()
            .map(|mesh| scope.spawn(move || run(mesh)))
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("no panic"))
            .collect()
    })
}

fn gather(mesh: &Mesh, lens: &[usize], limits: Limits) -> Result<Vec<Vec<u8>>, Broken> {
    let mut parts = vec![Vec::new(); lens.len()];
    let own = vec![mesh.rank() as u8; lens[mesh.rank()]];
    mesh.gather(
        lens,
        limits,
        |sent| sent.copy_from_slice(&own),
        |rank, part| parts[rank] = part.to_vec(),
    )?;
    Ok(parts)
}

#[test]
fn parts_of_every_length_come_from_all_ranks() {
    let meshes = group(3);
    // The last ones are far above what connections hold.
    for lens in [[1, 2, 3], [0, 0, 7], [9 << 20, 5 << 20, 12 << 20]] {
        let expected: Vec<_> = (0..3).map(|rank| vec![rank as u8; lens[rank]]).collect();
        for parts in each(&meshes, |mesh| gather(mesh, &lens, LIMITS)) {
            assert!(parts.expect("the group goes on") == expected);
        }
    }
}

#[test]
fn messages_come_in_order_between_the_parts() {
    let meshes = group(3);
    let received = each(&meshes, |mesh| {
        let mut messages = Vec::new();
        for number in 0..50_u8 {
            let message = vec![number; usize::from(number)];
            if mesh.rank() == 0 {
                mesh.send(&message, LIMITS)?;
                messages.push(message);
            } else {
                messages.push(mesh.receive(50, LIMITS, <[u8]>::to_vec)?);
            }
            gather(mesh, &[4, 5, 6], LIMITS)?;
        }
        Ok::<_, Broken>(messages)
    });
    assert!(received.iter().all(|messages| messages == &received[0]));
}

#[test]
fn texts_go_both_ways() {
    let meshes = group(2);
    meshes[1].tell(0, b"ready", PATIENCE).expect("a group");
    assert_eq!(meshes[0].hear(1, PATIENCE), Ok(b"ready".to_vec()));
    meshes[0].tell(1, b"settings", PATIENCE).expect("a group");
    assert_eq!(meshes[1].hear(0, PATIENCE), Ok(b"settings".to_vec()));
}

#[test]
fn a_cause_is_the_same_on_every_rank() {
    let meshes = group(3);
    let broken = Broken {
        cause: Cause::Failed,
        rank: 2,
    };
    meshes[2].poison(Cause::Failed, 2);
    let found = each(&meshes, |mesh| gather(mesh, &[1, 1, 1], LIMITS));
    assert_eq!(found, [Err(broken), Err(broken), Err(broken)]);
    // The first cause stays.
    meshes[0].poison(Cause::Closed, 0);
    assert_eq!(meshes[0].broken(), Some(broken));
}

#[test]
fn a_group_that_is_closed_says_so_to_those_that_wait() {
    let meshes = group(2);
    let found = each(&meshes, |mesh| {
        if mesh.rank() == 0 {
            mesh.poison(Cause::Closed, 0);
            return None;
        }
        let limits = Limits {
            timeout: None,
            ..LIMITS
        };
        mesh.receive(9, limits, |_| ()).err()
    });
    assert_eq!(found[1].map(|broken| broken.cause), Some(Cause::Closed));
}

#[test]
fn a_rank_that_sends_nothing_is_late_for_all() {
    let meshes = group(3);
    let found = each(&meshes, |mesh| match mesh.rank() {
        1 => None,
        0 => gather(mesh, &[1, 1, 1], HASTE).err(),
        _ => gather(mesh, &[1, 1, 1], LIMITS).err(),
    });
    let late = Broken {
        cause: Cause::Late,
        rank: 1,
    };
    assert_eq!(found, [Some(late), None, Some(late)]);
    // All parts of the round are there for the late one; the next round finds the end.
    let later = [(), ()].map(|()| gather(&meshes[1], &[1, 1, 1], LIMITS));
    assert_eq!(later[1], Err(late));
}

#[test]
fn a_rank_that_reads_nothing_is_late_amid_a_part() {
    let meshes = group(2);
    let found = gather(&meshes[0], &[64 << 20, 0], HASTE);
    let late = Broken {
        cause: Cause::Late,
        rank: 1,
    };
    assert_eq!(found, Err(late));
    // A frame was half written: the other end sees the end of the connection alone.
    let found = gather(&meshes[1], &[64 << 20, 0], LIMITS);
    let lost = Broken {
        cause: Cause::Lost,
        rank: 0,
    };
    assert_eq!(found, Err(lost));
}

#[test]
fn a_lost_rank_is_found_without_a_step() {
    let mut meshes = group(3);
    assert_eq!(meshes[0].broken(), None);
    drop(meshes.pop());
    let lost = Broken {
        cause: Cause::Lost,
        rank: 2,
    };
    let deadline = Instant::now() + PATIENCE;
    while meshes[0].broken().is_none() && Instant::now() < deadline {
        thread::yield_now();
    }
    assert_eq!(meshes[0].broken(), Some(lost));
    // The others learn it from rank 0, or see it themselves.
    assert_eq!(gather(&meshes[1], &[1, 1, 1], LIMITS), Err(lost));
}

#[test]
fn ranks_that_expect_other_parts_do_not_go_on() {
    let meshes = group(2);
    let found = each(&meshes, |mesh| {
        let len = 4 + mesh.rank();
        gather(mesh, &[len, len], LIMITS).map_err(|broken| broken.cause)
    });
    assert_eq!(found, [Err(Cause::Disagreed), Err(Cause::Disagreed)]);
}

#[test]
fn a_message_in_the_place_of_a_part_is_no_part() {
    let meshes = group(2);
    let found = each(&meshes, |mesh| match mesh.rank() {
        0 => mesh.send(&[1, 2, 3], LIMITS).err(),
        _ => gather(mesh, &[3, 3], LIMITS).err(),
    });
    assert_eq!(found[1].map(|broken| broken.cause), Some(Cause::Disagreed));
}

#[test]
fn a_message_that_has_no_room_is_refused() {
    let meshes = group(2);
    let found = each(&meshes, |mesh| match mesh.rank() {
        0 => mesh.send(&[0; 9], LIMITS).err(),
        _ => mesh.receive(8, LIMITS, |_| ()).err(),
    });
    assert_eq!(found[1].map(|broken| broken.cause), Some(Cause::Disagreed));
}

/// Starts a meeting of two ranks, and gives what it comes to after `disturb`.
fn disturbed(disturb: impl FnOnce(&str)) -> Result<Mesh, MeetError> {
    let (listener, address) = listener();
    thread::scope(|scope: &Scope<'_, '_>| {
        let lead = scope.spawn(|| listener.meet(2, PATIENCE));
        disturb(&address);
        let joined = join(&address, &key(), 1, PATIENCE).expect("a group");
        let lead = lead.join().expect("no panic")?;
        joined.tell(0, b"here", PATIENCE).expect("a group");
        assert_eq!(lead.hear(1, PATIENCE), Ok(b"here".to_vec()));
        Ok(lead)
    })
}

#[test]
fn another_key_is_refused_and_the_meeting_goes_on() {
    let found = disturbed(|address| {
        let error = join(address, &Key::new(b"other"), 1, PATIENCE).expect_err("another key");
        assert!(matches!(error, MeetError::Key), "{error}");
    });
    assert!(found.is_ok());
}

#[test]
fn a_rank_that_there_is_not_is_refused_and_the_meeting_goes_on() {
    let found = disturbed(|address| {
        for rank in [0, 2, usize::MAX] {
            let error = join(address, &key(), rank, PATIENCE).expect_err("no such rank");
            assert!(matches!(error, MeetError::Rank(_)), "{error}");
        }
    });
    assert!(found.is_ok());
}

#[test]
fn connections_of_others_are_closed_and_the_meeting_goes_on() {
    let mut held = Vec::new();
    let found = disturbed(|address| {
        // Some say nothing for as long as they may.
        held.extend((0..20).map(|_| TcpStream::connect(address).expect("a connection")));
        let mut stream = TcpStream::connect(address).expect("a connection");
        stream
            .write_all(b"GET / HTTP/1.1\r\n\r\n")
            .expect("a connection");
        stream.write_all(&[255; 4096]).expect("a connection");
        let mut answer = Vec::new();
        // A greeting, and no more; the connection may end with a reset.
        let _ = stream.read_to_end(&mut answer);
        assert!(answer.len() <= 32, "{answer:?}");
    });
    assert!(found.is_ok());
}

#[test]
fn a_rank_that_joins_again_takes_the_place_of_its_lost_connection() {
    let (listener, address) = listener();
    thread::scope(|scope| {
        let lead = scope.spawn(|| listener.meet(3, PATIENCE));
        let timeout = Duration::from_millis(20);
        // It gives up, since rank 2 is not there.
        let error = join(&address, &key(), 1, timeout).expect_err("no group");
        assert!(matches!(error, MeetError::Io(_)), "{error}");
        let address = &address;
        let others = [1, 2].map(|rank| scope.spawn(move || join(address, &key(), rank, PATIENCE)));
        assert!(lead.join().expect("no panic").is_ok());
        for other in others {
            assert!(other.join().expect("no panic").is_ok());
        }
    });
}

#[test]
fn a_rank_that_does_not_come_is_named() {
    let (listener, _) = listener();
    let error = listener
        .meet(2, Duration::from_millis(1))
        .expect_err("no group");
    assert_eq!(error.to_string(), "rank 1 did not join in time");
}
