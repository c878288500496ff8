//! What prefill and decode replicas tell one another.

use chairlift_core::Nanos;

use super::Fleet;
use crate::{clock::Event, command::Command, roles::Message};

impl Fleet {
    /// Lists when what a replica tells is there.
    pub(super) fn deliver(&mut self, replica: u16, time: Nanos, message: Message) {
        let Some(calls) = &mut self.calls else {
            return;
        };
        match message {
            Message::Wanted { missing, limit } => {
                let index = missing.index;
                let prefill = calls.begin(index, replica, &mut self.random);
                let command = Command::Prefill(missing);
                let begins = Event::Tell {
                    replica: prefill,
                    command,
                };
                self.clock.at(time, begins);
                let late = time.saturating_add(limit);
                self.clock.at(late, Event::Late { index, replica });
            }
            Message::Computed { index, end } => {
                if let Some(replica) = calls.decode_of(index) {
                    let command = Command::Received { index, end };
                    self.clock.at(time, Event::Tell { replica, command });
                }
            }
            Message::Over { index } => self.clock.at(time, Event::CallOver { index }),
        }
    }

    pub(super) fn end_call(&mut self, index: u32) {
        let call = self.calls.as_mut().and_then(|calls| calls.end(index));
        if let Some((decode, _)) = call {
            self.tell(decode, Command::Over(index));
        }
    }

    pub(super) fn late(&mut self, index: u32, replica: u16) {
        self.abort_call(index);
        self.tell(replica, Command::Late(index));
    }

    /// Ends the call of a request that does not wait for it any more.
    pub(super) fn abort_call(&mut self, index: u32) {
        let call = self.calls.as_mut().and_then(|calls| calls.end(index));
        if let Some((_, prefill)) = call {
            self.tell(prefill, Command::Abort(index));
        }
    }
}
