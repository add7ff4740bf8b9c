//! What a run is to do: what was typed, made into what is meant.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use bytesize::ByteSize;
use shorthaul::limits::Limits;
use shorthaul::placement::Placement;
use shorthaul_platform::topology::Topology;

use super::RpcArgs;
use super::measure::Job;
use super::method::Method;
use super::work::{Consume, Pages, Source, WaitKind};

/// A run.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) topology: Topology,
    pub(crate) placements: Vec<Placement>,
    pub(crate) methods: Vec<Method>,
    pub(crate) payloads: Vec<usize>,
    pub(crate) source: Source,
    pub(crate) consume: Consume,
    pub(crate) wait: WaitKind,
    pub(crate) huge_pages: Pages,
    pub(crate) twin_huge_pages: Pages,
    /// Calls under way at a time.
    pub(crate) in_flight: usize,
    /// Whether each method runs beside its bare twin.
    pub(crate) baseline: bool,
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
        let payloads = without_repeats(&args.payload);
        let in_flight = args.in_flight.into();
        // What the library keeps for its own choices is beside what the other methods keep.
        let sets = if methods.iter().any(Method::is_automatic) { 2 } else { 1 };
        ensure_buffers(&payloads, in_flight, sets)?;
        Ok(Self {
            topology,
            placements: without_repeats(placements),
            methods: without_repeats(methods),
            payloads,
            source: args.source,
            consume: args.consume,
            wait: args.wait,
            huge_pages: args.huge_pages,
            twin_huge_pages: args.twin_huge_pages.unwrap_or(args.huge_pages),
            in_flight,
            baseline: args.baseline,
            rounds: if args.quick { ROUNDS_QUICK } else { ROUNDS },
            time: Duration::from_secs_f64(seconds),
        })
    }

    /// The cell of a method and a size.
    pub(crate) fn job(&self, method: Method, bytes: usize) -> Job {
        let Self { source, consume, in_flight, .. } = *self;
        Job { method, bytes, source, consume, in_flight }
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

/// Each call in flight has a buffer of its own, for each size, and a server's mapping of it.
/// There are two sets of them if the library has its own.
fn ensure_buffers(payloads: &[usize], in_flight: usize, sets: usize) -> Result<()> {
    let count = payloads.len() * in_flight * sets;
    let count_max = Limits::default().regions_max as usize;
    ensure!(
        count <= count_max,
        "{} sizes of payload with --in-flight {in_flight} need {count} buffers{}, and a server \
         takes {count_max}: take fewer",
        payloads.len(),
        if sets > 1 { ", half of them for the methods with auto" } else { "" },
    );
    let bytes = payloads.iter().map(|&bytes| bytes as u64).sum::<u64>() * in_flight as u64;
    ensure!(
        in_flight == 1 || bytes <= IN_FLIGHT_BYTES_MAX,
        "--in-flight {in_flight} with these payloads needs {} of buffers, and at most {} are made \
         here: take fewer, or smaller ones",
        ByteSize(bytes).display().iec(),
        ByteSize(IN_FLIGHT_BYTES_MAX).display().iec(),
    );
    Ok(())
}

pub(crate) fn without_repeats<T: Copy + PartialEq>(values: &[T]) -> Vec<T> {
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
const ROUNDS: usize = 21;
const ROUNDS_QUICK: usize = 3;
/// What the inline lane carries in one frame.
const PAYLOAD_MAX: u64 = 128 << 20;
const IN_FLIGHT_BYTES_MAX: u64 = 1 << 30;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_in_flight_are_bounded() {
        let refused = |payloads: &[usize], in_flight| {
            ensure_buffers(payloads, in_flight, 1).err().map(|error| error.to_string())
        };
        assert_eq!(refused(&[128 << 20, 64 << 20], 1), None);
        assert_eq!(refused(&[16 << 20], 64), None);
        assert!(refused(&[16 << 20, 1], 64).unwrap().contains("1.0 GiB"));
        assert_eq!(refused(&[1, 2, 3, 4], 64), None);
        assert!(refused(&[1, 2, 3, 4, 5], 64).unwrap().contains("320 buffers"));
        let with_auto = ensure_buffers(&[1, 2, 3], 64, 2).unwrap_err().to_string();
        assert!(with_auto.contains("384 buffers, half of them for the methods with auto"));
    }

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
