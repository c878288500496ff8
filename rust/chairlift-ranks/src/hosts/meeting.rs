//! How ranks on several hosts find each other: rank 0 listens, the others join it and then one another.

use super::handshake::{self, Answer, Claim, GroupId, Key};
use super::mesh::{Mesh, watch};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};
use thiserror::Error;

/// Both ends have said what they are by then.
const HANDSHAKE: Duration = Duration::from_secs(5);

/// All ranks have the addresses of the others by then.
const CONNECTING: Duration = Duration::from_secs(30);

/// Connections whose end has not said yet what it is; more are closed at once.
const MAX_HANDSHAKES: usize = 32;

const SLICE: Duration = Duration::from_millis(100);

/// Bytes that the address of a rank takes.
const ADDRESS_BYTES: usize = 18;

/// Why ranks do not meet.
#[derive(Debug, Error)]
pub enum MeetError {
    /// A rank did not join in time.
    #[error("rank {0} did not join in time")]
    Late(usize),
    /// The other end refused.
    #[error("rank: expected 1 or more and fewer than rank 0 has ranks, got {0}")]
    Rank(usize),
    /// The other end has another key.
    #[error("rank_key: expected the key of the other ranks")]
    Key,
    /// The connection failed.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Where rank 0 waits for the others.
#[derive(Debug)]
pub struct Listener {
    listener: TcpListener,
    key: Key,
}

struct Joined {
    stream: TcpStream,
    /// Where the others reach it.
    address: SocketAddr,
}

impl Listener {
    /// Listens on an address, `HOST:PORT`.
    ///
    /// # Errors
    /// It cannot.
    pub fn bind(address: &str, key: Key) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        Ok(Self { listener, key })
    }

    /// The address that it listens on.
    ///
    /// # Errors
    /// The system does not say.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Waits until all other ranks have joined.
    ///
    /// # Errors
    /// One did not join in time, or a connection failed.
    pub fn meet(&self, num_ranks: usize, timeout: Duration) -> Result<Mesh, MeetError> {
        let deadline = Instant::now() + timeout;
        let (sender, receiver) = mpsc::channel();
        let mut joined = BTreeMap::new();
        let mut num_pending = 0_usize;
        loop {
            for result in receiver.try_iter() {
                num_pending -= 1;
                if let Some((rank, found)) = result {
                    // A rank that joins again has lost its connection.
                    joined.insert(rank, found);
                }
            }
            joined.retain(|_, found: &mut Joined| is_open(&found.stream));
            if joined.len() + 1 == num_ranks {
                break;
            }
            if Instant::now() >= deadline {
                let missing = (1..num_ranks).find(|rank| !joined.contains_key(rank));
                return Err(MeetError::Late(missing.unwrap_or(0)));
            }
            wait(&self.listener);
            let Ok((stream, peer)) = self.listener.accept() else {
                continue;
            };
            if num_pending == MAX_HANDSHAKES {
                continue;
            }
            num_pending += 1;
            let (sender, key) = (sender.clone(), self.key.clone());
            thread::spawn(move || {
                // Where the meeting has ended, the connection ends.
                let _ = sender.send(greet(stream, peer.ip(), &key, num_ranks));
            });
        }
        introduce(joined)
    }
}

/// Lets a rank join; None where it may not.
fn greet(stream: TcpStream, ip: IpAddr, key: &Key, num_ranks: usize) -> Option<(usize, Joined)> {
    let accepts = |claim: Claim| (1..num_ranks).contains(&(claim.rank as usize));
    let claim = shake(&stream, key, [0; 16], accepts).ok()??;
    let address = SocketAddr::new(ip, claim.port);
    Some((claim.rank as usize, Joined { stream, address }))
}

fn shake(
    stream: &TcpStream,
    key: &Key,
    group: GroupId,
    accepts: impl FnOnce(Claim) -> bool,
) -> io::Result<Option<Claim>> {
    stream.set_nonblocking(false)?;
    watch(stream)?;
    let deadline = Instant::now() + HANDSHAKE;
    handshake::accept(stream, key, group, deadline, accepts)
}

/// Tells all ranks where the others are.
fn introduce(joined: BTreeMap<usize, Joined>) -> Result<Mesh, MeetError> {
    let group = handshake::random()?;
    let mut text = group.to_vec();
    for found in joined.values() {
        text.extend(to_bytes(found.address));
    }
    let streams = joined.into_values().map(|found| Some(found.stream));
    let mesh = Mesh::new(0, [None].into_iter().chain(streams).collect())?;
    for rank in 1..mesh.num_ranks() {
        mesh.tell(rank, &text, HANDSHAKE)
            .map_err(io::Error::other)?;
    }
    Ok(mesh)
}

