//! What is typed after `shorthaul bench relay`. The short flags are those of splice-bench.

use std::path::PathBuf;

use anyhow::{Result, bail, ensure};
use bytesize::ByteSize;
use clap::Args;
use shorthaul::limits::RELAY_CHUNK_BYTES_MAX;
use shorthaul::relay::Method;

use super::sink::{Receive, Sink};
use crate::bench::output::OutputArgs;

/// Files into sinks by splice, mmap, read and write and others, by several processes at once.
#[derive(Clone, Debug, Args)]
pub(crate) struct RelayArgs {
    /// Client i opens NAMEi: NAME0, NAME1 and so on; with -s all of them open NAME0.
    #[arg(value_name = "NAME", default_value = "splice-file")]
    pub(super) name: PathBuf,

    /// Clients that run at once, each a process.
    #[arg(short = 'n', long, value_name = "COUNT", default_value_t = 8, value_parser = counts())]
    pub(super) clients: u16,

    /// The receiver of client i listens on this port + i, on 127.0.0.1.
    #[arg(
        short = 'p',
        long,
        default_value_t = 8888,
        value_parser = clap::value_parser!(u16).range(1..)
    )]
    pub(super) port: u16,

    /// How often each client relays its whole file.
    #[arg(
        short = 'l',
        long,
        default_value_t = 10,
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    pub(super) loops: u32,

    /// Bytes that one system call moves at most, such as 65536 or 64KiB. A list runs one after the
    /// other.
    #[arg(
        short = 'b',
        long = "chunk",
        value_name = "BYTES",
        value_delimiter = ',',
        value_parser = parse_chunk,
        default_value = "64KiB"
    )]
    pub(super) chunks: Vec<usize>,

    /// A client that has run for so long begins no other loop.
    #[arg(
        short = 't',
        long,
        value_name = "SECONDS",
        default_value_t = 15.0,
        value_parser = parse_seconds
    )]
    pub(super) seconds: f64,

    /// Methods to run: a list of splice, mmap, rw, sendfile, copy_file_range and auto, or the word
    /// all.
    #[arg(
        short = 'c',
        long,
        value_name = "METHODS",
        value_parser = parse_methods,
        default_value = "splice,mmap,rw"
    )]
    pub(super) methods: Methods,

    /// Where the bytes go.
    #[arg(long, value_enum, default_value_t = Sink::Tcp)]
    pub(super) sink: Sink,

    /// Write to /dev/null: short for --sink null.
    #[arg(short = 'z', long, conflicts_with = "sink")]
    pub(super) null: bool,

    /// What a receiver does with the bytes. By default trunc over TCP, as in the original; else
    /// read.
    #[arg(long, value_enum)]
    pub(super) receive: Option<Receive>,

    /// One file for all.
    #[arg(short = 's', long)]
    pub(super) shared: bool,

    /// Keep client i and its receiver on CPU i.
    #[arg(short = 'a', long)]
    pub(super) affinity: bool,

    /// Run these numbers of clients instead, on one file and on a file each: 1,2,4. 1 is always
    /// among them, for the others are held against it.
    #[arg(
        long,
        value_name = "COUNTS",
        value_delimiter = ',',
        value_parser = counts(),
        conflicts_with_all = ["clients", "shared"]
    )]
    pub(super) scale: Vec<u16>,

    /// Run everything so many times, and take the medians.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(super) rounds: u16,

    /// Compare every byte that arrives with the file. The figures contain that.
    #[arg(long)]
    pub(super) verify: bool,

    /// Make files that are missing, of so many pseudo-random bytes, such as 1GiB.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(super) make: Option<u64>,

    #[command(flatten)]
    pub(super) output: OutputArgs,
}

/// A list of methods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Methods(pub(super) Vec<Method>);

fn counts() -> clap::builder::RangedI64ValueParser<u16> {
    clap::value_parser!(u16).range(1..=CLIENTS_MAX)
}

/// Reads `splice,mmap`; the original's own text has strokes between the names, so these too.
fn parse_methods(text: &str) -> Result<Methods> {
    let names = text.split([',', '/', ' ']).filter(|name| !name.is_empty());
    let mut methods = Vec::new();
    for name in names {
        let named = match name {
            "all" => ALL.to_vec(),
            name => match name.parse() {
                Ok(method) => vec![method],
                Err(error) => bail!("{error}, and all"),
            },
        };
        for method in named {
            if !methods.contains(&method) {
                methods.push(method);
            }
        }
    }
    ensure!(!methods.is_empty(), "name a method at least: splice, mmap, rw, or all");
    Ok(Methods(methods))
}

fn parse_chunk(text: &str) -> Result<usize> {
    let bytes = parse_size(text)?;
    let max = RELAY_CHUNK_BYTES_MAX as u64;
    ensure!(bytes > 0, "a chunk has one byte at least");
    ensure!(bytes <= max, "at most {} make a chunk", ByteSize(max).display().iec());
    Ok(bytes as usize)
}

