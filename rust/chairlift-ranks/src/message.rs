//! A message of rank 0 to the others: int32 numbers with a number of their own and a hash, which each rank checks.

use thiserror::Error;

/// Numbers in front of those of a message: its number, how many follow, and two of the hash.
pub const HEADER: usize = 4;

/// What is wrong with a message.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum MessageError {
    /// It has no room.
    #[error("message: expected at most {room} numbers, got {got}")]
    Long {
        /// Numbers that there is room for.
        room: usize,
        /// Numbers of the message.
        got: usize,
    },
    /// It is another than the one that comes next.
    #[error("message: expected number {expected}, got {got}")]
    Number {
        /// That comes next.
        expected: u32,
        /// That is there.
        got: u32,
    },
    /// Its hash or its length is wrong.
    #[error("message: expected the numbers that were sent")]
    Changed,
}

/// Writes a message into its place.
///
/// # Errors
/// It has no room.
pub fn seal(place: &mut [i32], number: u32, message: &[i32]) -> Result<(), MessageError> {
    let room = place.len().saturating_sub(HEADER);
    if message.len() > room {
        let got = message.len();
        return Err(MessageError::Long { room, got });
    }
    let hash = hash(number, message);
    place[..HEADER].copy_from_slice(&[
        number as i32,
        message.len() as i32,
        hash as i32,
        (hash >> 32) as i32,
    ]);
    place[HEADER..HEADER + message.len()].copy_from_slice(message);
    Ok(())
}

/// The message in a place, if it is the one with this number.
///
/// # Errors
/// It is another one, or its numbers are not those that were written.
pub fn open(place: &[i32], number: u32) -> Result<&[i32], MessageError> {
    let [found, len, low, high, rest @ ..] = place else {
        return Err(MessageError::Changed);
    };
    let got = *found as u32;
    if got != number {
        let expected = number;
        return Err(MessageError::Number { expected, got });
    }
    let len = usize::try_from(*len).ok();
    let message = len
        .and_then(|len| rest.get(..len))
        .ok_or(MessageError::Changed)?;
    let expected = u64::from(*low as u32) | (u64::from(*high as u32) << 32);
    if hash(number, message) == expected {
        Ok(message)
    } else {
        Err(MessageError::Changed)
    }
}

/// FNV-1a over whole numbers: a change of one changes it.
fn hash(number: u32, message: &[i32]) -> u64 {
    let start = 0xcbf2_9ce4_8422_2325 ^ u64::from(number);
    message.iter().fold(start, |hash, word| {
        (hash ^ u64::from(*word as u32)).wrapping_mul(0x100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_message_arrives_as_it_was_sent(message: Vec<i32>, number: u32) {
            let mut place = vec![-1; HEADER + message.len() + 3];
            prop_assert_eq!(seal(&mut place, number, &message), Ok(()));
            prop_assert_eq!(open(&place, number), Ok(message.as_slice()));
        }

        #[test]
        fn a_number_that_changes_is_found(message in prop::collection::vec(any::<i32>(), 1..40), at: prop::sample::Index, bit in 0..32) {
            let mut place = vec![0; HEADER + message.len()];
            prop_assert_eq!(seal(&mut place, 7, &message), Ok(()));
            let at = at.index(place.len());
            place[at] ^= 1 << bit;
            prop_assert!(open(&place, 7).is_err());
        }
    }

    #[test]
    fn a_message_of_another_step_is_refused() {
        let mut place = [0; HEADER + 1];
        assert_eq!(seal(&mut place, 3, &[5]), Ok(()));
        let error = MessageError::Number {
            expected: 4,
            got: 3,
        };
        assert_eq!(open(&place, 4), Err(error));
    }

    #[test]
    fn a_message_without_room_is_refused_and_changes_nothing() {
        let mut place = [9; HEADER + 1];
        let error = MessageError::Long { room: 1, got: 2 };
        assert_eq!(seal(&mut place, 0, &[1, 2]), Err(error));
        assert_eq!(place, [9; HEADER + 1]);
    }
}
