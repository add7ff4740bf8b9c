//! What a run is to do: what was typed, made into what is meant.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use bytesize::ByteSize;
use shorthaul::placement::Placement;
use shorthaul_platform::topology::Topology;

use super::RpcArgs;
use super::method::Method;
use super::work::{Consume, Source};

/// A run.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) topology: Topology,
    pub(crate) placements: Vec<Placement>,
    pub(crate) methods: Vec<Method>,
    pub(crate) payloads: Vec<usize>,
    pub(crate) source: Source,
    pub(crate) consume: Consume,
    pub(crate) rounds: usize,
    pub(crate) time: Duration,
}

impl Plan {
    pub(crate) fn new(args: &RpcArgs) -> Result<Self> {
        let topology = Topology::read().context("cannot read the CPUs of this machine")?;
        let seconds = args.seconds.unwrap_or(if args.quick { QUICK } else { DEFAULT });
        ensure!(
            seconds.is_finite() && (0.0..=SECONDS_MAX).contains(&seconds),
            "--seconds {seconds}: give between 0 and {SECONDS_MAX} seconds"
        );
        let placements =
            if args.placements.is_empty() { &Placement::ALL[..] } else { &args.placements };
        let methods = args.methods.as_ref().map_or(&Method::ALL[..], |methods| &methods.0);
        Ok(Self {
            topology,
            placements: without_repeats(placements),
            methods: without_repeats(methods),
            payloads: without_repeats(&args.payload),
            source: args.source,
            consume: args.consume,
            rounds: if args.quick { ROUNDS_QUICK } else { ROUNDS },
            time: Duration::from_secs_f64(seconds),
        })
    }

    /// Whether there is anything to run on this machine.
    pub(crate) fn is_possible(&self) -> bool {
        self.placements.iter().any(|placement| placement.assign(&self.topology).is_some())
    }
}

/// Reads a payload's size, such as `4KiB`, `1MiB` or `4095`.
pub(crate) fn parse_payload(text: &str) -> Result<usize> {
    let size: ByteSize = match text.parse() {
        Ok(size) => size,
        Err(error) => bail!("{error}; write it like 4095, 4KiB or 1MiB"),
    };
    let max = PAYLOAD_MAX;
    ensure!(size.as_u64() <= max, "at most {} make a payload here", ByteSize(max).display().iec());
    Ok(size.as_u64() as usize)
}

/// A size as it is read.
pub(crate) fn format_bytes(bytes: usize) -> String {
    for (unit, name) in [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")] {
        if bytes >= unit && bytes.is_multiple_of(unit) {
            return format!("{} {name}", bytes / unit);
        }
    }
    format!("{bytes} B")
}

fn without_repeats<T: Copy + PartialEq>(values: &[T]) -> Vec<T> {
    let mut unique = Vec::new();
    for value in values {
        if !unique.contains(value) {
            unique.push(*value);
        }
    }
    unique
}

const DEFAULT: f64 = 45.0;
const QUICK: f64 = 6.0;
const SECONDS_MAX: f64 = 86_400.0;
const ROUNDS: usize = 15;
const ROUNDS_QUICK: usize = 3;
/// What the inline lane carries in one frame.
const PAYLOAD_MAX: u64 = 128 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_and_written() {
        assert_eq!(parse_payload("4KiB").unwrap(), 4096);
        assert_eq!(parse_payload("1MiB").unwrap(), 1 << 20);
        assert_eq!(parse_payload("0").unwrap(), 0);
        assert_eq!(parse_payload("4095").unwrap(), 4095);
        assert!(parse_payload("a lot").unwrap_err().to_string().contains("4KiB"));
        assert!(parse_payload("1TiB").is_err());
        assert_eq!(format_bytes(1 << 20), "1 MiB");
        assert_eq!(format_bytes(4095), "4095 B");
    }
}