fn parse_size(text: &str) -> Result<u64> {
    match text.parse::<ByteSize>() {
        Ok(size) if i64::try_from(size.as_u64()).is_ok() => Ok(size.as_u64()),
        Ok(_) => bail!("no file is as large as that"),
        Err(error) => bail!("{error}; write it like 65536, 64KiB or 1GiB"),
    }
}

fn parse_seconds(text: &str) -> Result<f64> {
    let seconds: f64 = text.parse()?;
    ensure!((0.0..=SECONDS_MAX).contains(&seconds), "give between 0 and {SECONDS_MAX} seconds");
    Ok(seconds)
}

/// In the order in which the original runs its three.
const ALL: [Method; 6] = [
    Method::Splice,
    Method::Map,
    Method::ReadWrite,
    Method::SendFile,
    Method::CopyFileRange,
    Method::Auto,
];
/// Each takes two processes and a few descriptors.
const CLIENTS_MAX: i64 = 64;
const SECONDS_MAX: f64 = 86_400.0;

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        args: RelayArgs,
    }

    fn parse(line: &str) -> Result<RelayArgs, String> {
        let words = std::iter::once("relay").chain(line.split_whitespace());
        Line::try_parse_from(words).map(|line| line.args).map_err(|error| error.to_string())
    }

    #[test]
    fn the_line_of_the_mail_is_understood() {
        let args = parse("-n2 -l10 -a -s -z file").unwrap();
        assert_eq!((args.clients, args.loops), (2, 10));
        assert!(args.affinity && args.shared && args.null);
        assert_eq!(args.name, PathBuf::from("file"));
    }

    #[test]
    fn the_defaults_are_the_original_ones() {
        let args = parse("").unwrap();
        assert_eq!((args.clients, args.port, args.loops), (8, 8888, 10));
        assert_eq!((&args.chunks[..], args.seconds, args.sink), (&[65_536][..], 15.0, Sink::Tcp));
        let original = vec![Method::Splice, Method::Map, Method::ReadWrite];
        assert_eq!(args.methods, Methods(original));
        assert_eq!(args.name, PathBuf::from("splice-file"));
        assert!(!(args.affinity || args.shared || args.null || args.verify));
    }

    #[test]
    fn values_may_be_attached_or_not_and_flags_joined() {
        for line in [
            "-n3 -p9000 -l4 -b65536 -t2 -crw -asz name",
            "-n 3 -p 9000 -l 4 -b 64KiB -t 2 -c rw -a -s -z name",
            "-n=3 -p=9000 -l=4 -b=64KiB -t=2 -c=rw -zas name",
            "name --clients 3 --port 9000 --loops 4 --chunk 65536 --seconds 2 --methods rw \
             --affinity --shared --null",
            "--clients=3 --port=9000 --loops=4 --chunk=64KiB --seconds=2.0 --methods=rw \
             --affinity --shared --null name",
        ] {
            let args = parse(line).unwrap();
            let numbers = (args.clients, args.port, args.loops, args.seconds);
            assert_eq!(numbers, (3, 9000, 4, 2.0), "{line}");
            assert_eq!(
                (&args.chunks[..], args.methods.0),
                (&[65_536][..], vec![Method::ReadWrite])
            );
            assert!(args.affinity && args.shared && args.null, "{line}");
            assert_eq!(args.name, PathBuf::from("name"), "{line}");
        }
    }

    #[test]
    fn lists_are_read() {
        let args = parse("-b64KiB,1MiB --scale 1,2,4 -c splice,copy_file_range").unwrap();
        assert_eq!((&args.chunks[..], &args.scale[..]), (&[65_536, 1 << 20][..], &[1, 2, 4][..]));
        assert_eq!(args.methods.0, [Method::Splice, Method::CopyFileRange]);
        assert_eq!(parse("-call").unwrap().methods.0, ALL);
        assert_eq!(parse("-c rw/mmap/splice").unwrap().methods.0.len(), 3);
        assert_eq!(parse("-c rw,all,rw").unwrap().methods.0.len(), 6);
        assert_eq!(parse("--make 1GiB").unwrap().make, Some(1 << 30));
    }

    #[test]
    fn nonsense_is_refused() {
        for (line, expected) in [
            ("-c tee", "rw, mmap, splice"),
            ("-c ,", "name a method"),
            ("-n0", "1..=64"),
            ("-n65", "1..=64"),
            ("-n -1", "-1"),
            ("-l0", "0"),
            ("-p0", "0"),
            ("-p70000", "70000"),
            ("-b0", "one byte"),
            ("-b lots", "64KiB"),
            ("-b 1GiB", "64.0 MiB"),
            ("-t -1", "-1"),
            ("-t NaN", "between 0"),
            ("-z --sink tcp", "--sink"),
            ("--sink disk", "pipe"),
            ("--receive look", "trunc"),
            ("--scale 1,0", "1..=64"),
            ("--scale 2 -n 2", "--clients"),
            ("--scale 2 -s", "--shared"),
            ("--rounds 0", "1..=1000"),
            ("--make some", "1GiB"),
            ("a b", "b"),
        ] {
            let said = parse(line).unwrap_err();
            assert!(said.contains(expected), "{line}: {said}");
        }
    }
}
