//! What a call of the bench asks for, what its answer must contain, and what reading it sums up to.

use std::io;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use shorthaul::{HugePages, Lane, Reply, Wait};
use shorthaul_platform::memory::{PrivateMemory, SharedMapping};
use shorthaul_platform::store::Store;
use shorthaul_platform::usage::Usage;

use super::method::Method;

/// Where the bytes that the server writes come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Source {
    /// One pass of stores, of a byte that changes with each call: the fastest write there is.
    Fill,
    /// A copy from memory that the server has warm in its cache, from another place on each call.
    Warm,
}

/// How both sides wait for each other, but for callers and workers in threads mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum WaitKind {
    /// Asleep.
    Block,
    /// Looking for as long as it pays, then asleep.
    #[default]
    Adaptive,
    /// Looking.
    Spin,
}

impl WaitKind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Block => "block",
            Self::Adaptive => "adaptive",
            Self::Spin => "spin",
        }
    }

    /// What is printed beside every table.
    pub(crate) fn description(self) -> String {
        format!("client and server wait by {}", self.name())
    }

    pub(crate) fn wait(self) -> Wait {
        match self {
            Self::Block => Wait::Block,
            Self::Adaptive => Wait::Adaptive,
            Self::Spin => Wait::Spin,
        }
    }
}

/// How much of the payload the client reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Consume {
    /// Nothing.
    None,
    /// The first byte of every 4 KiB.
    Sample,
    /// Every byte.
    All,
}

/// Which pages the memory of everything has that is measured: of rows, limits and twins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Pages {
    /// Huge ones where the kernel gives them.
    Auto,
    /// Small ones.
    #[default]
    Never,
}

impl Pages {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Never => "never",
        }
    }

    /// What is printed beside every table.
    pub(crate) fn description(self) -> &'static str {
        match self {
            Self::Auto => "huge where they can be had",
            Self::Never => "small",
        }
    }

    /// Memory of this process alone, with such pages.
    pub(crate) fn private(self, bytes: usize) -> io::Result<PrivateMemory> {
        let memory = PrivateMemory::new(bytes)?;
        if self == Self::Auto {
            memory.prefer_huge_pages();
        }
        Ok(memory)
    }
}

impl From<Pages> for HugePages {
    fn from(pages: Pages) -> Self {
        match pages {
            Pages::Auto => Self::Auto,
            Pages::Never => Self::Never,
        }
    }
}

