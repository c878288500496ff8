//! Frames on their way over several connections at a time, whichever is ready.

use super::frame::{HEADER_BYTES, Header, Kind};
use crate::broken::Broken;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// A frame that comes over one connection.
#[derive(Debug)]
pub(super) struct Incoming<'a> {
    kind: Kind,
    number: u32,
    /// Bytes of the longest body, or of every body where `is_fixed`.
    len: usize,
    is_fixed: bool,
    header: [u8; HEADER_BYTES],
    num_read: usize,
    body: &'a mut Vec<u8>,
}

/// What an operation does on one connection.
#[derive(Debug)]
pub(super) struct Task<'a> {
    pub(super) rank: usize,
    pub(super) stream: &'a TcpStream,
    /// Header and body of the frame that goes.
    pub(super) outgoing: Option<([u8; HEADER_BYTES], &'a [u8])>,
    pub(super) num_written: usize,
    /// The other end reads nothing any more: what it has sent is read to its end.
    pub(super) is_closed: bool,
    pub(super) incoming: Option<Incoming<'a>>,
}

/// Why a connection is of no use any more.
pub(super) enum Fault {
    Ended,
    Disagreed,
    /// The other end told a cause.
    Told(Broken),
}

impl From<io::Error> for Fault {
    fn from(_: io::Error) -> Self {
        Self::Ended
    }
}

impl<'a> Incoming<'a> {
    pub(super) fn new(
        kind: Kind,
        number: u32,
        len: usize,
        is_fixed: bool,
        body: &'a mut Vec<u8>,
    ) -> Self {
        body.resize(if is_fixed { len } else { 0 }, 0);
        Self {
            kind,
            number,
            len,
            is_fixed,
            header: [0; HEADER_BYTES],
            num_read: 0,
            body,
        }
    }

    pub(super) fn is_done(&self) -> bool {
        self.num_read >= HEADER_BYTES && self.num_read == HEADER_BYTES + self.body.len()
    }

    /// Reads what there is; gives whether there was something.
    pub(super) fn advance(&mut self, mut stream: &TcpStream) -> Result<bool, Fault> {
        let len = if self.num_read < HEADER_BYTES {
            let (header, body) = (&mut self.header[self.num_read..], &mut self.body[..]);
            stream.read_vectored(&mut [IoSliceMut::new(header), IoSliceMut::new(body)])
        } else {
            stream.read(&mut self.body[self.num_read - HEADER_BYTES..])
        };
        let had_header = self.num_read >= HEADER_BYTES;
        match len {
            Ok(0) => return Err(Fault::Ended),
            Ok(len) => self.num_read += len,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
            Err(error) if error.kind() == ErrorKind::Interrupted => return Ok(true),
            Err(error) => return Err(error.into()),
        }
        if !had_header && self.num_read >= HEADER_BYTES {
            self.check_header()?;
        }
        if self.is_done() {
            self.check_body()?;
        }
        Ok(true)
    }

    fn check_header(&mut self) -> Result<(), Fault> {
        let header = Header::from_bytes(&self.header).ok_or(Fault::Disagreed)?;
        let len = header.len as usize;
        if header.kind == Kind::Broken && len == 4 {
            // The last frame of the connection: nothing behind it was read.
            self.body.resize(4, 0);
            return Ok(());
        }
        let is_long = if self.is_fixed {
            len != self.len
        } else {
            len > self.len
        };
        if (header.kind, header.number) != (self.kind, self.number) || is_long {
            return Err(Fault::Disagreed);
        }
        self.body.resize(len, 0);
        Ok(())
    }

    fn check_body(&self) -> Result<(), Fault> {
        let header = Header::from_bytes(&self.header).ok_or(Fault::Disagreed)?;
        if crc32fast::hash(self.body) != header.checksum {
            return Err(Fault::Disagreed);
        }
        match (header.kind, &self.body[..]) {
            (Kind::Broken, &[a, b, c, d]) => {
                let word = u32::from_le_bytes([a, b, c, d]);
                Err(Fault::Told(Broken::from_word(word)))
            }
            _ => Ok(()),
        }
    }
}

impl Task<'_> {
    fn is_written(&self) -> bool {
        self.outgoing
            .is_none_or(|(header, body)| self.num_written == header.len() + body.len())
    }

    fn wants_to_write(&self) -> bool {
        !self.is_closed && !self.is_written()
    }

    fn wants_to_read(&self) -> bool {
        self.incoming
            .as_ref()
            .is_some_and(|incoming| !incoming.is_done())
    }

    pub(super) fn is_done(&self) -> bool {
        self.is_written() && !self.wants_to_read()
    }

    pub(super) fn is_between_frames(&self) -> bool {
        self.num_written == 0 || self.is_written()
    }

    /// Moves what can be moved without waiting; gives whether there was something.
    pub(super) fn advance(&mut self) -> Result<bool, Fault> {
        let mut has_moved = false;
        if self.wants_to_write() {
            has_moved |= self.write();
        }
        if self.wants_to_read()
            && let Some(incoming) = &mut self.incoming
        {
            has_moved |= incoming.advance(self.stream)?;
        }
        if self.is_closed && !self.wants_to_read() {
            return Err(told(self.stream).unwrap_or(Fault::Ended));
        }
        Ok(has_moved)
    }

    fn write(&mut self) -> bool {
        let Some((header, body)) = &self.outgoing else {
            return false;
        };
        let header_left = &header[self.num_written.min(HEADER_BYTES)..];
        let body_left = &body[self.num_written.saturating_sub(HEADER_BYTES)..];
        let mut stream = self.stream;
        match stream.write_vectored(&[IoSlice::new(header_left), IoSlice::new(body_left)]) {
            Ok(len) => self.num_written += len,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return false,
            Err(error) if error.kind() == ErrorKind::Interrupted => (),
            Err(_) => self.is_closed = true,
        }
        true
    }
}

/// Sleeps until a connection is ready, or so long; gives one that has ended though its frames have been moved.
pub(super) fn sleep(tasks: &[Task<'_>], timeout: Duration) -> Option<usize> {
    let wait = |task: &Task<'_>| {
        // What is behind the frames of this operation is of the next one.
        let mut flags = PollFlags::RDHUP;
        flags.set(PollFlags::OUT, task.wants_to_write());
        flags.set(PollFlags::IN, task.wants_to_read());
        flags
    };
    let mut waits: Vec<_> = tasks
        .iter()
        .map(|task| PollFd::new(task.stream, wait(task)))
        .collect();
    let timeout = Timespec {
        tv_sec: timeout.as_secs() as i64,
        tv_nsec: i64::from(timeout.subsec_nanos()),
    };
    // An interrupted sleep is a short one.
    let _ = poll(&mut waits, Some(&timeout));
    let ends = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
    let mut found = tasks.iter().zip(&waits);
    found.position(|(task, wait)| task.is_done() && wait.revents().intersects(ends))
}

/// The cause that the other end told as the next frame.
pub(super) fn told(stream: &TcpStream) -> Option<Fault> {
    let mut bytes = [0; HEADER_BYTES + 4];
    if stream.peek(&mut bytes).ok()? < bytes.len() {
        return None;
    }
    let (header, body) = bytes.split_first_chunk::<HEADER_BYTES>()?;
    let header = Header::from_bytes(header)?;
    if header != Header::of(Kind::Broken, 0, body) {
        return None;
    }
    let word = <[u8; 4]>::try_from(body).ok()?;
    Some(Fault::Told(Broken::from_word(u32::from_le_bytes(word))))
}
