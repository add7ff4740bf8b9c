//! What a call of the bench asks for, what its answer must contain, and what reading it sums up to.

use std::io;

use anyhow::{Result, ensure};
use clap::ValueEnum;
use serde::Serialize;
use shorthaul::{Lane, Reply};
use shorthaul_platform::memory::{PrivateMemory, SharedMapping};
use shorthaul_platform::store::Store;

use super::method::Method;

/// Where the bytes that the server writes come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Source {
    /// One pass of stores, of a byte that changes with each call: the fastest write there is.
    Fill,
    /// A copy from memory that the server has warm in its cache, from another place on each call.
    Warm,
}

/// How much of the payload the client reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Consume {
    /// Nothing.
    None,
    /// The first byte of every 4 KiB.
    Sample,
    /// Every byte.
    All,
}

impl Consume {
    /// Reads one byte of every so many; none if nothing is read.
    pub(crate) fn stride(self) -> Option<usize> {
        match self {
            Self::None => None,
            Self::Sample => Some(SAMPLE_BYTES),
            Self::All => Some(1),
        }
    }

    /// What is printed beside every table.
    pub(crate) fn description(self) -> &'static str {
        match self {
            Self::None => "reader reads nothing",
            Self::Sample => "reader samples every page",
            Self::All => "reader reads every byte",
        }
    }
}

/// One call's work.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Work {
    pub(crate) method: Method,
    pub(crate) source: Source,
    pub(crate) sequence: u64,
    pub(crate) bytes: usize,
}

impl Work {
    /// The request that asks for it.
    pub(crate) fn encode(&self) -> [u8; REQUEST_BYTES] {
        let mut request = [0; REQUEST_BYTES];
        request[0] = self.method.number();
        request[1] = self.source as u8;
        request[8..16].copy_from_slice(&self.sequence.to_le_bytes());
        request[16..24].copy_from_slice(&(self.bytes as u64).to_le_bytes());
        request
    }

    /// The work that a request asks for.
    pub(crate) fn decode(request: &[u8]) -> Option<Self> {
        let method = *Method::ALL.get(usize::from(*request.first()?))?;
        let source = if *request.get(1)? == 0 { Source::Fill } else { Source::Warm };
        let number = |at: usize| {
            request.get(at..at + 8)?.first_chunk::<8>().map(|bytes| u64::from_le_bytes(*bytes))
        };
        let bytes = usize::try_from(number(16)?).ok()?;
        Some(Self { method, source, sequence: number(8)?, bytes })
    }

    /// The byte that fills this call's payload.
    pub(crate) fn fill_byte(&self) -> u8 {
        self.sequence as u8
    }

    /// Where in the warm source this call's payload starts.
    pub(crate) fn warm_start(&self) -> usize {
        (self.sequence as usize % WARM_STARTS) * WARM_STEP
    }

    /// Reads the payload as `consume` says, and checks that it is what this call asked for.
    pub(crate) fn check(&self, reply: &Reply, consume: Consume) -> Result<()> {
        // Room for no bytes behind the reply is no offer.
        let takes_none = self.bytes == 0 && self.method.lane() == Lane::Inline;
        let lane = if takes_none { Lane::None } else { self.method.lane() };
        ensure!(
            reply.len() == self.bytes && reply.lane() == lane,
            "{}: {} bytes came by {}, not {} by {}",
            self.method,
            reply.len(),
            reply.lane(),
            self.bytes,
            lane,
        );
        if let Some(stride) = consume.stride() {
            let (found, expected) = (reply.sum(stride), self.expected_sum(stride));
            ensure!(
                found == expected,
                "{}: the payload sums to {found}, not {expected}",
                self.method
            );
        }
        Ok(())
    }

    fn expected_sum(&self, stride: usize) -> u64 {
        match self.source {
            Source::Fill => u64::from(self.fill_byte()) * self.bytes.div_ceil(stride) as u64,
            Source::Warm => expected_warm_sum(self.warm_start(), self.bytes, stride),
        }
    }
}

/// A warm source for payloads of `bytes` bytes: a byte is the number of its cache line.
pub(crate) fn warm_source(bytes: usize) -> io::Result<PrivateMemory> {
    let mut source = PrivateMemory::new(bytes + WARM_STARTS * WARM_STEP)?;
    source.iter_mut().enumerate().for_each(|(at, byte)| *byte = warm_byte(at));
    Ok(source)
}

fn warm_byte(at: usize) -> u8 {
    (at / WARM_STEP) as u8
}

/// Fills `mapping` and the like from a warm source, for the limits.
pub(crate) fn warm_fill(mapping: &SharedMapping, source: &[u8], sequence: u64, store: Store) {
    let start = (sequence as usize % WARM_STARTS) * WARM_STEP;
    mapping.copy_in(0, &source[start..start + mapping.len()], store);
}

fn expected_warm_sum(start: usize, bytes: usize, stride: usize) -> u64 {
    if stride > 1 {
        return (start..start + bytes).step_by(stride).map(|at| u64::from(warm_byte(at))).sum();
    }
    let lines = |end: usize| {
        // The sum of the bytes before `end`: whole runs of 256 lines, whole lines, and a rest.
        let (lines, rest) = ((end / WARM_STEP) as u64, (end % WARM_STEP) as u64);
        let (runs, left) = (lines / 256, lines % 256);
        let step = WARM_STEP as u64;
        step * (runs * (255 * 256 / 2) + left * left.saturating_sub(1) / 2) + rest * left
    };
    lines(start + bytes) - lines(start)
}

/// Bytes of a request, padded to what an empty call carries.
pub(crate) const REQUEST_BYTES: usize = 64;
/// Bytes of a response.
pub(crate) const RESPONSE_BYTES: usize = 8;
/// The method that moves payloads.
pub(crate) const MAKE: &str = "make";
/// The method that moves none.
pub(crate) const EMPTY: &str = "empty";
const SAMPLE_BYTES: usize = 4096;
const WARM_STEP: usize = 64;
const WARM_STARTS: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_read_back() {
        let method = Method::ALL[3];
        let work = Work { method, source: Source::Warm, sequence: 77, bytes: 4097 };
        let read = Work::decode(&work.encode()).unwrap();
        assert_eq!((read.method, read.sequence, read.bytes), (method, 77, 4097));
        assert_eq!(Work::decode(&[99; REQUEST_BYTES]).map(|_| ()), None);
        assert_eq!(Work::decode(&[]).map(|_| ()), None);
    }

    #[test]
    fn warm_sums_are_the_sums_of_the_bytes() {
        for (start, bytes) in [(0, 0), (0, 1), (64, 63), (128, 65), (640, 100_000), (0, 16_384)] {
            let naive: u64 = (start..start + bytes).map(|at| u64::from(warm_byte(at))).sum();
            assert_eq!(expected_warm_sum(start, bytes, 1), naive, "{bytes} at {start}");
        }
    }
}