/// Joins rank 0, which listens on an address, and then the others.
///
/// # Errors
/// Rank 0 does not listen, has another key or refuses, or the others do not join in time.
pub fn join(leader: &str, key: &Key, rank: usize, timeout: Duration) -> Result<Mesh, MeetError> {
    let stream = connect(leader)?;
    let listener = TcpListener::bind((stream.local_addr()?.ip(), 0))?;
    listener.set_nonblocking(true)?;
    let claim = Claim {
        rank: rank as u32,
        port: listener.local_addr()?.port(),
    };
    prove(&stream, key, [0; 16], claim)?;
    // The connection alone, until the numbers of the others are known.
    let lead = Mesh::new(rank, vec![Some(stream.try_clone()?)])?;
    let text = lead.hear(0, timeout).map_err(io::Error::other)?;
    let (group, addresses) = text
        .split_first_chunk()
        .ok_or_else(|| io::Error::from(ErrorKind::InvalidData))?;
    let addresses: Vec<_> = addresses
        .chunks_exact(ADDRESS_BYTES)
        .map(of_bytes)
        .collect();
    let mut streams: Vec<_> = (0..=addresses.len()).map(|_| None).collect();
    streams[0] = Some(stream);
    let claim = Claim { port: 0, ..claim };
    for (other, address) in (1..rank).zip(&addresses) {
        let stream = connect(address)?;
        prove(&stream, key, *group, claim)?;
        streams[other] = Some(stream);
    }
    let deadline = Instant::now() + CONNECTING;
    while let Some(missing) = (rank + 1..streams.len()).find(|other| streams[*other].is_none()) {
        if Instant::now() >= deadline {
            return Err(MeetError::Late(missing));
        }
        wait(&listener);
        let Ok((stream, _)) = listener.accept() else {
            continue;
        };
        let accepts = |claim: Claim| (rank + 1..streams.len()).contains(&(claim.rank as usize));
        if let Ok(Some(claim)) = shake(&stream, key, *group, accepts) {
            streams[claim.rank as usize] = Some(stream);
        }
    }
    Ok(Mesh::new(rank, streams)?)
}

fn connect(address: impl ToSocketAddrs) -> io::Result<TcpStream> {
    let mut error = io::Error::from(ErrorKind::AddrNotAvailable);
    for address in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, HANDSHAKE) {
            Ok(stream) => {
                watch(&stream)?;
                return Ok(stream);
            }
            Err(found) => error = found,
        }
    }
    Err(error)
}

fn prove(stream: &TcpStream, key: &Key, group: GroupId, claim: Claim) -> Result<(), MeetError> {
    let deadline = Instant::now() + HANDSHAKE;
    match handshake::connect(stream, key, group, claim, deadline)? {
        Answer::Accepted => Ok(()),
        Answer::Refused => Err(MeetError::Rank(claim.rank as usize)),
        Answer::OtherKey => Err(MeetError::Key),
    }
}

/// Waits for a connection, not for long.
fn wait(listener: &TcpListener) {
    let mut waits = [PollFd::new(listener, PollFlags::IN)];
    let timeout = Timespec {
        tv_sec: 0,
        tv_nsec: i64::from(SLICE.subsec_nanos()),
    };
    let _ = poll(&mut waits, Some(&timeout));
}

fn is_open(stream: &TcpStream) -> bool {
    // Nothing comes before rank 0 has said something.
    stream.set_nonblocking(true).is_ok()
        && matches!(stream.peek(&mut [0]), Err(error) if error.kind() == ErrorKind::WouldBlock)
}

fn to_bytes(address: SocketAddr) -> [u8; ADDRESS_BYTES] {
    let ip = match address.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    let mut bytes = [0; ADDRESS_BYTES];
    bytes[..16].copy_from_slice(&ip.octets());
    bytes[16..].copy_from_slice(&address.port().to_le_bytes());
    bytes
}

fn of_bytes(bytes: &[u8]) -> SocketAddr {
    let mut ip = [0; 16];
    ip.copy_from_slice(&bytes[..16]);
    let port = u16::from_le_bytes([bytes[16], bytes[17]]);
    SocketAddr::new(IpAddr::from(ip).to_canonical(), port)
}
