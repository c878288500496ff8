//! The connections of one rank to each other rank, and what goes over them.
//!
//! An operation moves frames on several connections at a time, whichever is ready: nothing is written before all can be
//! read. Every frame is checked: its kind, its number, its length and a checksum. A rank that cannot go on tells the
//! others why where no frame is half written, and closes its connections.

use super::exchange::{Fault, Incoming, Task, sleep, told};
use super::frame::{Header, Kind};
use crate::{
    barrier::Limits,
    broken::{Broken, Cause},
};
use parking_lot::Mutex;
use rustix::net::sockopt;
use std::io::{self, ErrorKind, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// The longest sleep without a look at the clock.
const SLICE: Duration = Duration::from_millis(100);

/// A host that answers nothing for so long is lost, also amid no step.
const SILENCE: Duration = Duration::from_secs(20);

/// Bytes of the longest text.
const MAX_TEXT: usize = 1 << 20;

/// One rank's connections to the others.
#[derive(Debug)]
pub struct Mesh {
    rank: usize,
    /// By rank; None of this one.
    streams: Vec<Option<TcpStream>>,
    /// [`Broken::to_word`] of what ended the group; 0 before.
    cause: AtomicU32,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Messages and parts so far.
    number: u32,
    sent: Vec<u8>,
    /// By rank.
    received: Vec<Vec<u8>>,
}

impl Mesh {
    /// Takes connections by rank; there is none to `rank` itself.
    ///
    /// # Errors
    /// A connection has ended.
    pub(super) fn new(rank: usize, streams: Vec<Option<TcpStream>>) -> io::Result<Self> {
        for stream in streams.iter().flatten() {
            stream.set_nodelay(true)?;
            stream.set_nonblocking(true)?;
        }
        let state = State {
            received: vec![Vec::new(); streams.len()],
            ..State::default()
        };
        Ok(Self {
            rank,
            streams,
            cause: AtomicU32::new(0),
            state: Mutex::new(state),
        })
    }

    /// Ranks of the group.
    pub fn num_ranks(&self) -> usize {
        self.streams.len()
    }

    /// The number of this rank.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Sends a message to every other rank.
    ///
    /// # Errors
    /// The group has ended, perhaps by this rank: another one takes nothing.
    pub fn send(&self, message: &[u8], limits: Limits) -> Result<(), Broken> {
        let mut state = self.state.lock();
        state.number = state.number.wrapping_add(1);
        let header = Header::of(Kind::Message, state.number, message).to_bytes();
        let mut tasks: Vec<_> = self.tasks().collect();
        for task in &mut tasks {
            task.outgoing = Some((header, message));
        }
        self.run(&mut tasks, limits)
    }

    /// Waits for the next message of rank 0, of at most `max_len` bytes, and gives it to `take`.
    ///
    /// # Errors
    /// The group has ended.
    pub fn receive<R>(
        &self,
        max_len: usize,
        limits: Limits,
        take: impl FnOnce(&[u8]) -> R,
    ) -> Result<R, Broken> {
        let state = &mut *self.state.lock();
        state.number = state.number.wrapping_add(1);
        let (kind, number) = (Kind::Message, state.number);
        let body = &mut state.received[0];
        let incoming = Incoming::new(kind, number, max_len, false, body);
        let mut tasks = self.task_of(0)?;
        tasks[0].incoming = Some(incoming);
        self.run(&mut tasks, limits)?;
        drop(tasks);
        Ok(take(&state.received[0]))
    }

    /// Gives the part of this rank, which `fill` writes, to every other one, and the parts of all, whose bytes are
    /// `lens`, to `take`.
    ///
    /// # Errors
    /// The group has ended, perhaps by this rank: another one sends nothing, or something else.
    pub fn gather(
        &self,
        lens: &[usize],
        limits: Limits,
        fill: impl FnOnce(&mut [u8]),
        mut take: impl FnMut(usize, &[u8]),
    ) -> Result<(), Broken> {
        let state = &mut *self.state.lock();
        state.number = state.number.wrapping_add(1);
        state.sent.resize(lens[self.rank], 0);
        fill(&mut state.sent);
        let (kind, number) = (Kind::Part, state.number);
        let header = Header::of(kind, number, &state.sent).to_bytes();
        let mut bodies: Vec<_> = state.received.iter_mut().map(Some).collect();
        let mut tasks: Vec<_> = self.tasks().collect();
        for task in &mut tasks {
            task.outgoing = Some((header, &state.sent));
            let body = bodies[task.rank].take();
            task.incoming =
                body.map(|body| Incoming::new(kind, number, lens[task.rank], true, body));
        }
        self.run(&mut tasks, limits)?;
        drop(tasks);
        for (rank, part) in state.received.iter().enumerate() {
            let part = if rank == self.rank { &state.sent } else { part };
            take(rank, part);
        }
        Ok(())
    }

    /// Sends a text to one rank, before there are messages.
    ///
    /// # Errors
    /// The group has ended, or the rank takes nothing.
    pub fn tell(&self, rank: usize, text: &[u8], timeout: Duration) -> Result<(), Broken> {
        let _state = self.state.lock();
        let mut tasks = self.task_of(rank)?;
        let header = Header::of(Kind::Text, 0, text).to_bytes();
        tasks[0].outgoing = Some((header, text));
        self.run(&mut tasks, Limits::sleeping(timeout))
    }

    /// Waits for a text of one rank.
    ///
    /// # Errors
    /// The group has ended, or the rank says nothing.
    pub fn hear(&self, rank: usize, timeout: Duration) -> Result<Vec<u8>, Broken> {
        let _state = self.state.lock();
        let mut text = Vec::new();
        let mut tasks = self.task_of(rank)?;
        tasks[0].incoming = Some(Incoming::new(Kind::Text, 0, MAX_TEXT, false, &mut text));
        self.run(&mut tasks, Limits::sleeping(timeout))?;
        drop(tasks);
        Ok(text)
    }

    /// Ends the group: what waits, or comes to wait, returns an error, here and on the other ranks. The first cause stays.
    pub fn poison(&self, cause: Cause, rank: usize) {
        let broken = self.note(Broken { cause, rank });
        // An operation that is under way finds closed connections.
        let state = self.state.try_lock();
        for stream in self.streams.iter().flatten() {
            end(stream, state.is_some().then_some(broken));
        }
    }

    /// Why the group has ended; None where it has not, as far as this rank can see without waiting.
    pub fn broken(&self) -> Option<Broken> {
        if let Some(broken) = self.noted() {
            return Some(broken);
        }
        // An operation that is under way finds it itself.
        let _state = self.state.try_lock()?;
        let streams = self.streams.iter().enumerate();
        let mut streams = streams.filter_map(|(rank, stream)| Some((rank, stream.as_ref()?)));
        let broken = streams.find_map(|(rank, stream)| found_broken(rank, stream))?;
        let broken = self.note(broken);
        for stream in self.streams.iter().flatten() {
            end(stream, Some(broken));
        }
        Some(broken)
    }

    fn noted(&self) -> Option<Broken> {
        let word = self.cause.load(Ordering::SeqCst);
        (word != 0).then(|| Broken::from_word(word))
    }

    /// Keeps a cause, and gives the first one.
    fn note(&self, broken: Broken) -> Broken {
        let (order, word) = (Ordering::SeqCst, broken.to_word());
        match self.cause.compare_exchange(0, word, order, order) {
            Ok(_) => broken,
            Err(first) => Broken::from_word(first),
        }
    }

    fn tasks(&self) -> impl Iterator<Item = Task<'_>> {
        let streams = self.streams.iter().enumerate();
        streams.filter_map(|(rank, stream)| {
            Some(Task {
                rank,
                stream: stream.as_ref()?,
                outgoing: None,
                num_written: 0,
                is_closed: false,
                incoming: None,
            })
        })
    }

    fn task_of(&self, rank: usize) -> Result<Vec<Task<'_>>, Broken> {
        let tasks: Vec<_> = self.tasks().filter(|task| task.rank == rank).collect();
        let cause = Cause::Disagreed;
        if tasks.is_empty() {
            return Err(Broken { cause, rank });
        }
        Ok(tasks)
    }

    /// Moves the frames of some connections; time in which this process was stopped does not count.
    fn run(&self, tasks: &mut [Task<'_>], limits: Limits) -> Result<(), Broken> {
        if let Some(broken) = self.noted() {
            return Err(broken);
        }
        let (mut began, mut waited) = (Instant::now(), Duration::ZERO);
        loop {
            let mut has_moved = false;
            for place in 0..tasks.len() {
                match tasks[place].advance() {
                    Ok(moved) => has_moved |= moved,
                    Err(fault) => return Err(self.give_up(tasks, place, &fault)),
                }
            }
            if tasks.iter().all(Task::is_done) {
                return Ok(());
            }
            if has_moved {
                (began, waited) = (Instant::now(), Duration::ZERO);
                continue;
            }
            if began.elapsed() < limits.spin {
                std::hint::spin_loop();
                continue;
            }
            let left = limits
                .timeout
                .map_or(SLICE, |timeout| timeout.saturating_sub(waited));
            if left.is_zero() {
                let late = tasks.iter().position(|task| !task.is_done());
                let rank = late.map_or(self.rank, |place| tasks[place].rank);
                let broken = Broken {
                    cause: Cause::Late,
                    rank,
                };
                return Err(self.end_all(tasks, broken));
            }
            let slept = Instant::now();
            if let Some(place) = sleep(tasks, left.min(SLICE)) {
                let fault = told(tasks[place].stream).unwrap_or(Fault::Ended);
                return Err(self.give_up(tasks, place, &fault));
            }
            // A longer sleep was a stop of this process, which says nothing about the others.
            waited += slept.elapsed().min(SLICE);
        }
    }

    fn give_up(&self, tasks: &[Task<'_>], place: usize, fault: &Fault) -> Broken {
        let rank = tasks[place].rank;
        let broken = match fault {
            Fault::Ended => Broken {
                cause: Cause::Lost,
                rank,
            },
            Fault::Disagreed => Broken {
                cause: Cause::Disagreed,
                rank: self.rank,
            },
            Fault::Told(broken) => *broken,
        };
        self.end_all(tasks, broken)
    }

    /// Ends the group amid an operation.
    fn end_all(&self, tasks: &[Task<'_>], broken: Broken) -> Broken {
        let broken = self.note(broken);
        for (rank, stream) in self.streams.iter().enumerate() {
            let task = tasks.iter().find(|task| task.rank == rank);
            let is_between = task.is_none_or(Task::is_between_frames);
            if let Some(stream) = stream {
                end(stream, is_between.then_some(broken));
            }
        }
        broken
    }
}

impl Limits {
    /// Sleeps at once, at most so long without progress.
    fn sleeping(timeout: Duration) -> Self {
        Self {
            spin: Duration::ZERO,
            timeout: Some(timeout),
        }
    }
}

/// Tells the other end why, where no frame is half written, and closes the connection.
fn end(mut stream: &TcpStream, broken: Option<Broken>) {
    if let Some(broken) = broken {
        let body = broken.to_word().to_le_bytes();
        let header = Header::of(Kind::Broken, 0, &body).to_bytes();
        // Where it does not fit, the end of the connection says enough.
        let _ = stream.write(&[&header[..], &body].concat());
    }
    let _ = stream.shutdown(Shutdown::Both);
}

fn found_broken(rank: usize, stream: &TcpStream) -> Option<Broken> {
    if let Some(Fault::Told(broken)) = told(stream) {
        return Some(broken);
    }
    let has_ended = match stream.peek(&mut [0]) {
        Ok(len) => len == 0,
        Err(error) => error.kind() != ErrorKind::WouldBlock,
    };
    let cause = Cause::Lost;
    has_ended.then_some(Broken { cause, rank })
}

/// Has the kernel end a connection to a host that answers nothing.
pub(super) fn watch(stream: &TcpStream) -> io::Result<()> {
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, SILENCE / 2)?;
    sockopt::set_tcp_keepintvl(stream, SILENCE / 10)?;
    sockopt::set_tcp_keepcnt(stream, 5)?;
    sockopt::set_tcp_user_timeout(stream, SILENCE.as_millis() as u32)?;
    Ok(())
}
