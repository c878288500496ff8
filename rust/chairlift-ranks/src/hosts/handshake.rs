//! How two ends of a connection prove that they have the same key, without sending it.
//!
//! ```text
//!   accepts                                   connects
//!   greeting, random a              ->
//!                                   <-        random b, rank, port, MAC(key, all of it)
//!   answer, MAC(key, answer, all)   ->
//! ```
//!
//! A MAC is over both random numbers, so that it is of no use on another connection.

use rustix::rand::{GetRandomFlags, getrandom};
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// Says the protocol and its version.
const GREETING: [u8; 16] = *b"chairlift ranks1";

const RANDOM_BYTES: usize = 16;
const CLAIM_BYTES: usize = RANDOM_BYTES + 4 + 2;
const MAC_BYTES: usize = blake3::OUT_LEN;

/// Names a group, so that no MAC is of use in another one.
pub(super) type GroupId = [u8; RANDOM_BYTES];

/// What all ranks of a group know.
#[derive(Clone)]
pub struct Key([u8; blake3::KEY_LEN]);

impl Key {
    /// The key that a secret gives, of any length.
    pub fn new(secret: &[u8]) -> Self {
        Self(blake3::derive_key("chairlift ranks of a model", secret))
    }

    fn mac(&self, parts: &[&[u8]]) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        for part in parts {
            hasher.update(part);
        }
        hasher.finalize()
    }
}

impl std::fmt::Debug for Key {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Key")
    }
}

/// What the end that connects says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Claim {
    pub(super) rank: u32,
    /// Where it listens for other ranks.
    pub(super) port: u16,
}

/// Random bytes.
pub(super) fn random() -> io::Result<[u8; RANDOM_BYTES]> {
    let mut bytes = [0; RANDOM_BYTES];
    let len = getrandom(&mut bytes, GetRandomFlags::empty())?;
    if len == bytes.len() {
        Ok(bytes)
    } else {
        Err(io::Error::other("too few random bytes"))
    }
}

/// Answers the end that connects; None where it has another key, or a claim that `accepts` refuses.
pub(super) fn accept(
    stream: &TcpStream,
    key: &Key,
    group: GroupId,
    deadline: Instant,
    accepts: impl FnOnce(Claim) -> bool,
) -> io::Result<Option<Claim>> {
    let ours = random()?;
    let mut greeting = [0; GREETING.len() + RANDOM_BYTES];
    greeting[..GREETING.len()].copy_from_slice(&GREETING);
    greeting[GREETING.len()..].copy_from_slice(&ours);
    write_all(stream, &greeting, deadline)?;
    let mut answer = [0; CLAIM_BYTES + MAC_BYTES];
    read_exact(stream, &mut answer, deadline)?;
    let (said, mac) = answer.split_at(CLAIM_BYTES);
    // The comparison takes the same time whatever differs.
    if key.mac(&[b"connects", &group, &ours, said]) != *mac {
        return Ok(None);
    }
    let claim = Claim {
        rank: u32::from_le_bytes([said[16], said[17], said[18], said[19]]),
        port: u16::from_le_bytes([said[20], said[21]]),
    };
    let is_accepted = accepts(claim);
    let status = [u8::from(is_accepted)];
    let mac = key.mac(&[b"accepts", &status, &group, &ours, said]);
    write_all(stream, &[&status[..], mac.as_bytes()].concat(), deadline)?;
    Ok(is_accepted.then_some(claim))
}

/// What the end that accepts thinks of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Accepted,
    /// It has the key, and refuses the claim.
    Refused,
    /// It closed the connection when it saw the MAC, or has another key itself.
    OtherKey,
}