impl Source {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Fill => "fill",
            Self::Warm => "warm",
        }
    }

    /// What is printed beside every table.
    pub(crate) fn description(self) -> &'static str {
        match self {
            Self::Fill => {
                "one pass of stores of a byte that changes per call: the fastest write there is"
            }
            Self::Warm => "a copy from a warm source, of other bytes on each call",
        }
    }
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

    /// The consumption of a number that `as u8` gave.
    pub(crate) fn of_number(number: u8) -> Self {
        match number {
            0 => Self::None,
            1 => Self::Sample,
            _ => Self::All,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Sample => "sample",
            Self::All => "all",
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
    pub(crate) consume: Consume,
    pub(crate) sequence: u64,
    pub(crate) bytes: usize,
}

impl Work {
    /// The request that asks for it.
    pub(crate) fn encode(&self) -> [u8; REQUEST_BYTES] {
        let mut request = [0; REQUEST_BYTES];
        request[0] = self.method.number();
        request[1] = self.source as u8;
        request[3] = self.consume as u8;
        request[8..16].copy_from_slice(&self.sequence.to_le_bytes());
        request[16..24].copy_from_slice(&(self.bytes as u64).to_le_bytes());
        request
    }

    /// The work that a request asks for.
    pub(crate) fn decode(request: &[u8]) -> Option<Self> {
        let method = Method::of_number(*request.first()?)?;
        let source = if *request.get(1)? == 0 { Source::Fill } else { Source::Warm };
        let number = |at: usize| {
            request.get(at..at + 8)?.first_chunk::<8>().map(|bytes| u64::from_le_bytes(*bytes))
        };
        let bytes = usize::try_from(number(16)?).ok()?;
        let consume = Consume::of_number(*request.get(3)?);
        Some(Self { method, source, consume, sequence: number(8)?, bytes })
    }

    /// The byte that fills this call's payload.
    pub(crate) fn fill_byte(&self) -> u8 {
        self.sequence as u8
    }

    /// Where in the warm source this call's payload starts.
    pub(crate) fn warm_start(&self) -> usize {
        (self.sequence as usize % WARM_STARTS) * WARM_STEP
    }

    /// Reads the payload as it says, and checks that it is what this call asked for; of an upload,
    /// that the server has read what this call sent.
    pub(crate) fn check(&self, reply: &Reply) -> Result<()> {
        let is_put = self.method.is_put();
        let bytes = if is_put { self.bytes } else { reply.len() };
        let lane = if is_put { reply.upload_lane() } else { reply.lane() };
        // A request without a payload takes no lane.
        let is_right = self.method.lane().is_none_or(|wanted| lane == wanted)
            || (is_put && bytes == 0 && lane == Lane::None);
        ensure!(
            bytes == self.bytes && is_right,
            "{}: {bytes} bytes came by {lane}, not {} by {}",
            self.method,
            self.bytes,
            self.method.lane().map_or("any lane".into(), |wanted| wanted.to_string()),
        );
        match self.consume.stride() {
            Some(stride) if is_put => {
                let sum = reply.response().first_chunk().map(|sum| u64::from_le_bytes(*sum));
                self.check_sum(sum.context("the server's sum is cut off")?, stride)
            }
            Some(stride) => self.check_sum(reply.sum(stride), stride),
            None => Ok(()),
        }
    }

    /// Checks the sum of the first byte of every `stride` bytes of the payload.
    pub(crate) fn check_sum(&self, found: u64, stride: usize) -> Result<()> {
        let expected = self.expected_sum(stride);
        ensure!(found == expected, "{}: the payload sums to {found}, not {expected}", self.method);
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
pub(crate) fn warm_source(bytes: usize, pages: Pages) -> io::Result<PrivateMemory> {
    let mut source = pages.private(bytes + WARM_STARTS * WARM_STEP)?;
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

/// What the bench's server answers when it is asked what it has cost so far.
pub(crate) fn encode_usage(usage: Usage) -> [u8; USAGE_BYTES] {
    let cpu_ns = u64::try_from(usage.cpu.as_nanos()).unwrap_or(u64::MAX);
    let mut response = [0; USAGE_BYTES];
    let numbers = [cpu_ns, usage.context_switches, usage.page_faults];
    for (place, number) in response.chunks_exact_mut(8).zip(numbers) {
        place.copy_from_slice(&number.to_le_bytes());
    }
    response
}

pub(crate) fn decode_usage(response: &[u8]) -> Result<Usage> {
    let number = |at: usize| {
        let bytes = response.get(at..).and_then(<[u8]>::first_chunk::<8>);
        bytes.map(|bytes| u64::from_le_bytes(*bytes)).context("the server's usage is cut off")
    };
    Ok(Usage {
        cpu: Duration::from_nanos(number(0)?),
        context_switches: number(8)?,
        page_faults: number(16)?,
    })
}

/// Bytes of a request, padded to what an empty call carries.
pub(crate) const REQUEST_BYTES: usize = 64;
/// Bytes of a response.
pub(crate) const RESPONSE_BYTES: usize = 8;
/// The method that moves payloads.
pub(crate) const MAKE: &str = "make";
/// The method that moves none.
pub(crate) const EMPTY: &str = "empty";
/// The method that tells what the server process has cost so far.
pub(crate) const USAGE: &str = "usage";
/// Reading the clock costs as much as a hundredth of a round trip.
pub(crate) const CALLS_PER_CLOCK: u32 = 64;
const USAGE_BYTES: usize = 24;
const SAMPLE_BYTES: usize = 4096;
const WARM_STEP: usize = 64;
const WARM_STARTS: usize = 64;

#[cfg(test)]
mod tests {
    use shorthaul_platform::store::sum_slice;

    use super::*;

    #[test]
    fn a_request_is_read_back() {
        let method = Method::ALL[3];
        let (source, consume) = (Source::Warm, Consume::All);
        let work = Work { method, source, consume, sequence: 77, bytes: 4097 };
        let read = Work::decode(&work.encode()).unwrap();
        assert_eq!((read.method, read.sequence, read.bytes), (method, 77, 4097));
        assert_eq!((read.source, read.consume), (source, consume));
        assert_eq!(Work::decode(&[99; REQUEST_BYTES]).map(|_| ()), None);
        assert_eq!(Work::decode(&[]).map(|_| ()), None);
    }

    #[test]
    fn a_usage_is_read_back() {
        let cpu = Duration::from_nanos(1_234_567_890);
        let usage = Usage { cpu, context_switches: 7, page_faults: 1 << 40 };
        assert_eq!(decode_usage(&encode_usage(usage)).unwrap(), usage);
        assert!(decode_usage(&[0; 23]).is_err());
    }

    #[test]
    fn what_is_consumed_has_a_number() {
        for consume in [Consume::None, Consume::Sample, Consume::All] {
            assert_eq!(Consume::of_number(consume as u8), consume);
        }
        assert_eq!((sum_slice(&[200; 1000], 1), sum_slice(&[1; 4097], 4096)), (200_000, 2));
    }

    #[test]
    fn warm_sums_are_the_sums_of_the_bytes() {
        for (start, bytes) in [(0, 0), (0, 1), (64, 63), (128, 65), (640, 100_000), (0, 16_384)] {
            let naive: u64 = (start..start + bytes).map(|at| u64::from(warm_byte(at))).sum();
            assert_eq!(expected_warm_sum(start, bytes, 1), naive, "{bytes} at {start}");
        }
    }
}
