//! What every peer does for a call: 64 bytes go in, as many come out as they ask for.

use std::cell::Cell;
use std::mem::MaybeUninit;

use anyhow::{Context, Result, ensure};

pub(crate) const REQUEST_BYTES: usize = 64;

/// An empty call is answered by this much: else nobody would know whose answer it is.
pub(crate) const EMPTY_ANSWER_BYTES: usize = 8;

/// One call: its number and how much it asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    sequence: u64,
    bytes: usize,
}

impl Request {
    pub(crate) fn encode(self) -> [u8; REQUEST_BYTES] {
        let mut encoded = [0; REQUEST_BYTES];
        encoded[..8].copy_from_slice(&self.sequence.to_le_bytes());
        encoded[8..16].copy_from_slice(&(self.bytes as u64).to_le_bytes());
        encoded
    }

    pub(crate) fn decode(encoded: &[u8]) -> Result<Self> {
        ensure!(encoded.len() == REQUEST_BYTES, "a request of {} bytes", encoded.len());
        let number = |at: usize| encoded[at..].first_chunk().copied().map(u64::from_le_bytes);
        let sequence = number(0).context("a request is cut off")?;
        let bytes = usize::try_from(number(8).context("a request is cut off")?)?;
        Ok(Self { sequence, bytes })
    }

    pub(crate) fn sequence(self) -> u64 {
        self.sequence
    }

    /// What is asked for; 0 of an empty call.
    pub(crate) fn payload_bytes(self) -> usize {
        self.bytes
    }

    /// What is answered.
    pub(crate) fn answer_bytes(self) -> usize {
        if self.bytes == 0 { EMPTY_ANSWER_BYTES } else { self.bytes }
    }

    /// Every byte of a payload has this value, which is another one in the next call, and never
    /// that of memory which nobody has written.
    pub(crate) fn fill_byte(self) -> u8 {
        (self.sequence.wrapping_mul(FILL_STEP) % 255) as u8 + 1
    }

    /// Writes the answer, all of it.
    pub(crate) fn make(self, answer: &mut [u8]) {
        if self.bytes == 0 {
            answer.copy_from_slice(&self.sequence.to_le_bytes());
        } else {
            answer.fill(self.fill_byte());
        }
    }

    /// The answer in memory of its own, each byte written once.
    #[cfg_attr(not(feature = "owned"), allow(dead_code, reason = "its peers are left out"))]
    pub(crate) fn made(self) -> Vec<u8> {
        if self.bytes == 0 {
            return self.sequence.to_le_bytes().to_vec();
        }
        vec![self.fill_byte(); self.bytes]
    }

    /// The same into memory that nobody has written yet.
    #[cfg_attr(not(feature = "iceoryx2"), allow(dead_code, reason = "its peer is left out"))]
    pub(crate) fn make_uninit(self, answer: &mut [MaybeUninit<u8>]) {
        if self.bytes == 0 {
            for (to, byte) in answer.iter_mut().zip(self.sequence.to_le_bytes()) {
                to.write(byte);
            }
        } else {
            answer.fill(MaybeUninit::new(self.fill_byte()));
        }
    }

    /// Looks at the length and at one byte of every page.
    pub(crate) fn check(self, answer: &[u8]) -> Result<()> {
        if self.bytes == 0 {
            ensure!(answer == self.sequence.to_le_bytes(), "an empty call's answer is off");
            return Ok(());
        }
        self.check_sum(answer.len(), answer.iter().step_by(STRIDE).map(|&b| u64::from(b)).sum())
    }

    /// The same for who has summed up one byte of every page in another way.
    pub(crate) fn check_sum(self, bytes: usize, sum: u64) -> Result<()> {
        ensure!(bytes == self.bytes, "{bytes} bytes came, not {}", self.bytes);
        let expected = u64::from(self.fill_byte()) * self.bytes.div_ceil(STRIDE) as u64;
        ensure!(sum == expected, "the bytes sum up to {sum}, not {expected}");
        Ok(())
    }
}

/// Calls that are to be made, all alike.
#[derive(Debug)]
pub(crate) struct Load {
    bytes: usize,
    in_flight: usize,
    sequence: Cell<u64>,
    left: Cell<u64>,
}

impl Load {
    /// `calls` calls for `bytes` bytes, numbered from `sequence`.
    pub(crate) fn new(bytes: usize, in_flight: usize, sequence: u64, calls: u64) -> Self {
        Self { bytes, in_flight, sequence: Cell::new(sequence), left: Cell::new(calls) }
    }

    /// How many calls may be under way at a time.
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// The next call, until all were made.
    pub(crate) fn next(&self) -> Option<Request> {
        self.left.set(self.left.get().checked_sub(1)?);
        let sequence = self.sequence.get();
        self.sequence.set(sequence + 1);
        Some(Request { sequence, bytes: self.bytes })
    }
}

/// One byte of this many is looked at.
pub(crate) const STRIDE: usize = 4096;
/// Has no divisor in common with 255, so that all values come up.
const FILL_STEP: u64 = 167;

#[cfg(test)]
mod tests {
    use super::*;

    fn request(bytes: usize) -> Request {
        Load::new(bytes, 1, 7, 1).next().unwrap()
    }

    #[test]
    fn a_request_survives_its_encoding() {
        let request = request(8 << 20);
        assert_eq!(Request::decode(&request.encode()).unwrap(), request);
        assert!(Request::decode(&request.encode()[1..]).is_err());
    }

    #[test]
    fn an_answer_is_checked_for_its_length_its_pages_and_its_call() {
        for bytes in [0, 1, STRIDE, STRIDE + 1, 3 * STRIDE] {
            let request = request(bytes);
            let mut answer = vec![0; request.answer_bytes()];
            request.make(&mut answer);
            request.check(&answer).unwrap();
            assert!(request.check(&answer[1..]).is_err(), "{bytes} bytes, one short");
            let last_page = (answer.len() - 1) / STRIDE * STRIDE;
            answer[last_page] ^= 1;
            assert!(request.check(&answer).is_err(), "{bytes} bytes, last page");
            let next = Load::new(bytes, 1, 8, 1).next().unwrap();
            answer[last_page] ^= 1;
            assert!(next.check(&answer).is_err(), "{bytes} bytes of another call");
        }
    }

    #[test]
    fn memory_that_nobody_has_written_gets_the_same_answer() {
        for bytes in [0, 100] {
            let request = request(bytes);
            let mut expected = vec![0; request.answer_bytes()];
            request.make(&mut expected);
            let mut made = vec![MaybeUninit::new(0); request.answer_bytes()];
            request.make_uninit(&mut made);
            // SAFETY: it was initialised above, and written since.
            let made: Vec<u8> = made.iter().map(|byte| unsafe { byte.assume_init() }).collect();
            assert_eq!(made, expected);
        }
    }

    #[test]
    fn a_load_ends_after_its_calls() {
        let load = Load::new(4, 2, 10, 3);
        let numbers: Vec<u64> = std::iter::from_fn(|| load.next()).map(Request::sequence).collect();
        assert_eq!(numbers, [10, 11, 12]);
    }
}