/// Proves to the end that accepts which rank connects.
pub(super) fn connect(
    stream: &TcpStream,
    key: &Key,
    group: GroupId,
    claim: Claim,
    deadline: Instant,
) -> io::Result<Answer> {
    let mut greeting = [0; GREETING.len() + RANDOM_BYTES];
    read_exact(stream, &mut greeting, deadline)?;
    let (name, theirs) = greeting.split_at(GREETING.len());
    if name != GREETING {
        let message = "something else than ranks of this version listens there";
        return Err(io::Error::new(ErrorKind::InvalidData, message));
    }
    let mut said = [0; CLAIM_BYTES];
    said[..RANDOM_BYTES].copy_from_slice(&random()?);
    said[16..20].copy_from_slice(&claim.rank.to_le_bytes());
    said[20..22].copy_from_slice(&claim.port.to_le_bytes());
    let mac = key.mac(&[b"connects", &group, theirs, &said]);
    write_all(stream, &[&said[..], mac.as_bytes()].concat(), deadline)?;
    let mut answer = [0; 1 + MAC_BYTES];
    match read_exact(stream, &mut answer, deadline) {
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(Answer::OtherKey),
        other => other?,
    }
    let (status, mac) = answer.split_at(1);
    if key.mac(&[b"accepts", status, &group, theirs, &said]) != *mac {
        return Ok(Answer::OtherKey);
    }
    Ok(if status == [1] {
        Answer::Accepted
    } else {
        Answer::Refused
    })
}

fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(ErrorKind::TimedOut.into());
    }
    Ok(left)
}

/// Reads so many bytes, however slowly they come, until a deadline.
pub(super) fn read_exact(
    mut stream: &TcpStream,
    mut bytes: &mut [u8],
    deadline: Instant,
) -> io::Result<()> {
    while !bytes.is_empty() {
        stream.set_read_timeout(Some(left(deadline)?))?;
        match stream.read(bytes) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(len) => bytes = &mut bytes[len..],
            Err(error) if is_no_end(&error) => (),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn write_all(mut stream: &TcpStream, mut bytes: &[u8], deadline: Instant) -> io::Result<()> {
    while !bytes.is_empty() {
        stream.set_write_timeout(Some(left(deadline)?))?;
        match stream.write(bytes) {
            Ok(len) => bytes = &bytes[len..],
            Err(error) if is_no_end(&error) => (),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn is_no_end(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::thread;

    const CLAIM: Claim = Claim { rank: 3, port: 999 };

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(10)
    }

    /// What both ends say, where each has its key and its group.
    fn shaken(keys: [&str; 2], groups: [GroupId; 2], accepts: bool) -> (Option<Claim>, Answer) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let [first, second] = keys.map(|key| Key::new(key.as_bytes()));
        thread::scope(|scope| {
            let accepted = scope.spawn(|| {
                let (stream, _) = listener.accept().expect("a connection");
                accept(&stream, &first, groups[0], soon(), |_| accepts).expect("no error")
            });
            let stream = TcpStream::connect(address).expect("a connection");
            let answer = connect(&stream, &second, groups[1], CLAIM, soon()).expect("no error");
            (accepted.join().expect("no panic"), answer)
        })
    }

    #[test]
    fn ends_with_one_key_accept_each_other() {
        let group = [7; RANDOM_BYTES];
        let found = shaken(["secret", "secret"], [group, group], true);
        assert_eq!(found, (Some(CLAIM), Answer::Accepted));
    }

    #[test]
    fn a_claim_that_is_refused_is_told_so() {
        let group = [7; RANDOM_BYTES];
        let found = shaken(["secret", "secret"], [group, group], false);
        assert_eq!(found, (None, Answer::Refused));
    }

    #[test]
    fn ends_with_two_keys_or_two_groups_do_not_accept() {
        let (group, other) = ([7; RANDOM_BYTES], [8; RANDOM_BYTES]);
        let found = shaken(["secret", "other"], [group, group], true);
        assert_eq!(found, (None, Answer::OtherKey));
        let found = shaken(["secret", "secret"], [group, other], true);
        assert_eq!(found, (None, Answer::OtherKey));
    }

    #[test]
    fn a_client_that_says_half_of_it_meets_the_deadline() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let mut stream =
            TcpStream::connect(listener.local_addr().expect("an address")).expect("a connection");
        let (accepted, _) = listener.accept().expect("a connection");
        stream.write_all(&[0; CLAIM_BYTES]).expect("a connection");
        let deadline = Instant::now() + Duration::from_millis(20);
        let key = Key::new(b"secret");
        let found = accept(&accepted, &key, [0; 16], deadline, |_| true);
        assert_eq!(found.expect_err("an end").kind(), ErrorKind::TimedOut);
    }
}
